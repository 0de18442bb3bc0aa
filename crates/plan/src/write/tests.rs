//! The commands that are written; `scripts.rs` runs them.

mod layouts;
mod scripts;

use super::*;
use crate::layout::Layout;
use crate::plan_file::{Expected, PlannedFile, Trace, VERSION};
use crate::servers::Server;
use halocline_model::profile::DeviceProfile;

const K: u64 = 1024;

/// A plan for one file in these parts, and for as many servers as they have.
fn plan(path: &str, parts: &[(Option<u64>, &[u64])]) -> Plan {
    let mut begin = 0;
    let mut all = Vec::new();
    for (end, widths) in parts {
        all.push(Part { begin, end: *end, widths: widths.to_vec() });
        begin = end.unwrap_or(0);
    }
    let servers = parts[0].1.len();
    let layout = Layout::new(all, servers).expect("a layout");
    let server = |index: usize| Server {
        name: format!("tcp://s{index}:3334"),
        directory: None,
        capacity: None,
        channels: 1,
        profile: DeviceProfile::hdd_7200(),
        network: crate::servers::Network::default(),
    };
    Plan {
        version: VERSION,
        chosen: "ours".into(),
        files: None,
        trace: Trace { digest: String::new(), requests: 1 },
        expected: Expected {
            predicted_seconds: 1.0,
            simulated_seconds: 1.0,
            def_simulated_seconds: 1.0,
            gain_over_def: 0.0,
            spread: 0.0,
            def_rest: None,
        },
        server: (0..servers).map(server).collect(),
        file: vec![PlannedFile::new(path.as_bytes(), begin + (1 << 40), &layout)],
    }
}

fn commands(target: Target, plan: &Plan) -> Result<Vec<String>, String> {
    script(target, plan).map(|script| script.lines)
}

/// What makes the files, without what is checked before.
fn written(target: Target, plan: &Plan) -> Vec<String> {
    commands(target, plan).expect("commands").split_off(NEW.len() + plan.file.len())
}

#[test]
fn lustre_gets_components_and_several_objects_on_the_faster_targets() {
    let two = plan(
        "/mnt/l/a b",
        &[(Some(1 << 20), &[64 * K, 64 * K, 192 * K]), (None, &[256 * K, 256 * K, 0])],
    );
    assert_eq!(
        written(Target::Lustre, &two),
        ["lfs setstripe -E 1048576 -S 65536 -C 5 -o 0,1,2,2,2 \
          -E eof -S 262144 -c 2 -o 0,1 '/mnt/l/a b'"]
    );
}

/// Components were written as if their stripes began with them: all but the first round of a part went to other
/// targets than planned.
#[test]
fn lustre_counts_stripes_from_the_beginning_of_the_file() {
    let mib = 1 << 20;
    let rounds: [(u64, &[u64], &str); 4] = [
        // 5 stripes of 64 KiB before: those of a round of 3 begin with its third object.
        (320 * K, &[64 * K, 64 * K, 64 * K], "-S 65536 -c 3 -o 1,2,0"),
        (3 * mib, &[mib, 0, mib], "-S 1048576 -c 2 -o 2,0"),
        (4 * mib, &[mib, 0, mib], "-S 1048576 -c 2 -o 0,2"),
        // Still two objects on one target, though no longer side by side.
        (2 * mib, &[mib, 2 * mib, 0], "-S 1048576 -C 3 -o 1,1,0"),
    ];
    for (begin, widths, expected) in rounds {
        let two = plan("/l/f", &[(Some(begin), &[64 * K, 0, 0]), (None, widths)]);
        let lines = written(Target::Lustre, &two);
        let first = format!("lfs setstripe -E {begin} -S 65536 -c 1 -o 0 -E eof");
        assert_eq!(lines, [format!("{first} {expected} /l/f")]);
        // What Lustre makes of it: the first stripe of the part, and each after it, is on the planned server.
        let after = lines[0].split(" -E eof ").nth(1).unwrap();
        let words: Vec<&str> = after.split(' ').collect();
        let stripe: u64 = words[1].parse().unwrap();
        let targets: Vec<usize> = words[5].split(',').map(|it| it.parse().unwrap()).collect();
        let layout = two.file[0].layout(3).unwrap();
        for at in (begin..begin + 12 * mib).step_by(1 << 16) {
            let target = targets[usize::try_from(at / stripe).unwrap() % targets.len()];
            let mut planned = None;
            layout.pieces(at, at + 1, |piece| planned = Some(piece.server));
            assert_eq!(Some(target), planned, "{at}");
        }
    }
    let uneven = plan("/l/f", &[(Some(320 * K), &[64 * K, 0]), (None, &[128 * K, 128 * K])]);
    assert_eq!(
        written(Target::Lustre, &uneven),
        [
            "# part 1: its first stripe has 65536 bytes",
            "lfs setstripe -E 327680 -S 65536 -c 1 -o 0 -E eof -S 131072 -c 2 -o 0,1 /l/f"
        ]
    );
}

