//! Bad input to the commands that read traces, servers and plans: each says what is wrong with which file and what to
//! do, with a status that is not 0, bounded memory and time, and nothing written.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_trace::{Kind, Op, Process, Request, Source, Writer};

/// Kilobytes of address space, and seconds of a processor, that a command may take.
const LIMITS: &str = "ulimit -v 3000000; ulimit -t 30; exec \"$0\" \"$@\"";

const SERVERS: &str = r#"
[[server]]
name = "disk"
profile = "hdd"
capacity = "1T"

[[server]]
name = "flash"
profile = "ssd"
capacity = "1G"
"#;

const HEADER: &str = "time_s,process,file,op,offset,length";

fn halocline(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", LIMITS]).arg(program!()).args(args).current_dir(dir);
    command.output().unwrap()
}

/// A directory with a good trace, servers and a plan.
fn ground() -> tempfile::TempDir {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::write(dir.join("servers.toml"), SERVERS).unwrap();
    let made = ["trace", "make", "ior", "-p", "2", "-b", "1M", "-t", "64K", "-z", "1"];
    for args in [
        &[&made[..], &["-o", "t.hct"]].concat()[..],
        &["plan", "t.hct", "--servers", "servers.toml", "-o", "plan.toml"],
    ] {
        let output = halocline(dir, args);
        assert!(output.status.success(), "{}", said(&output));
    }
    scratch
}

/// Expects `status` and each of `parts` in what is said, on standard error alone, and no new file.
#[track_caller]
fn refused(dir: &Path, args: &[&str], status: i32, parts: &[&str]) {
    let names = || {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|it| it.unwrap().path()).collect();
        names.sort();
        names
    };
    let before = names();
    let output = halocline(dir, args);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {told}");
    assert_eq!(written(&output), "", "{args:?}: {told}");
    for part in parts {
        assert!(told.contains(part), "{args:?} says {told:?} without {part:?}");
    }
    assert!(!told.contains("panicked"), "{args:?}: {told}");
    assert_eq!(names(), before, "{args:?}");
}

/// Commands that read a trace, which takes the place of `T`.
const READERS: [&[&str]; 7] = [
    &["trace", "show", "T"],
    &["trace", "show", "T", "--cache-sizes", "auto"],
    &["plan", "T", "--servers", "servers.toml", "-o", "new.toml", "--html", "new.html"],
    &["advise", "T", "--servers", "servers.toml"],
    &["simulate", "T", "--servers", "servers.toml"],
    &["simulate", "T", "--servers", "servers.toml", "--cache-size", "1M"],
    &["simulate", "T", "--servers", "servers.toml", "--tier-size", "1M"],
];

fn reading(reader: &[&'static str], trace: &'static str) -> Vec<&'static str> {
    reader.iter().map(|word| if *word == "T" { trace } else { word }).collect()
}

#[test]
fn what_is_no_trace_is_refused_by_each_command() {
    let scratch = ground();
    let dir = scratch.path();
    let good = fs::read(dir.join("t.hct")).unwrap();
    let mut later = good.clone();
    later[8] = 9;
    fs::create_dir(dir.join("dir.hct")).unwrap();
    for (name, bytes) in [
        ("empty.hct", Vec::new()),
        ("head.hct", good[..15].to_vec()),
        ("text.hct", format!("{HEADER}\n").into_bytes()),
        ("later.hct", later),
    ] {
        fs::write(dir.join(name), bytes).unwrap();
    }
    for (trace, what) in [
        ("empty.hct", "it is empty"),
        ("head.hct", "not a trace"),
        ("text.hct", "trace import"),
        ("later.hct", "use a newer Halocline"),
        ("none.hct", "there is no such file; correct the path"),
        ("dir.hct", "dir.hct: cannot be read: is a directory"),
    ] {
        for reader in READERS {
            refused(dir, &reading(reader, trace), 2, &[trace, what]);
        }
    }
}

