//! Each target over its seeds and changes of these.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use halocline_model::request::Direction;
use halocline_testkit::fuzz_target::run;
use serde_json::json;

use super::*;
use crate::control::{JobChange, ProcessHint, Question, Request, RuleChange};

fn lines(requests: &[(&'static str, Request)]) -> Vec<(&'static str, Vec<u8>)> {
    let line = |request| serde_json::to_vec(request).unwrap();
    requests.iter().map(|(name, request)| (*name, line(request))).collect()
}

#[test]
fn hostile_configurations() {
    let text = "emulate = \"2xslow+ssd\"\nsize = \"2G\"\ncdt_entries = 100\npin = [\"*.{idx,h5}\"]\nmode = \"write-through\"\n\
        max_dirty_age = \"30s\"\n[profile.slow]\nkind = \"hdd\"\nrpm = 5400.0\n[device.\"/mnt/ssd\"]\n\
        read = { startup_sequential_ps = 1, startup_random_ps = 2, per_byte_ps = 3 }\n\
        write = { startup_sequential_ps = 4, startup_random_ps = 5, per_byte_ps = 6 }\n";
    run("api_config", &[("some", text.into())], 2_000, config);
}

#[test]
fn hostile_values_of_options() {
    let config = Config::default();
    let seeds: Vec<(&str, Vec<u8>)> = (0..)
        .zip(OPTIONS)
        .map(|(which, option)| {
            (option.key, [&[which][..], (option.get)(&config).as_bytes()].concat())
        })
        .collect();
    run("api_option", &seeds, 20_000, option);
}

#[test]
fn hostile_bindings() {
    let binding = Binding {
        origin: PathBuf::from("/mnt/disks"),
        origin_inode: 12,
        origin_born_ns: 34,
        cache_servers: 4,
        cache_stripe: 65_536,
        groups: 2,
    };
    let text = toml::to_string(&binding).unwrap();
    run("api_binding", &[("four-servers", text.into_bytes())], 2_000, super::binding);
}

#[test]
fn hostile_rules() {
    let json = br#"{"pin":["*.{idx,h5}","in/**/[a-c]?.dat"],"exclude":["tmp/**"]}"#;
    run("api_rules", &[("some", json.to_vec())], 1_000, rules);
}

#[test]
fn hostile_requests() {
    let odd = OsString::from_vec(vec![b'a', 0xff]);
    let question = Question {
        path: "d/f".into(),
        offset: 4096,
        length: 8192,
        direction: Direction::Write,
        processes: Some(4),
    };
    let hint = ProcessHint { pid: 12, rank: Some(1), size: Some(4), ..ProcessHint::default() };
    let job = "{\"job\":\"j\",\"references\":[\"a\"]}".to_owned();
    let requests = [
        ("status", Request::Status {}),
        ("locate", Request::Locate { path: "d/f".into(), range: Some((4096, 1 << 40)) }),
        ("flush", Request::Flush { path: PathBuf::new(), dry_run: true }),
        ("jobs", Request::Jobs(JobChange::Add(job.clone()))),
        ("job-places", Request::JobPlaces(job)),
        ("explain", Request::Explain(question)),
        ("hint", Request::Hint(hint)),
        ("warm", Request::Warm { paths: vec!["a".into(), odd.into()], dry_run: false }),
        ("rules", Request::Rules(RuleChange::Pin("*.h5".to_owned()))),
    ];
    run("api_request", &lines(&requests), 20_000, request);
}

#[test]
fn hostile_answers() {
    let seed = |value: serde_json::Value| serde_json::to_vec(&value).unwrap();
    let report = serde_json::to_value(crate::control::Report::default()).unwrap();
    let seeds = [
        ("report", seed(json!({ "ok": report }))),
        ("error", seed(json!({ "error": { "message": "no", "errno": 5 } }))),
        ("ending", seed(json!({ "ok": true }))),
        ("cached", seed(json!({ "ok": { "files": [], "more": 0 } }))),
    ];
    run("api_answer", &seeds, 5_000, answer);
}

#[test]
fn hostile_claims() {
    let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 12345 @halocline/1/at/803:2/rw/00112233aabbccdd\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 12346 @halocline/1/in/803:ff/sh:1:2/0000000000000001\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 12347 /run/socket\n";
    let told = r#"{"dir":"/mnt/disks","inside":[97,255],"cache":"/mnt/ssd"}"#;
    run("api_claims", &[("table", table.into()), ("told", told.into())], 5_000, claims);
}

#[test]
fn hostile_acls() {
    run("api_acl", &crate::control::claim::acl_fuzzing::seeds(), 20_000, acl);
}

#[test]
fn hostile_processes() {
    let told = b"12 (a) b) S 1 34 5\0PATH=/bin\0HALOCLINE_JOB=align 2\0HOME=/";
    run("api_opener", &[("in-a-job", told.to_vec())], 20_000, opener);
}

#[test]
fn hostile_job_files_are_refused_or_within_bounds() {
    let here = r#"{"job":"j","references":["a/b",{"path":"c","repeat":3},{"path":"d"}]}"#;
    let nodes = r#"{"job":"j","nodes":{"n1":["a"],"*":["b","b"]}}"#;
    let seeds = [("here", here.into()), ("nodes", nodes.into())];
    run("api_job_file", &seeds, 10_000, job_file);
}

#[test]
fn hostile_lists_of_mounts() {
    run("api_mounts", &crate::control::mount::fuzzing::seeds(), 5_000, mounts);
}