/// Scripts were printed as messages are, with what a terminal would obey escaped: other files were made.
#[test]
fn a_shell_reads_each_word_as_it_is_and_a_terminal_shows_it() {
    let names: [&[u8]; 10] = [
        b"/a/plain-1.2_3:4,5",
        b"/a/it's \"$(id)\" `id` \\ $HOME * ; & < > | # %s %d \\n",
        b"/a/\x1b]0;title\x07\x1b[2J",
        b"/a/tab\tand\nline\rs",
        "/a/\u{202e}txt.exe\u{200f}\u{2028}".as_bytes(),
        "/a/ä 日本語".as_bytes(),
        b"/a/\xff\xfe%0",
        b"/a/7\x011234",
        b" ",
        b"",
    ];
    for name in names {
        let word = word(name).unwrap();
        let is_shown = |c: char| c == '\'' || c == '"' || c == '\\' || c.escape_debug().len() == 1;
        assert!(word.chars().all(is_shown), "{word:?}");
        let script = format!("set -- {word}; printf '%s %s' $# \"$1\"");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(output.stdout, [b"1 ", name].concat(), "{word}");
    }
    assert!(word(b"/a\0").unwrap_err().contains("byte 0"));
    assert!(word(b"/a\t\n").unwrap_err().contains("line break"));
}

#[test]
fn names_that_are_no_text_are_written_for_each_file_system() {
    let mut odd = named(&["1.0", "1.1"], "/f/x", &[(None, &[64 * K, 64 * K])]);
    odd.file[0].path = None;
    odd.file[0].path_hex = Some("2f662fff".into());
    let (file, directory) = ("\"$(printf '\\057\\146\\057\\377')\"", "/f");
    for (target, last) in [
        (Target::Lustre, format!("lfs setstripe -S 65536 -c 2 -o 0,1 {file}")),
        (Target::OrangeFs, format!("pvfs2-touch -l 1.0,1.1 {file}")),
        (
            Target::CephFs,
            format!(
                "setfattr -n ceph.file.layout -v 'stripe_unit=65536 stripe_count=2 object_size=4194304 pool=1' {file}"
            ),
        ),
        (Target::BeeGfs, format!("touch {file}")),
    ] {
        let lines = written(target, &odd);
        assert_eq!(lines.last(), Some(&last));
        assert!(target != Target::BeeGfs || lines[1].ends_with(directory), "{lines:?}");
    }
}

#[test]
fn names_are_never_options() {
    let files = plan("-rf", &[(None, &[64 * K, 64 * K])]);
    assert_eq!(written(Target::Lustre, &files), ["lfs setstripe -S 65536 -c 2 -o 0,1 ./-rf"]);
}