/// What is whole of a damaged trace is used, and said to be no more than that. Of none there is nothing to use.
#[test]
fn what_is_left_of_a_damaged_trace_is_never_silently_believed() {
    let scratch = ground();
    let dir = scratch.path();
    let good = fs::read(dir.join("t.hct")).unwrap();
    let cut = |bytes: usize| good[..good.len() - bytes].to_vec();
    let mut damaged = good.clone();
    let at = good.len() / 2;
    damaged[at] ^= 1;
    fs::write(dir.join("cut.hct"), cut(10)).unwrap();
    fs::write(dir.join("damaged.hct"), damaged).unwrap();
    for reader in READERS {
        let output = halocline(dir, &reading(reader, "cut.hct"));
        assert!(output.status.success(), "{reader:?}: {}", said(&output));
        assert!(said(&output).contains("cut.hct: "), "{reader:?}: {}", said(&output));
        fs::remove_file(dir.join("new.toml")).ok();
        fs::remove_file(dir.join("new.html")).ok();
    }
    for reader in &READERS[2..] {
        refused(dir, &reading(reader, "damaged.hct"), 2, &["damaged.hct: ", "no requests"]);
    }
    let output = halocline(dir, &["trace", "show", "damaged.hct"]);
    assert!(output.status.success() && said(&output).contains("checksum"), "{}", said(&output));
}

#[test]
fn texts_that_no_tracer_wrote_are_refused_with_their_line() {
    let scratch = ground();
    let dir = scratch.path();
    let one = |row: &str| format!("{HEADER}\n0,1,f,read,0,4096\n{row}\n");
    let csv: [(String, &str); 19] = [
        (String::new(), "line 1: empty"),
        ("\n\n".into(), "line 1: empty"),
        ("a;b;c\n".into(), "line 1: the header is not time_s,process,file,op,offset,length"),
        (one("NaN,1,f,read,0,1"), "line 3: time_s is \"NaN\""),
        (one("inf,1,f,read,0,1"), "line 3: time_s is \"inf\""),
        (one("-1,1,f,read,0,1"), "line 3: time_s is \"-1\""),
        (one("1e300,1,f,read,0,1"), "line 3: time_s is \"1e300\""),
        (one("1,-1,f,read,0,1"), "line 3: process is \"-1\""),
        (one("1,1,f,append,0,1"), "line 3: op is \"append\", not read or write"),
        (one("1,1,f,read,-5,1"), "line 3: offset is \"-5\""),
        (one("1,1,f,read,0,1.5"), "line 3: length is \"1.5\""),
        (one("1,1,f,read,18446744073709551615,2"), "line 3: offset and length reach past"),
        (one("1,1,f,read,9223372036854775807,1"), "line 3: offset and length reach past"),
        (one("1,1,f,read,99999999999999999999,1"), "line 3: offset is"),
        (one("1,1,f,read,0,1\n0.5,1,f,read,0,1"), "line 4: time runs backwards"),
        (one("1,1,f,read,0"), "line 3: 5 fields instead of 6"),
        (one("1,1,,read,0,1"), "line 3: file is \"\", not the name of a file"),
        (one("1,1,a\0b,read,0,1"), "line 3: file is \"a\\0b\", not the name of a file"),
        (one(&format!("1,1,\"{},read,0,1", "x".repeat(2 << 20))), "is a quote never closed?"),
    ];
    for (text, what) in csv {
        fs::write(dir.join("t.csv"), text).unwrap();
        refused(dir, &["trace", "import", "t.csv", "-o", "new.hct"], 2, &["t.csv: ", what]);
    }
    let file = "# DXT, file_id: 1, file_name: /f\n# DXT, rank: 0, hostname: n\n\
                # DXT, write_count: 1, read_count: 0\n";
    let dxt: [(String, &str); 8] = [
        ("# darshan\n".into(), "no requests of DXT in it"),
        (format!("{file}garbage\n"), "line 4: module \"garbage\""),
        (format!("{file} X_POSIX 0 write 0 0 1 NaN 1\n"), "line 4: start is \"NaN\""),
        (format!("{file} X_POSIX 0 write 0 0 1 -1 1\n"), "line 4: start is \"-1\""),
        (format!("{file} X_POSIX 0 write 0 0 1 2 1\n"), "line 4: it ends before it starts"),
        (format!("{file} X_POSIX 0 write 0 -1 1 1 1\n"), "line 4: offset is \"-1\""),
        (format!("{file} X_POSIX 0 write 0 {} 9 1 1\n", u64::MAX), "offset and length reach past"),
        ("#\n X_POSIX 0 write 0 0 1 1 1\n".into(), "line 2: a request before any file"),
    ];
    for (text, what) in dxt {
        fs::write(dir.join("dxt.txt"), text).unwrap();
        refused(dir, &["trace", "import", "dxt.txt", "-o", "new.hct"], 2, &["dxt.txt: ", what]);
    }
    // What is cut off in the middle of a line is a trace, and said to lack something.
    fs::write(dir.join("t.csv"), one("1,1,f,read,0,1").trim_end()).unwrap();
    let output = halocline(dir, &["trace", "import", "t.csv", "-o", "new.hct"]);
    assert!(output.status.success() && said(&output).contains("cut off"), "{}", said(&output));
    // What is read is not written over.
    let import = ["trace", "import", "t.csv", "-o", "t.csv"];
    refused(dir, &import, 2, &["t.csv is what is read", "name another file"]);
}

