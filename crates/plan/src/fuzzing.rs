//! Bodies of this crate's fuzz targets (`fuzz/`): plans that somebody made to be read wrongly. They are called by
//! cargo-fuzz, and by the tests below over the same seeds (docs/TESTING.md, fuzz targets).

use crate::layout::Layout;
use crate::plan_file::Plan;

/// A plan: what is read is layouts, and the same when it is written again; how many layouts that were.
fn layouts(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let Ok(plan) = Plan::parse(text) else { return 0 };
    let layouts = plan
        .file
        .iter()
        .filter_map(|file| Some((file.layout(plan.server.len()).ok()?, file.bytes)));
    let checked = layouts.map(|(layout, bytes)| check(&layout, bytes)).count();
    assert_eq!(Plan::parse(&plan.to_toml()).expect("what was read is written"), plan);
    checked
}

/// Each byte lies on one server, wherever one looks.
fn check(layout: &Layout, bytes: u64) {
    for (offset, length) in [(0, 4096), (bytes, 1), (bytes.saturating_sub(8192), 65_536)] {
        let Some(end) = u64::checked_add(offset, length) else { continue };
        let mut found = 0;
        layout.pieces(offset, end, |piece| found += piece.length);
        assert_eq!(found, length, "{offset} + {length} of {:?}", layout.parts());
    }
    assert_eq!(layout.bytes(bytes).iter().sum::<u64>(), bytes, "{:?}", layout.parts());
}

/// A plan file.
pub fn plan(bytes: &[u8]) {
    layouts(bytes);
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;
    use crate::layout::Part;
    use crate::plan_file::PlannedFile;

    const PLAN: &str = r#"version = 1
chosen = "ours"

[trace]
digest = "xxh3-128:00112233445566778899aabbccddeeff"
requests = 4096

[expected]
predicted_seconds = 1.5
simulated_seconds = 1.25
def_simulated_seconds = 2.5
gain_over_def = 1.0
spread = 0.125

[[server]]
name = "s0"
capacity = 1099511627776

[server.profile.read]
startup_sequential_ps = 100000000
startup_random_ps = 8000000000
per_byte_ps = 10000

[server.profile.write]
startup_sequential_ps = 100000000
startup_random_ps = 8000000000
per_byte_ps = 10000

[[server]]
name = "s1"
channels = 4

[server.profile.read]
startup_sequential_ps = 50000000
startup_random_ps = 60000000
per_byte_ps = 2000

[server.profile.write]
startup_sequential_ps = 50000000
startup_random_ps = 60000000
per_byte_ps = 2000

[server.network]
connect_ps = 50000000
per_byte_ps = 8000

[[file]]
path = "/data/a"
bytes = 16777216

[[file.part]]
begin = 0
end = 8388608
widths = [65536, 131072]

[[file.part]]
begin = 8388608
widths = [65536, 0]

[[file]]
path_hex = "2f646174612fff"
bytes = 4096

[[file.part]]
begin = 0
widths = [0, 4096]
"#;

    #[test]
    fn hostile_plans() {
        let mut read = 0;
        let count = |bytes: &[u8]| read += layouts(bytes);
        run("plan_file", &[("two-files", PLAN.as_bytes().to_vec())], 20_000, count);
        assert!(read > 1_000, "of {read} layouts little is learnt");
    }

    #[test]
    fn the_sample_is_what_is_written() {
        let plan = Plan::parse(PLAN).expect("a plan");
        assert_eq!(plan.file.len(), 2);
        let part = Part { begin: 0, end: None, widths: vec![0, 4096] };
        let layout = Layout::new(vec![part], 2).expect("a layout");
        assert_eq!(plan.file[1], PlannedFile::new(b"/data/\xff", 4096, &layout));
    }
}