#[test]
fn what_lustre_has_only_nearly_is_told() {
    let uneven = plan("/l/f", &[(Some(100_000), &[28 * K, 100 * K]), (None, &[64 * K, 0])]);
    assert_eq!(
        written(Target::Lustre, &uneven),
        [
            "# part 0: what a server has of it differs from the plan by up to 128.6 %",
            "# part 0: stripes of 65536, 131072 bytes instead of 28672, 102400",
            "# part 0: ends at 131072 instead of 100000",
            "lfs setstripe -E 131072 -S 65536 -C 3 -o 0,1,1 -E eof -S 65536 -c 1 -o 0 /l/f"
        ]
    );
    // Shares are as planned, and stripes are not.
    let narrow = plan("/l/f", &[(None, &[0, 4 * K, 4 * K])]);
    assert_eq!(
        written(Target::Lustre, &narrow),
        [
            "# part 0: stripes of 65536 bytes instead of 4096",
            "lfs setstripe -S 65536 -c 2 -o 1,2 /l/f"
        ]
    );
    let many = plan("/l/f", &[(None, &vec![64 * K; 2000])]);
    let error = commands(Target::Lustre, &many).unwrap_err();
    assert!(error.contains("2000 objects; Lustre has at most 1999"), "{error}");
    let near = [(Some(100_000), &[4 * K, 0][..]), (Some(140_000), &[0, 4 * K]), (None, &[K, 0])];
    let error = commands(Target::Lustre, &plan("/l/f", &near)).unwrap_err();
    assert_eq!(error, "/l/f: part 1 ends at 140000, before a stripe of 65536 bytes does");
    let short = plan("/l/f", &[(Some(20_000), &[4 * K, 4 * K]), (None, &[64 * K, 0])]);
    let error = commands(Target::Lustre, &short).unwrap_err();
    assert_eq!(error, "/l/f: part 0 ends at 20000, before a stripe of 65536 bytes does");
}

/// Lustre refuses a component that ends within a stripe; such were written.
#[test]
fn components_of_lustre_end_with_a_stripe() {
    let mib = 1 << 20;
    // As many objects as it takes to end where the plan does.
    for (end, stripe, objects) in [
        (10 * mib, 2 * mib, "-c 2 -o 0,1"),
        (11 * mib, mib, "-C 4 -o 0,0,1,1"),
        (13 * mib / 2, mib / 2, "-C 8 -o 0,0,0,0,1,1,1,1"),
    ] {
        let two = plan("/l/f", &[(Some(end), &[2 * mib, 2 * mib]), (None, &[64 * K, 0])]);
        assert_eq!(
            written(Target::Lustre, &two),
            [format!(
                "lfs setstripe -E {end} -S {stripe} {objects} -E eof -S 65536 -c 1 -o 0 /l/f"
            )]
        );
    }
    // No stripe of Lustre ends there.
    let odd = (11 << 20) + 1000;
    let two = plan("/l/f", &[(Some(odd), &[2 * mib, 2 * mib]), (None, &[64 * K, 0])]);
    let lines = written(Target::Lustre, &two);
    assert_eq!(lines[0], format!("# part 0: ends at {} instead of {odd}", 11 << 20));
}

fn named(names: &[&str], path: &str, parts: &[(Option<u64>, &[u64])]) -> Plan {
    let mut plan = plan(path, parts);
    for (server, name) in plan.server.iter_mut().zip(names) {
        server.name = (*name).to_owned();
    }
    plan
}

#[test]
fn cephfs_gets_a_layout_in_a_pool() {
    let names = ["hdd.0", "hdd.1", "fast-ssd.0", "fast-ssd.1"];
    let one = named(&names, "/ceph/a b", &[(None, &[0, 0, 192 * K, 192 * K])]);
    assert_eq!(
        written(Target::CephFs, &one)[1..],
        [
            "touch '/ceph/a b'",
            "setfattr -n ceph.file.layout -v \
             'stripe_unit=196608 stripe_count=2 object_size=4325376 pool=fast-ssd' '/ceph/a b'"
        ]
    );
}

#[test]
fn beegfs_gets_a_pattern_for_the_directory() {
    let names = ["1.0", "1.1", "2.0", "2.1"];
    let one = named(&names, "/bee/dir/f", &[(None, &[128 * K, 128 * K, 0, 0])]);
    assert_eq!(
        written(Target::BeeGfs, &one)[1..],
        [
            "beegfs-ctl --setpattern --storagepoolid=1 --numtargets=2 --chunksize=131072 /bee/dir",
            "touch /bee/dir/f"
        ]
    );
}