/// What is no text yet, or a trace already, says what to do; and the mark with which some editors begin a text is none.
#[test]
fn what_is_no_text_yet_says_what_to_do() {
    let scratch = ground();
    let dir = scratch.path();
    let utf16: Vec<u8> =
        format!("\u{feff}{HEADER}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let trace = fs::read(dir.join("t.hct")).unwrap();
    for (bytes, what) in [
        (&b"\x1f\x8b\x08\0"[..], "it is compressed; unpack it first (gunzip)"),
        (b"\x28\xb5\x2f\xfd", "unzstd"),
        (&utf16, "it is UTF-16; make it UTF-8 first"),
        (&trace, "it is a trace already"),
    ] {
        for name in ["odd", "odd.csv", "odd.txt"] {
            fs::write(dir.join(name), bytes).unwrap();
            refused(dir, &["trace", "import", name, "-o", "new.hct"], 2, &[name, what]);
        }
    }
    fs::write(dir.join("marked"), format!("\u{feff}{HEADER}\n0,1,f,read,0,4096\n")).unwrap();
    let output = halocline(dir, &["trace", "import", "marked", "-o", "marked.hct"]);
    assert!(output.status.success(), "{}", said(&output));
}

/// It was written, and then no command took it.
#[test]
fn no_plan_is_written_that_no_command_takes() {
    let scratch = ground();
    let dir = scratch.path();
    for name in [&b""[..], b"a\0b"] {
        let source = Source::new(Kind::Csv);
        let mut writer =
            Writer::new(fs::File::create(dir.join("odd.hct")).unwrap(), &source).unwrap();
        let (file, process) =
            (writer.file(name).unwrap(), writer.process(&Process::default()).unwrap());
        let (start_ns, duration_ns, op, offset, length) = (0, None, Op::Read, 0, 4096);
        writer.push(&Request { start_ns, duration_ns, process, file, op, offset, length }).unwrap();
        writer.finish().unwrap();
        let plan = ["plan", "odd.hct", "--servers", "servers.toml", "-o", "new.toml"];
        refused(dir, &plan, 2, &["odd.hct: no plan can be written", "is not a path"]);
    }
}

/// Traces may be other people's: numbers that no request has are as good as any.
#[test]
fn traces_of_the_largest_numbers_end_soon_and_without_a_panic() {
    let scratch = ground();
    let dir = scratch.path();
    let (most, late) = (i64::MAX, 18_000_000_000_u64);
    let mut text = format!("{HEADER},duration_s\n");
    writeln!(text, "0,0,huge,read,0,{most},0").unwrap();
    writeln!(text, "0,1,huge,write,0,{most},9000000000").unwrap();
    writeln!(text, "1,2,far,write,{},1,", most - 1).unwrap();
    writeln!(text, "1,2,far,write,0,1,").unwrap();
    for number in 0..64 {
        writeln!(text, "{late},{},huge,read,{},{},440000000", number % 4, number, most - number)
            .unwrap();
    }
    fs::write(dir.join("t.csv"), text).unwrap();
    let output = halocline(dir, &["trace", "import", "t.csv", "-o", "huge.hct"]);
    assert!(output.status.success(), "{}", said(&output));
    let large = SERVERS.replace("1T", "4000000T").replace("1G", "4000000T");
    fs::write(dir.join("large.toml"), large).unwrap();
    for reader in READERS {
        for servers in ["servers.toml", "large.toml"] {
            let args = reading(reader, "huge.hct");
            let args: Vec<&str> = args
                .into_iter()
                .map(|word| if word == "servers.toml" { servers } else { word })
                .collect();
            let output = halocline(dir, &args);
            let told = said(&output);
            assert!(matches!(output.status.code(), Some(0..=2)), "{args:?}: {told}");
            assert!(!told.contains("toml"), "{args:?}: {told}");
            assert!(!told.contains("panicked"), "{args:?}: {told}");
        }
    }
    let cached = &READERS[5];
    refused(dir, &reading(cached, "huge.hct"), 2, &["huge.hct: ", "at most"]);
    let planned = &READERS[2];
    refused(dir, &reading(planned, "huge.hct"), 2, &["huge.hct: ", "fit on no server", "capacity"]);
}

/// Files that fill exbibytes: their sums wrapped, and a file tier moved them in 10^12 steps.
#[test]
fn files_as_large_as_all_servers_end_soon_and_without_a_panic() {
    let scratch = ground();
    let dir = scratch.path();
    let bytes = 2_u64 << 60;
    let mut text = format!("{HEADER},duration_s\n");
    // Each comes to the SSD and leaves it for the next; what is read is more than 2^64 bytes on each side.
    for number in 0..20 {
        let (file, offset) = (number % 3, bytes - 4096 * (1 + number / 3));
        writeln!(text, "{number},{file},f{file},read,{offset},4096,0.001").unwrap();
        writeln!(text, "{number},{file},f{file},read,0,{bytes},0.001").unwrap();
    }
    fs::write(dir.join("t.csv"), text).unwrap();
    let output = halocline(dir, &["trace", "import", "t.csv", "-o", "huge.hct"]);
    assert!(output.status.success(), "{}", said(&output));
    // Thirteen and more are shown as classes.
    let servers: String = (0..16).fold(String::new(), |text, number| {
        let kind = if number < 8 { "hdd" } else { "ssd" };
        text + &format!(
            "[[server]]\nname = \"s{number}\"\nprofile = \"{kind}\"\ncapacity = \"500000T\"\n"
        )
    });
    fs::write(dir.join("large.toml"), servers).unwrap();
    let advise = ["advise", "huge.hct", "--servers", "large.toml"];
    let plan = ["plan", "huge.hct", "--servers", "large.toml", "--html", "new.html"];
    let tier = ["simulate", "huge.hct", "--servers", "large.toml", "--tier-size", "4000000T"];
    for args in [&advise[..], &plan, &tier] {
        let output = halocline(dir, args);
        let told = said(&output);
        assert!(matches!(output.status.code(), Some(0..=2)), "{args:?}: {told}");
        assert!(!told.contains("panicked"), "{args:?}: {told}");
    }
}

#[test]
fn servers_that_cannot_be_are_refused_with_their_line() {
    let scratch = ground();
    let dir = scratch.path();
    let with = |from: &str, to: &str| {
        assert!(SERVERS.contains(from));
        SERVERS.replacen(from, to, 1)
    };
    let profile = |keys: &str| with("\"hdd\"", "\"own\"") + "[profile.own]\n" + keys + "\n";
    let many: String = (0..4097).fold(String::new(), |mut text, number| {
        writeln!(text, "[[server]]\nname = \"{number}\"\nprofile = \"hdd\"\ncapacity = 1").unwrap();
        text
    });
    let cases: [(String, &str); 25] = [
        (String::new(), "no server is described; write a [[server]] table for each"),
        ("[[server]]\n".into(), "line 1: missing field `name`"),
        ("{".into(), "line 1: "),
        (with("\"1T\"", "0"), "line 5: capacity is not bytes above 0"),
        (with("\"1T\"", "-1"), "line 5: "),
        (with("\"1T\"", "nan"), "line 5: "),
        (with("\"1T\"", "\"much\""), "line 5: capacity is not bytes above 0"),
        (with("\"1T\"", "\"99999999999E\""), "line 5: capacity is not bytes above 0"),
        (with("\"hdd\"", "\"tape\""), "line 4: no profile is called \"tape\": choose hdd"),
        (with("\"flash\"", "\"disk\""), "two servers are called \"disk\""),
        (with("\"flash\"", "\"\""), "line 8: a server has an empty name"),
        (with("profile", "speed"), "line 4: unknown field `speed`"),
        (profile("kind = \"hdd\"\nrpm = 0"), "rpm is 0"),
        (profile("kind = \"hdd\"\nrpm = nan"), "rpm is NaN"),
        (profile("kind = \"hdd\"\nseek_ms_max = inf"), "seek_ms_max is inf"),
        (profile("kind = \"ssd\"\nchannels = 4294967295"), "channels is 4294967295"),
        (profile("kind = \"ssd\"\nread_mb_per_s = 0"), "read_mb_per_s is 0"),
        (profile("kind = \"drum\""), "drum"),
        (profile("reads = 1"), "neither kind = \"hdd\" or \"ssd\" nor measured times"),
        (format!("{SERVERS}[network]\nconnect_us = -1\n"), "connect_us is -1"),
        (format!("{SERVERS}[network]\nns_per_byte = inf\n"), "ns_per_byte is inf"),
        (format!("{SERVERS}[network]\nns_per_byte = nan\n"), "ns_per_byte is NaN"),
        (format!("{SERVERS}[[disk]]\n"), "unknown field `disk`"),
        (SERVERS.replace("1G", "8000000T").replace("1T", "900000T"), "8 EiB or more together"),
        (many, "more than 4096 servers"),
    ];
    for (text, what) in &cases {
        fs::write(dir.join("odd.toml"), text).unwrap();
        for command in ["plan", "advise", "simulate"] {
            let args = [command, "t.hct", "--servers", "odd.toml"];
            refused(dir, &args, 2, &["odd.toml, line ", what]);
        }
    }
    fs::write(dir.join("odd.toml"), [0xff, 0xfe, 0]).unwrap();
    fs::create_dir(dir.join("dir.toml")).unwrap();
    for (servers, what) in [
        ("none.toml", "there is no such file"),
        ("dir.toml", "dir.toml"),
        ("odd.toml", "odd.toml: "),
    ] {
        for command in ["plan", "advise", "simulate"] {
            refused(dir, &[command, "t.hct", "--servers", servers], 2, &[what]);
        }
    }
}

#[test]
fn what_a_simulation_cannot_have_is_refused() {
    let scratch = ground();
    let dir = scratch.path();
    fs::write(dir.join("disks.toml"), SERVERS.replace("\"ssd\"", "\"hdd\"")).unwrap();
    fs::write(dir.join("small.toml"), SERVERS.replace("1T", "64K").replace("1G", "64K")).unwrap();
    let simulate = ["simulate", "t.hct", "--servers"];
    let cases: [(&str, &[&str], i32, &str); 13] = [
        ("servers.toml", &["--stripe", "0"], 2, "all 0"),
        ("servers.toml", &["--stripe", "9000000T"], 2, "not bytes such as 64K"),
        ("servers.toml", &["--stripe=-4K"], 2, "not bytes such as 64K"),
        ("servers.toml", &["--width", "tape=64K"], 2, "--width tape: no server has this profile"),
        ("servers.toml", &["--width", "hdd=0", "--width", "ssd=0"], 2, "all 0"),
        ("servers.toml", &["--width", "hdd"], 2, "not PROFILE=BYTES"),
        ("servers.toml", &["--cache-size", "2G"], 2, "hold 1073741824 bytes, not 2147483648"),
        ("servers.toml", &["--tier-size", "2G"], 2, "hold 1073741824 bytes, not 2147483648"),
        ("disks.toml", &["--cache-size", "1M"], 2, "describe an SSD"),
        ("disks.toml", &["--tier-size", "1M"], 2, "describe an SSD"),
        ("servers.toml", &["--cache-size", "1M", "--policy", "lru"], 2, "choose from adaptive"),
        ("servers.toml", &["--policy", "never"], 2, "--cache-size and --tier-size"),
        ("servers.toml", &["--tier-size", "1M", "--pace", "open"], 2, "choose closed or think"),
    ];
    for (servers, more, status, what) in cases {
        refused(dir, &[&simulate[..], &[servers], more].concat(), status, &[what]);
    }
    let plan = ["plan", "t.hct", "--servers", "small.toml", "-o", "new.toml"];
    refused(dir, &plan, 2, &["t.hct: ", "of ior.0 fit on no server", "more capacity"]);
    // What is read is not written over, and where it shall be written is looked at first.
    let plan = ["plan", "t.hct", "--servers", "servers.toml"];
    for (more, what) in [
        (["-o", "t.hct"], "t.hct is what is read"),
        (["-o", "servers.toml"], "servers.toml is what is read"),
        (["--html", "t.hct"], "t.hct is what is read"),
        (["-o", "none/plan.toml"], "none"),
        (["-o", "."], "directory"),
    ] {
        refused(dir, &[&plan[..], &more].concat(), 2, &[what]);
    }
    // Nor are two results written to one file, of which the first would be lost.
    let twice = "would be written twice";
    refused(dir, &[&plan[..], &["-o", "new", "--html", "./new"]].concat(), 2, &[twice]);
    std::os::unix::fs::symlink("plan.toml", dir.join("link")).unwrap();
    refused(dir, &[&plan[..], &["-o", "plan.toml", "--html", "link"]].concat(), 2, &[twice]);
    let nowhere = [&plan[..], &["-o", "/dev/null", "--html", "/dev/null"]].concat();
    assert!(halocline(dir, &nowhere).status.success());
}

#[test]
fn what_is_no_plan_is_refused_by_each_command() {
    let scratch = ground();
    let dir = scratch.path();
    fs::create_dir(dir.join("volume")).unwrap();
    let good = fs::read_to_string(dir.join("plan.toml")).unwrap();
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}: {good}");
        good.replacen(from, to, 1)
    };
    let server = &good[good.find("[[server]]").unwrap()..good.find("[[file]]").unwrap()];
    let many: String =
        (0..4097).map(|n| server.replace("\"disk\"", &format!("\"d{n}\""))).collect();
    let cases: [(String, &str); 9] = [
        (String::new(), "not a plan"),
        (good[..good.len() / 2].into(), "not a plan"),
        (with("version = 1", "version = 7"), "it is of version 7; this program reads 1"),
        (with("chosen = \"", "chosen = \"best-"), "no layout is called"),
        (with("name = \"flash\"", "name = \"disk\""), "two servers are called disk"),
        (with("begin = 0", "begin = -1"), "not a plan"),
        (with("begin = 0", "begin = 1"), "begins at 1, not at 0"),
        (with("widths = [", "widths = [18446744073709551615, "), "not a plan"),
        (with("[[server]]", &format!("{many}[[server]]")), "at most 4096"),
    ];
    for (text, what) in &cases {
        fs::write(dir.join("odd.toml"), text).unwrap();
        for args in [
            &["apply", "odd.toml", "volume"][..],
            &["apply", "odd.toml", "volume", "--dry-run"],
            &["verify", "odd.toml", "volume"],
            &["simulate", "t.hct", "--servers", "servers.toml", "--plan", "odd.toml"],
        ] {
            refused(dir, args, 2, &["odd.toml: ", what]);
        }
    }
    for args in [["apply", "plan.toml", "volume"], ["verify", "plan.toml", "volume"]] {
        refused(dir, &args, 2, &["volume", "not a striped volume"]);
    }
    refused(dir, &["apply", "plan.toml", "nowhere"], 2, &["nowhere: there is no such directory"]);
    fs::write(dir.join("other.toml"), SERVERS.replace("disk", "drum")).unwrap();
    let simulate = ["simulate", "t.hct", "--servers", "other.toml", "--plan", "plan.toml"];
    refused(dir, &simulate, 2, &["it is for disk, flash; there are drum, flash"]);
    let slower = format!("{SERVERS}[profile.slow]\nkind = \"hdd\"\nrpm = 5400\n");
    fs::write(dir.join("other.toml"), slower.replace("\"hdd\"\ncap", "\"slow\"\ncap")).unwrap();
    refused(dir, &simulate, 2, &["disk has other service times", "plan again"]);
}

/// A trace in a pipe was called empty when it was read again, and `trace play` waited for the end of its processes' own
/// standard input.
#[test]
fn a_trace_in_a_pipe_is_refused_where_it_is_read_again() {
    let scratch = ground();
    let dir = scratch.path();
    fs::create_dir(dir.join("played")).unwrap();
    let servers = ["--servers", "servers.toml"];
    let cached = [&servers[..], &["--cache-size", "1M"]].concat();
    let each: [(&[&str], &[&str]); 4] = [
        (&["plan"], &servers),
        (&["advise"], &servers),
        (&["simulate"], &cached),
        (&["trace", "play"], &["played"]),
    ];
    for (command, rest) in each {
        let args = [command, &["/dev/stdin"], rest].concat();
        let script = "trace=$1; shift; cat \"$trace\" | timeout 60 \"$@\"";
        let mut piped = Command::new("sh");
        piped.args(["-c", script, "sh", "t.hct"]).arg(program!()).args(&args).current_dir(dir);
        let output = piped.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains("it is a pipe"), "{args:?}: {}", said(&output));
    }
}
