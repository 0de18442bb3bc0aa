//! The pure functions as JSON lines: what `halocline model` answers (docs/MODEL.md).

mod cost;
mod layout;
mod psa;
mod tier;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::exact::Exact;

/// Limit of sizes and offsets: sums and products then fit exact arithmetic.
const SIZE_MAX: u64 = 1 << 62;
/// Limit of times: 13 days in picoseconds.
const TIME_MAX_PS: u64 = 1 << 60;
/// Limit of the times of one byte: 4 milliseconds.
const PER_BYTE_MAX_PS: u64 = 1 << 32;
/// Limit of processes.
const PROCESSES_MAX: u64 = 1 << 20;
/// Limit of servers and groups of one side.
const SERVERS_MAX: u64 = 4096;

#[derive(Debug, Deserialize)]
#[serde(tag = "query")]
enum Query {
    #[serde(rename = "layout.uniform")]
    LayoutUniform(layout::Uniform),
    #[serde(rename = "layout.varied")]
    LayoutVaried(layout::Varied),
    #[serde(rename = "layout.grouped_2d")]
    LayoutGrouped(layout::Grouped),
    #[serde(rename = "cost.sla")]
    CostSla(cost::Sla),
    #[serde(rename = "cost.s4d")]
    CostS4d(cost::S4d),
    #[serde(rename = "psa.cell")]
    PsaCell(psa::Cell),
    #[serde(rename = "psa.plan")]
    PsaPlan(psa::Plan),
    #[serde(rename = "psa.classify")]
    PsaClassify(psa::Classify),
    #[serde(rename = "tier.replay")]
    TierReplay(tier::Replay),
}

/// Answers one line.
///
/// # Errors
/// What is wrong with the line, for `{"error": ...}`.
pub fn answer(line: &str) -> Result<Value, String> {
    match serde_json::from_str(line).map_err(|error| error.to_string())? {
        Query::LayoutUniform(query) => query.answer(),
        Query::LayoutVaried(query) => query.answer(),
        Query::LayoutGrouped(query) => query.answer(),
        Query::CostSla(query) => query.answer(),
        Query::CostS4d(query) => query.answer(),
        Query::PsaCell(query) => query.answer(),
        Query::PsaPlan(query) => query.answer(),
        Query::PsaClassify(query) => query.answer(),
        Query::TierReplay(query) => query.answer(),
    }
}

/// `value` if it lies in `least..=most`; the error names it.
fn within(name: &str, value: u64, least: u64, most: u64) -> Result<u64, String> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{name} is {value}, outside {least}..={most}"))
    }
}

/// A number of servers, groups or the like.
fn servers(name: &str, value: u64) -> Result<u32, String> {
    let value = within(name, value, 1, SERVERS_MAX)?;
    u32::try_from(value).map_err(|error| error.to_string())
}

/// A cost: exactly, and in seconds for people.
fn time(ps: Exact) -> Value {
    json!({"exact_ps": ps.to_string(), "seconds": ps.to_f64() / 1e12})
}

/// Whole picoseconds as `num/den`.
fn whole(ps: i128) -> Value {
    Value::String(Exact::whole(ps).to_string())
}

#[cfg(test)]
mod tests {
    use proptest::strategy::Strategy;

    use super::*;

    #[track_caller]
    fn asked(line: &str, expected: &Value) {
        assert_eq!(&answer(line).expect("an answer"), expected);
    }

    #[test]
    fn worked_layout_examples() {
        asked(
            r#"{"query":"layout.uniform","f":65536,"r":131072,"str":65536,"M":8}"#,
            &json!({"m":2,"s_m":65536,"per_server":[
                {"server":1,"local_offset":0,"length":65536},
                {"server":2,"local_offset":0,"length":65536}]}),
        );
        asked(
            r#"{"query":"layout.varied","widths":[4096,8192],"f":0,"r":6144}"#,
            &json!({"touched":2,"per_server":[
                {"server":0,"local_offset":0,"length":4096},
                {"server":1,"local_offset":0,"length":2048}]}),
        );
        asked(
            r#"{"query":"layout.grouped_2d","N":4,"g":2,"owner":3,"str":65536,"f":0,"r":65536}"#,
            &json!({"group":1,"group_servers":[2,3],"m":1,"s_m":65536,
                "per_server":[{"server":2,"local_offset":0,"length":65536}]}),
        );
    }

    #[test]
    fn a_worked_example_of_the_sla_cost() {
        let line = r#"{"query":"cost.sla","mode":"spec","f":0,"r":8192,"str":65536,"M":8,"N":4,"p":1,"g":2,"alpha_H_ps":1000,"beta_H_ps_per_byte":2,"alpha_S_ps":10,"beta_S_ps_per_byte":1}"#;
        let said = answer(line).expect("an answer");
        assert_eq!(said["H"]["m"], 1);
        assert_eq!(said["H"]["s"], 8192);
        assert_eq!(said["H"]["a_ps"], "1000/1");
        assert_eq!(said["H"]["b_ps"], "1000/1");
        assert_eq!(said["H"]["T"]["exact_ps"], "17384/1");
        assert_eq!(said["S"]["2d"]["T"]["exact_ps"], "8202/1");
        assert_eq!(said["B"]["1dh"]["exact_ps"], "9182/1");
        assert_eq!(said["best_layout"], "1dh");
        assert_eq!(said["best_set"], json!(["1dh", "1dv", "2d"]));
        assert_eq!(said["critical"], true);
        let without = answer(&line.replace("\"g\":2", "\"g\":3")).expect("an answer");
        assert!(without["S"].get("2d").is_none() && without["B"].get("2d").is_none());
    }