/// Nearly all plans were refused: the search has steps of 4 KiB.
#[test]
fn what_pools_have_only_nearly_is_told() {
    let names = ["1.0", "1.1", "2.0"];
    for (width, cephfs, beegfs) in [(4 * K, 64 * K, 64 * K), (132 * K, 192 * K, 256 * K)] {
        let plan = named(&names, "/f", &[(None, &[width, width, 0])]);
        for (target, made, option) in
            [(Target::CephFs, cephfs, "stripe_unit"), (Target::BeeGfs, beegfs, "chunksize")]
        {
            let lines = written(target, &plan);
            assert_eq!(lines[1], format!("# stripes of {made} bytes instead of {width}"));
            let set = lines.iter().filter(|line| line.contains(&format!("{option}={made} ")));
            assert_eq!(set.count(), 1, "{lines:?}");
        }
    }
}

/// Such plans were refused, or rounded with an error that they do not have.
#[test]
fn stripes_on_one_server_alone_have_any_width() {
    for width in [512, 4 * K, 100 * K, 1 << 40] {
        let plan = named(&["1.0", "2.0"], "/d/f", &[(None, &[0, width])]);
        let expected = [
            (Target::Lustre, "lfs setstripe -S 65536 -c 1 -o 1 /d/f"),
            (Target::OrangeFs, "setfattr -n user.pvfs2.dist_params -v 'strips:0:65536' /d"),
            (
                Target::CephFs,
                "setfattr -n ceph.file.layout -v \
                 'stripe_unit=65536 stripe_count=1 object_size=4194304 pool=2' /d/f",
            ),
            (
                Target::BeeGfs,
                "beegfs-ctl --setpattern --storagepoolid=2 --numtargets=1 --chunksize=65536 /d",
            ),
        ];
        for (target, command) in expected {
            let lines = written(target, &plan);
            assert!(lines.iter().any(|line| line == command), "{lines:?}");
            assert!(!lines.iter().any(|line| line.contains("instead of")), "{lines:?}");
        }
    }
}

/// Its files were given 64 KiB on every server.
#[test]
fn a_plan_that_leaves_files_alone_makes_none() {
    for target in [Target::Lustre, Target::OrangeFs, Target::CephFs, Target::BeeGfs] {
        let mut none = named(&["a", "b"], "/d/f", &[(None, &[64 * K, 64 * K])]);
        none.chosen = Name::Def.text().into();
        let lines = commands(target, &none).expect("nothing to refuse");
        assert!(lines[1..].iter().all(|line| line.starts_with('#')), "{lines:?}");
    }
}

