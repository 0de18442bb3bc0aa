//! The layouts that file systems make of a plan.

use super::*;

/// What a file system makes of a plan can be replayed, and where that is the plan's layout, need not be.
#[test]
fn a_script_says_which_layouts_it_makes() {
    let made = |target, widths: &[u64]| {
        let mut plan = plan("/l/f", &[(None, widths)]);
        for (number, server) in plan.server.iter_mut().enumerate() {
            server.name = format!("1.{number}");
        }
        script(target, &plan).expect("a script").others.map(|files| files[0][0].widths.clone())
    };
    for target in [Target::Lustre, Target::CephFs, Target::BeeGfs] {
        assert_eq!(made(target, &[64 * K, 64 * K]), None, "{target:?}");
        assert_eq!(made(target, &[16 * K, 16 * K]), Some(vec![64 * K, 64 * K]), "{target:?}");
    }
    assert_eq!(made(Target::BeeGfs, &[192 * K, 192 * K]), Some(vec![256 * K, 256 * K]));
    assert_eq!(made(Target::Lustre, &[128 * K, 192 * K]), None);
    assert_eq!(made(Target::Lustre, &[0, 16 * K]), None, "one server alone");
    assert_eq!(made(Target::OrangeFs, &[16 * K, 20 * K]), None);
}