    #[test]
    fn s4d_by_hand() {
        asked(
            r#"{"query":"cost.s4d","f":0,"r":100,"str":64,"M":2,"N":1,"F_d_ps":99,"R_ps":4,"S_ps":10,"beta_D_ps_per_byte":2,"beta_C_ps_per_byte":3}"#,
            // F(d) is clamped to S: a = b = 14; T_D = 14 + 64*2; T_C = 100*3.
            &json!({"m":2,"s_m":64,"n":1,"s_n":100,"a_ps":"14/1","b_ps":"14/1",
                "T_D":time(Exact::whole(142)),"T_C":time(Exact::whole(300)),
                "B":time(Exact::whole(-158)),"critical":false}),
        );
    }

    #[test]
    fn a_worked_example_of_a_tier_replay() {
        let said = answer(
            r#"{"query":"tier.replay","policy":"heuristic","capacity":100,"sizes":{"F1":20,"F2":40,"F3":9,"F4":40},"refs":["F1","F2","F3","F4","F3","F1","F2","F4","F3"]}"#,
        )
        .expect("an answer");
        assert_eq!(
            (&said["read"], &said["evicted"], &said["hits"]),
            (&json!(127), &json!(9), &json!(3))
        );
        assert_eq!(said["steps"][3], json!(["admit", "F4", ["F3"]]));
        assert_eq!(said["steps"][4], json!(["bypass", "F3", []]));
        assert_eq!(said["steps"][5], json!(["hit", "F1", []]));
        assert_eq!(said["final"], json!(["F1", "F2", "F4"]));
    }

    const PARAMS: &str = r#"{"p":16,"c":2,"m":8,"n":8,"e_ps":100000000,"t_ps_per_byte":8000,"alpha_h_ps":10000000000,"beta_h_ps_per_byte":10000,"alpha_s_ps":100000000,"beta_s_ps_per_byte":2000}"#;

    #[test]
    fn psa_answers() {
        let cell = answer(&format!(
            r#"{{"query":"psa.cell","params":{PARAMS},"S":1048576,"h":122880,"s":8192}}"#
        ))
        .expect("an answer");
        assert_eq!(cell["T_het"]["exact_ps"], "199638016000/1");
        let plan = answer(&format!(
            r#"{{"query":"psa.plan","params":{PARAMS},"S":1048576,"Cs_per_sserver":8192000,"k":1000,"step":4096}}"#
        ))
        .expect("an answer");
        assert_eq!(plan["candidates"], 17);
        assert_eq!(
            plan["choice_last"],
            *plan["argmin_1e9"].as_array().expect("a list").last().expect("one")
        );
        assert_eq!(plan["pa_allow_zero"]["h"], 0);
        asked(
            r#"{"query":"psa.classify","S":100,"j":1,"requests":[{"offset":0,"length":100},{"offset":100,"length":1},{"offset":50,"length":100}]}"#,
            &json!({"types":["het","hom","straddle"]}),
        );
    }

