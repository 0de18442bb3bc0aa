//! Plans to disk and back, and what is refused.

use super::*;
use halocline_model::profile::DeviceProfile;

use crate::servers::Network;

fn plan() -> Plan {
    let server = |name: &str, profile, capacity| Server {
        name: name.into(),
        directory: Some(format!("/mnt/{name}").into()),
        capacity,
        channels: 1,
        profile,
        network: Network::default(),
    };
    let layout = Layout::new(
        vec![
            Part { begin: 0, end: Some(40960), widths: vec![16384, 4096] },
            Part { begin: 40960, end: None, widths: vec![65536, 0] },
        ],
        2,
    );
    let layout = layout.expect("a layout");
    Plan {
        version: VERSION,
        chosen: "ours".into(),
        files: Some(2),
        trace: Trace { digest: "xxh3-128:00".into(), requests: 7 },
        expected: Expected {
            predicted_seconds: 1.0,
            simulated_seconds: 1.5,
            def_simulated_seconds: 3.0,
            gain_over_def: 1.0,
            spread: 0.01,
            def_rest: Some(Rest::Default),
        },
        server: vec![
            server("disk", DeviceProfile::hdd_7200(), None),
            server("ssd", DeviceProfile::ssd_generic(), Some(8192)),
        ],
        file: vec![
            PlannedFile::new(b"/data/a", 100_000, &layout),
            PlannedFile::new(b"/data/\xff", 1, &layout),
        ],
    }
}

#[test]
fn plans_survive_the_way_to_disk_and_back() {
    let text = plan().to_toml();
    let read = Plan::parse(&text).expect("a plan");
    assert_eq!(read, plan());
    assert_eq!(read.file[1].path_bytes().as_deref(), Some(b"/data/\xff".as_slice()));
}

/// Regression: plans had no networks, so that `verify --trace` took each for a drift of the server's device.
#[test]
fn a_plan_keeps_the_network_of_each_server_and_an_older_one_has_none() {
    let mut far = plan();
    far.server[0].network = Network { connect_ps: 50_000_000, per_byte_ps: 8_000 };
    let text = far.to_toml();
    assert_eq!(Plan::parse(&text).expect("a plan"), far);
    let older = plan().to_toml();
    assert!(text.contains("network") && !older.contains("network"), "{older}");
    assert_eq!(Plan::parse(&older).expect("a plan").server[0].network, Network::default());
}

/// Parsed at once, 25 MB took 1.9 GB of memory.
#[test]
fn long_plans_are_read_table_by_table() {
    let mut long = plan();
    let many = long.file[0].part.clone();
    for number in 0..30_000 {
        let path = format!("/data/{number}/{}", "x".repeat(100));
        let file = PlannedFile {
            part: many.clone(),
            ..PlannedFile::new(path.as_bytes(), 1, &Layout::simple(vec![1, 1]))
        };
        long.file.push(file);
    }
    long.files = None;
    let text = long.to_toml();
    assert!(text.len() > WHOLE_BYTES_MAX, "{}", text.len());
    assert!(Plan::parse(&text).expect("a plan") == long);
    let last = text.rfind("begin = 40960").expect("a part");
    let line = text[..last].lines().count() + 1;
    let (before, after) = text.split_at(last);
    let wrong = format!("{before}start = 40960{}", &after["begin = 40960".len()..]);
    let error = Plan::parse(&wrong).unwrap_err().to_string();
    assert!(error.contains(&format!("line {line}: ")) && error.contains("start"), "{error}");
    // Nothing else stands behind a file, and no table is longer than one can be.
    Plan::parse(&format!("{text}\n[other]\n")).unwrap_err();
    let endless = text + &format!("\n[[file]]\npath = \"{}\"\n", "x".repeat(TABLE_BYTES_MAX));
    let error = Plan::parse(&endless).unwrap_err().to_string();
    assert!(error.contains("a table of more than"), "{error}");
}

