//! `halocline model`: the examples of the interface's description, answered by the command.

use std::io::Write;
use std::process::{Command, Stdio};

use halocline_testkit::program;
use serde_json::{Value, json};

/// Questions, answers in order, and the exit status.
fn ask(input: &str) -> (Vec<Value>, Option<i32>) {
    let mut child = Command::new(program!())
        .arg("model")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), output.status.code())
}

#[test]
fn layouts_are_answered_as_described() {
    let input = r#"
{"query":"layout.uniform","f":65536,"r":131072,"str":65536,"M":8}
{"query":"layout.varied","widths":[4096,8192],"f":0,"r":6144}
{"query":"layout.grouped_2d","N":4,"g":2,"owner":3,"str":65536,"f":0,"r":65536}
"#;
    let (answers, status) = ask(input);
    assert_eq!(status, Some(0));
    let part = |server: u32, local_offset: u64, length: u64| json!({"server": server, "local_offset": local_offset, "length": length});
    assert_eq!(
        answers,
        [
            json!({"m": 2, "s_m": 65536, "per_server": [part(1, 0, 65536), part(2, 0, 65536)]}),
            json!({"touched": 2, "per_server": [part(0, 0, 4096), part(1, 0, 2048)]}),
            json!({"group": 1, "group_servers": [2, 3], "m": 1, "s_m": 65536,
                   "per_server": [part(2, 0, 65536)]}),
        ]
    );
}

#[test]
fn costs_are_exact() {
    let input = r#"{"query":"cost.sla","mode":"spec","f":0,"r":8192,"str":65536,"M":8,"N":4,"p":1,"g":2,"alpha_H_ps":1000,"beta_H_ps_per_byte":2,"alpha_S_ps":10,"beta_S_ps_per_byte":1}"#;
    let (answers, status) = ask(input);
    assert_eq!(status, Some(0));
    let answer = &answers[0];
    // alpha_H + 8192 * beta_H, and alpha_S + 8192 * beta_S.
    assert_eq!(answer["H"]["T"]["exact_ps"], "17384/1", "{answer}");
    assert_eq!(answer["S"]["1dh"]["T"]["exact_ps"], "8202/1", "{answer}");
    assert_eq!(answer["best_layout"], "1dh");
    assert_eq!(answer["best_set"], json!(["1dh", "1dv", "2d"]));
    assert_eq!(answer["critical"], true);
}

#[test]
fn a_bad_line_is_answered_and_told_at_the_end() {
    let good = r#"{"query":"layout.uniform","f":0,"r":1,"str":4096,"M":2}"#;
    let (answers, status) = ask(&format!("{good}\nnot json\n{{\"query\":\"weather\"}}\n{good}\n"));
    assert_eq!(status, Some(1));
    assert_eq!(answers.len(), 4);
    assert!(answers[1]["error"].is_string() && answers[2]["error"].is_string());
    assert_eq!(answers[0], answers[3], "later lines are answered all the same");
}