#[test]
fn what_pools_cannot_express_is_refused() {
    let names = ["1.0", "1.1", "2.0"];
    for (widths, why) in [
        ([64 * K, 64 * K, 64 * K], "lies on the pools \"1\" and \"2\""),
        ([64 * K, 128 * K, 0], "65536 and 131072 bytes"),
    ] {
        let plan = named(&names, "/f", &[(None, &widths)]);
        for target in [Target::CephFs, Target::BeeGfs] {
            let error = commands(target, &plan).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
    let two = named(&names, "/f", &[(Some(8), &[1, 1, 0]), (None, &[1, 0, 0])]);
    assert!(commands(Target::CephFs, &two).unwrap_err().contains("2 parts"));
    let wide = named(&names, "/f", &[(None, &[1 << 32, 1 << 32, 0])]);
    let lustre = ["lfs setstripe -S 2147483648 -C 4 -o 0,0,1,1 /f"];
    assert_eq!(written(Target::Lustre, &wide), lustre);
    for target in [Target::CephFs, Target::BeeGfs] {
        let error = commands(target, &wide).unwrap_err();
        assert!(error.contains("stripe of 4294967296 bytes is longer than"), "{error}");
    }
    // Ceph takes the layout, and loses what is written beyond.
    let long = named(&names, "/f", &[(None, &[129 << 20, 129 << 20, 0])]);
    let error = commands(Target::CephFs, &long).unwrap_err();
    assert!(error.contains("stripe of 135266304 bytes is longer than 134217728"), "{error}");
    let unnamed = named(&["a", "b"], "/f", &[(None, &[64 * K, 0])]);
    assert!(commands(Target::CephFs, &unnamed).unwrap_err().contains("no pool in its name"));
    let words = named(&["ssd.0"], "/f", &[(None, &[64 * K])]);
    assert!(commands(Target::BeeGfs, &words).unwrap_err().contains("not the number"));
    let evil = named(&["a;b.0"], "/f", &[(None, &[64 * K])]);
    assert!(commands(Target::CephFs, &evil).unwrap_err().contains("name of a pool"));
}

#[test]
fn orangefs_gets_strips_and_the_order_of_the_servers() {
    let one = plan("/pvfs/it's", &[(None, &[28 * K, 0, 100 * K])]);
    assert_eq!(
        written(Target::OrangeFs, &one)[1..],
        [
            "setfattr -n user.pvfs2.dist_name -v varstrip_dist /pvfs",
            "setfattr -n user.pvfs2.dist_params -v 'strips:0:28672;1:102400' /pvfs",
            "pvfs2-touch -l tcp://s0:3334,tcp://s2:3334 '/pvfs/it'\\''s'"
        ]
    );
    let two = plan("/pvfs/f", &[(Some(8), &[1, 1]), (None, &[1, 0])]);
    let error = commands(Target::OrangeFs, &two).unwrap_err();
    assert!(error.contains("2 parts"), "{error}");
}

/// `new .` looked for a directory of that name, and of two spellings of one file the second found the first in its way when it was made.
#[test]
fn paths_are_those_of_files_and_each_has_one_spelling() {
    let stripes: &[u64] = &[64 * K, 64 * K];
    for (path, made) in
        [("a//b", "a/b"), ("./a", "a"), ("//f/./x", "/f/x"), ("/.x", "/.x"), ("./-rf", "./-rf")]
    {
        let lines = commands(Target::Lustre, &plan(path, &[(None, stripes)])).unwrap();
        assert_eq!(lines[NEW.len()], format!("new {made}"));
        assert!(lines[NEW.len() + 1].ends_with(&format!(" {made}")), "{lines:?}");
    }
    for (path, why) in [
        (".", "the path of a directory"),
        ("/", "the path of a directory"),
        ("a/", "the path of a directory"),
        ("a/.", "the path of a directory"),
        ("..", "the path of a directory"),
        ("a/../b", "it has .. in it"),
    ] {
        let error = commands(Target::BeeGfs, &plan(path, &[(None, stripes)])).unwrap_err();
        assert!(error.starts_with(&format!("{path}: ")) && error.contains(why), "{error}");
    }
    let mut twice = plan("a/b", &[(None, stripes)]);
    twice.file.push(plan("a//b", &[(None, stripes)]).file.remove(0));
    let error = commands(Target::Lustre, &twice).unwrap_err();
    assert_eq!(error, "a//b: the plan has this file twice, also as a/b");
}

/// Scripts passed the capacity of a server without a word: 9.8 MB on one of 8.4 MB.
#[test]
fn lustre_gets_no_more_of_a_server_than_it_holds() {
    let mib = 1 << 20;
    let [part, rest]: [(Option<u64>, &[u64]); 2] =
        [(Some(29 * mib), &[40 * K, 40 * K, 30 * K]), (None, &[64 * K, 64 * K, 0])];
    let mut plan = plan("/l/f", &[part, rest]);
    plan.file[0].bytes = 100 * mib;
    plan.server[2].capacity = Some(8 * mib);
    let lines = written(Target::Lustre, &plan);
    let made = held(&lines, &plan);
    assert!(made[2] <= 8 * mib && made[2] > 7 * mib, "{made:?}: {lines:?}");
    assert!(lines.iter().any(|line| line.contains("has no room for more")), "{lines:?}");
    // With room, as near to the end of the plan as there are stripes.
    plan.server[2].capacity = Some(80 * mib);
    let roomy = written(Target::Lustre, &plan);
    assert!(!roomy.iter().any(|line| line.contains("no room")), "{roomy:?}");
    // Nothing comes after the last part.
    let mut last = self::plan("/l/f", &[(None, &[40 * K, 40 * K, 30 * K])]);
    last.file[0].bytes = 29 * mib;
    last.server[2].capacity = Some(8 * mib);
    let why = commands(Target::Lustre, &last).unwrap_err();
    assert!(why.contains("more of \"tcp://s2:3334\" than that has room for"), "{why}");
}

/// Bytes on each server of what `lfs` makes of the last line.
fn held(lines: &[String], plan: &Plan) -> Vec<u64> {
    let bytes = plan.file[0].bytes;
    let words: Vec<&str> = lines.last().unwrap().split(' ').skip(2).collect();
    let (mut held, mut begin) = (vec![0; plan.server.len()], 0);
    for component in words[..words.len() - 1].chunks(8) {
        let end = component[1].parse().unwrap_or(bytes).min(bytes);
        let stripe: u64 = component[3].parse().unwrap();
        let targets: Vec<usize> = component[7].split(',').map(|it| it.parse().unwrap()).collect();
        while begin < end {
            let next = (begin / stripe * stripe + stripe).min(end);
            held[targets[usize::try_from(begin / stripe).unwrap() % targets.len()]] += next - begin;
            begin = next;
        }
    }
    held
}

/// It was the error of an endless part: of a short one, some servers have nothing at all.
#[test]
fn the_error_of_a_part_of_lustre_is_that_of_its_real_length() {
    let mut short = plan("/l/f", &[(None, &[4 * K; 5])]);
    short.file[0].bytes = 128 * K;
    let lines = written(Target::Lustre, &short);
    // 28 KiB on each of two servers and 24 KiB on the others, of which Lustre makes 64 KiB on each of two.
    assert_eq!(
        lines[0],
        "# part 0: what a server has of it differs from the plan by up to 128.6 %"
    );
    short.file[0].bytes = 320 * K;
    let whole = written(Target::Lustre, &short);
    assert_eq!(
        whole,
        [
            "# part 0: stripes of 65536 bytes instead of 4096",
            "lfs setstripe -S 65536 -c 5 -o 0,1,2,3,4 /l/f"
        ]
    );
}

/// One disk for each file is said with a list of targets or servers; whoever chooses these himself cannot have it.
#[test]
fn a_server_for_each_file_is_expressed_or_refused() {
    let one = |server: usize, path: &str| {
        let mut widths = vec![0; 4];
        widths[server] = 64 * K;
        let layout = Layout::simple(widths);
        PlannedFile::new(path.as_bytes(), 1 << 20, &layout)
    };
    let mut apart = named(&["1.0", "1.1", "1.2", "1.3"], "/d/f", &[(None, &[64 * K; 4])]);
    apart.file = vec![one(2, "/d/a"), one(0, "/d/b")];
    let lustre = ["lfs setstripe -S 65536 -c 1 -o 2 /d/a", "lfs setstripe -S 65536 -c 1 -o 0 /d/b"];
    assert_eq!(written(Target::Lustre, &apart), lustre);
    let orangefs = written(Target::OrangeFs, &apart);
    for command in ["pvfs2-touch -l 1.2 /d/a", "pvfs2-touch -l 1.0 /d/b"] {
        assert!(orangefs.iter().any(|line| line == command), "{orangefs:?}");
    }
    for target in [Target::CephFs, Target::BeeGfs] {
        let why = commands(target, &apart).unwrap_err();
        assert!(why.contains("1 of the 4 servers of the pool \"1\""), "{why}");
    }
    // Any target does for one file, of which BeeGFS has a number.
    apart.file.pop();
    assert!(commands(Target::BeeGfs, &apart).is_ok());
    assert!(commands(Target::CephFs, &apart).is_err());
}
