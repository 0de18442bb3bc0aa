//! Bodies of this crate's fuzz targets (`fuzz/`), over data that the owner of a file or directory may have written on
//! the disks. They are called by cargo-fuzz, and by the tests below over the same seeds (docs/TESTING.md, fuzz
//! targets).

use crate::acl::Acl;
use crate::places::own_xattrs::fuzzing::claims;
use crate::places::peers::fuzzing::identifying;
use crate::places::shared_disk::fuzzing::note;

/// An extended attribute, or the target of a note of a rename.
pub fn attribute(bytes: &[u8]) {
    claims(bytes);
    note(bytes);
    if let Some(acl) = Acl::parse(bytes) {
        assert_eq!(acl.to_value(), bytes);
        if !acl.is_empty() {
            assert_eq!(acl.with_mode(0o640).mode(), 0o640);
            assert_eq!(acl.with_mode(acl.mode()), acl);
        }
    }
}

/// The file that says which node's an SSD is, or which tier's a disk.
pub fn node_file(bytes: &[u8]) {
    identifying(bytes);
}

#[cfg(test)]
mod tests {
    use halocline_cluster::names::attributes::RelativePath;
    use halocline_model::namespace::Name;
    use halocline_testkit::fuzz_target::run;

    use super::*;
    use crate::places::own_xattrs::fuzzing::seeds as claim_seeds;
    use crate::places::peers::fuzzing::seeds as node_seeds;
    use crate::places::shared_disk::fuzzing::seed as note_seed;
    use halocline_cluster::names::attributes::Location;

    #[test]
    fn hostile_names_of_nodes() {
        run("shared_tier_node_file", &node_seeds(), 20_000, node_file);
    }

    #[test]
    fn hostile_attributes() {
        let path = RelativePath::new(b"a/b c").expect("a path");
        let from = Location { node: Some("n1".to_owned()), tier: 0, base: 1, path };
        let mut seeds = claim_seeds(&from).to_vec();
        let positions = [(1, Name::from("a")), (27, Name::from("b c"))];
        seeds.push(("note", note_seed(&positions)));
        seeds.push(("acl", Acl::sample().to_value()));
        run("shared_tier_attribute", &seeds, 20_000, attribute);
    }
}