/// Regression: a plan of 13 files that was cut off after 9 was a plan of 9.
#[test]
fn no_beginning_of_a_plan_is_taken_for_it() {
    let text = plan().to_toml();
    for (end, _) in text.char_indices().filter(|(end, _)| *end < text.trim_end().len()) {
        if let Ok(part) = Plan::parse(&text[..end]) {
            panic!("{end} of {} bytes: {part:?}", text.len());
        }
    }
    let first = text.rfind("[[file]]").expect("a file");
    let error = Plan::parse(&text[..first]).unwrap_err().to_string();
    assert!(error.contains("files = 2, and has 1: it is cut off"), "{error}");
    let fewer = text.replacen("files = 2", "files = 1", 1);
    let error = Plan::parse(&fewer).unwrap_err().to_string();
    assert!(error.contains("files = 1, and has 2"), "{error}");
    // Of a plan of an earlier version nobody can tell.
    let earlier = text.replacen("files = 2\n", "", 1);
    assert_eq!(Plan::parse(&earlier).expect("a plan").file.len(), 2);
}

#[test]
fn what_is_no_plan_is_refused_and_says_why() {
    let good = plan().to_toml();
    for (from, to, what) in [
        ("version = 1", "version = 2", "version 2"),
        ("chosen = \"ours\"", "chosen = \"best\"", "best"),
        ("widths = [16384, 4096]", "widths = [16384]", "1 widths for 2 servers"),
        ("widths = [65536, 0]", "widths = [0, 0]", "uses no server"),
        // Written out for Lustre it overflowed.
        ("widths = [65536, 0]", "widths = [18446744073709551615, 0]", "a stripe of"),
        ("begin = 40960", "begin = 40961", "begins at 40961"),
        ("name = \"ssd\"", "name = \"disk\"", "two servers"),
        ("path_hex = \"2f646174612fff\"", "path = \"/data/a\"", "twice"),
        ("path_hex = \"2f646174612fff\"", "path_hex = \"2f6\"", "of file 1 is not"),
        ("path_hex = \"2f646174612fff\"", "path_hex = \"2g\"", "of file 1 is not"),
        ("path_hex = \"2f646174612fff\"\n", "", "file 1 needs one of"),
        ("path_hex = \"2f646174612fff\"", "path_hex = \"00\"", "not a path"),
        ("path_hex = \"2f646174612fff\"", "path_hex = \"\"", "not a path"),
        ("gain_over_def = 1.0", "gain_over_def = nan", "gain_over_def is NaN"),
        ("simulated_seconds = 1.5", "simulated_seconds = -inf", "simulated_seconds is -inf"),
        ("chosen =", "choosen =", "choosen"),
    ] {
        assert!(good.contains(from), "{from}: {good}");
        let error = Plan::parse(&good.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(error.contains(what), "{to}: {error}");
    }
    Plan::parse("").unwrap_err();
    // One line, without what stands there: it may be another file's.
    let error = Plan::parse("version = 1\n\nsecret\n").unwrap_err().to_string();
    assert!(error.contains("line 3: ") && !error.contains('\n'), "{error}");
    assert!(!Plan::parse("root:*:secret:0").unwrap_err().to_string().contains("secret"));
}

#[test]
fn a_plan_for_other_servers_is_refused() {
    let plan = plan();
    plan.check_servers(&plan.server).expect("the same");
    let mut other = plan.server.clone();
    other[1].profile = DeviceProfile::ssd_revodrive_x2();
    assert!(plan.check_servers(&other).unwrap_err().to_string().contains("ssd has other"));
    let mut far = plan.server.clone();
    far[1].network.per_byte_ps = 8_000;
    let error = plan.check_servers(&far).unwrap_err().to_string();
    assert!(error.contains("ssd has another network path"), "{error}");
    other.swap(0, 1);
    let error = plan.check_servers(&other).unwrap_err().to_string();
    assert!(error.contains("it is for disk, ssd; there are ssd, disk"), "{error}");
}