    #[test]
    fn the_largest_inputs_fit_exact_arithmetic() {
        let (size, time, byte) = (SIZE_MAX, TIME_MAX_PS, PER_BYTE_MAX_PS);
        for mode in ["spec", "paper"] {
            for (str, r) in [(1, size), (size, size), (4097, size - 1)] {
                answer(&format!(
                    r#"{{"query":"cost.sla","mode":"{mode}","f":{size},"r":{r},"str":{str},"M":4096,"N":4095,"p":1048576,"g":63,"alpha_H_ps":{time},"beta_H_ps_per_byte":{byte},"alpha_S_ps":{time},"beta_S_ps_per_byte":{byte}}}"#
                ))
                .expect("an answer");
            }
        }
        let (bytes, byte) = (1u64 << 38, 1u64 << 24);
        answer(&format!(
            r#"{{"query":"psa.plan","params":{{"p":1048576,"c":1048576,"m":1021,"n":1024,"e_ps":{time},"t_ps_per_byte":{byte},"alpha_h_ps":{time},"beta_h_ps_per_byte":{byte},"alpha_s_ps":{time},"beta_s_ps_per_byte":{byte}}},"S":{bytes},"Cs_per_sserver":{size},"k":1048576,"step":1048576}}"#
        ))
        .expect("an answer");
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (line, part) in [
            ("", "EOF"),
            ("[]", "query"),
            (r#"{"query":"layout.cubic"}"#, "layout.cubic"),
            (r#"{"query":"layout.uniform","f":0,"r":1,"str":0,"M":8}"#, "str is 0"),
            (r#"{"query":"layout.uniform","f":0,"r":1,"str":1,"M":0}"#, "M is 0"),
            (r#"{"query":"layout.uniform","f":-1,"r":1,"str":1,"M":1}"#, "-1"),
            (r#"{"query":"layout.uniform","f":0,"r":1,"str":1,"M":1,"x":1}"#, "x"),
            (r#"{"query":"layout.varied","widths":[0,0],"f":0,"r":1}"#, "widths"),
            (
                r#"{"query":"layout.grouped_2d","N":4,"g":3,"owner":0,"str":1,"f":0,"r":1}"#,
                "divide",
            ),
            (r#"{"query":"layout.uniform","f":18446744073709551615,"r":1,"str":1,"M":1}"#, "f is"),
            (r#"{"query":"tier.replay","policy":"mru","capacity":1,"sizes":{},"refs":[]}"#, "mru"),
            (r#"{"query":"tier.replay","policy":"lru","capacity":1,"sizes":{},"refs":["A"]}"#, "A"),
        ] {
            let error = answer(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    /// Regression: a round of stripes with more bytes than can be counted wrapped around.
    #[test]
    fn stripes_larger_than_any_file_lie_on_the_first_server() {
        asked(
            r#"{"query":"layout.uniform","f":1,"r":8,"str":4611686018427387904,"M":4096}"#,
            &json!({"m":1,"s_m":8,"per_server":[{"server":0,"local_offset":1,"length":8}]}),
        );
    }

    /// Every number of every query, replaced by others: the result is an answer or an error.
    fn with_numbers(line: &str, numbers: &[u64]) -> String {
        let (mut out, mut rest, mut taken) = (String::new(), line, numbers.iter().cycle());
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let digits = &rest[at..];
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            out.push_str(&rest[..at]);
            // A digit within a word is not a number: s4d, grouped_2d, F1.
            let is_number = rest[..at].ends_with([':', '[', ',']);
            match taken.next().filter(|_| is_number) {
                Some(number) => out.push_str(&number.to_string()),
                None => out.push_str(&digits[..end]),
            }
            rest = &digits[end..];
        }
        out.push_str(rest);
        out
    }

    const QUERIES: [&str; 9] = [
        r#"{"query":"layout.uniform","f":0,"r":1,"str":1,"M":8}"#,
        r#"{"query":"layout.varied","widths":[1,2],"f":0,"r":1}"#,
        r#"{"query":"layout.grouped_2d","N":4,"g":2,"owner":3,"str":1,"f":0,"r":1}"#,
        r#"{"query":"cost.sla","mode":"paper","f":0,"r":1,"str":1,"M":8,"N":4,"p":1,"g":2,"alpha_H_ps":1,"beta_H_ps_per_byte":2,"alpha_S_ps":1,"beta_S_ps_per_byte":1}"#,
        r#"{"query":"cost.s4d","f":0,"r":1,"str":6,"M":2,"N":1,"F_d_ps":9,"R_ps":4,"S_ps":1,"beta_D_ps_per_byte":2,"beta_C_ps_per_byte":3}"#,
        r#"{"query":"psa.cell","params":{"p":1,"c":2,"m":8,"n":8,"e_ps":1,"t_ps_per_byte":8,"alpha_h_ps":1,"beta_h_ps_per_byte":1,"alpha_s_ps":1,"beta_s_ps_per_byte":2},"S":1,"h":1,"s":8}"#,
        r#"{"query":"psa.plan","params":{"p":1,"c":2,"m":8,"n":8,"e_ps":1,"t_ps_per_byte":8,"alpha_h_ps":1,"beta_h_ps_per_byte":1,"alpha_s_ps":1,"beta_s_ps_per_byte":2},"S":1,"Cs_per_sserver":8,"k":1,"step":4}"#,
        r#"{"query":"psa.classify","S":1,"j":1,"requests":[{"offset":0,"length":1}]}"#,
        r#"{"query":"tier.replay","policy":"foresight","capacity":1,"sizes":{"A":2,"B":4},"refs":["A","B","A"]}"#,
    ];

    proptest::proptest! {
        #[test]
        fn absurd_numbers_are_answered_or_refused(
            query in 0..QUERIES.len(),
            numbers in proptest::collection::vec(
                proptest::prop_oneof![
                    proptest::prelude::any::<u64>(),
                    0..20u64,
                    (0..64u32).prop_map(|bit| 1 << bit),
                    (0..64u32).prop_map(|bit| (1 << bit) - 1),
                    proptest::prelude::Just(u64::MAX),
                ],
                20,
            ),
        ) {
            let _ = answer(&with_numbers(QUERIES[query], &numbers));
        }

        #[test]
        fn any_text_is_answered_or_refused(text: String, query in 0..QUERIES.len(), cut in 0..60usize) {
            let _ = answer(&text);
            let line = QUERIES[query];
            let _ = answer(&format!("{}{text}{}", &line[..cut.min(line.len())], &line[cut.min(line.len())..]));
        }
    }
}
