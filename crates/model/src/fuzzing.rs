//! Bodies of this crate's fuzz targets (`fuzz/`). They are called by cargo-fuzz, and by the tests below over the same
//! seeds (docs/TESTING.md, fuzz targets).

/// A line of `halocline model`: an answer or an error, whatever its numbers.
pub fn query(line: &[u8]) {
    let Ok(line) = std::str::from_utf8(line) else { return };
    if let Ok(value) = crate::query::answer(line) {
        assert!(value.is_object(), "{value}");
    }
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;

    #[test]
    fn hostile_queries() {
        let seeds = [
            ("varied", r#"{"query":"layout.varied","widths":[1,2],"f":0,"r":1}"#),
            (
                "grouped",
                r#"{"query":"layout.grouped_2d","N":4,"g":2,"owner":3,"str":1,"f":0,"r":1}"#,
            ),
            (
                "s4d",
                r#"{"query":"cost.s4d","f":0,"r":1,"str":6,"M":2,"N":1,"F_d_ps":9,"R_ps":4,"S_ps":1,"beta_D_ps_per_byte":2,"beta_C_ps_per_byte":3}"#,
            ),
            (
                "plan",
                r#"{"query":"psa.plan","params":{"p":1,"c":2,"m":8,"n":8,"e_ps":1,"t_ps_per_byte":8,"alpha_h_ps":1,"beta_h_ps_per_byte":1,"alpha_s_ps":1,"beta_s_ps_per_byte":2},"S":1,"Cs_per_sserver":8,"k":1,"step":4}"#,
            ),
            (
                "replay",
                r#"{"query":"tier.replay","policy":"foresight","capacity":1,"sizes":{"A":2,"B":4},"refs":["A","B","A"]}"#,
            ),
        ];
        run(
            "model_query",
            &seeds.map(|(name, line)| (name, line.as_bytes().to_vec())),
            5_000,
            query,
        );
    }
}
