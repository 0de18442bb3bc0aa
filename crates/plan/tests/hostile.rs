//! Plans that somebody made to be read wrongly: none panics, and what is read is a layout.

use halocline_plan::layout::{Layout, Part};
use halocline_plan::plan_file::{Plan, PlannedFile};
use halocline_testkit::hostile::attack;

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
    attack(&[PLAN.as_bytes()], 20_000, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let Ok(plan) = Plan::parse(text) else { return };
        for file in &plan.file {
            let Ok(layout) = file.layout(plan.server.len()) else { continue };
            read += 1;
            check(&layout, file.bytes);
        }
        assert_eq!(Plan::parse(&plan.to_toml()).expect("what was read is written"), plan);
    });
    assert!(read > 1_000, "of {read} layouts little is learnt");
}

/// Each byte lies on one server, wherever one looks.
fn check(layout: &Layout, bytes: u64) {
    for (offset, length) in [(0, 4096), (bytes, 1), (bytes.saturating_sub(8192), 65_536)] {
        let Some(end) = offset.checked_add(length) else { continue };
        let mut found = 0;
        layout.pieces(offset, end, |piece| found += piece.length);
        assert_eq!(found, length, "{offset} + {length} of {:?}", layout.parts());
    }
    assert_eq!(layout.bytes(bytes).iter().sum::<u64>(), bytes, "{:?}", layout.parts());
}

#[test]
fn the_sample_is_what_is_written() {
    let plan = Plan::parse(PLAN).expect("a plan");
    assert_eq!(plan.file.len(), 2);
    let part = Part { begin: 0, end: None, widths: vec![0, 4096] };
    let layout = Layout::new(vec![part], 2).expect("a layout");
    assert_eq!(plan.file[1], PlannedFile::new(b"/data/\xff", 4096, &layout));
}
