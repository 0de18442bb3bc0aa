//! Layouts that files share: thousands of files may lie alike, and what they share is made once for each replay.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::layout::{Layout, Part};

/// The different layouts of some files.
#[derive(Debug, Default)]
pub(crate) struct SharedLayouts {
    by_hash: FxHashMap<u64, Vec<Layout>>,
}

impl SharedLayouts {
    /// The layout of a file with these parts over so many servers; the error says what is wrong with them.
    pub(crate) fn of(&mut self, parts: Vec<Part>, servers: usize) -> Result<Layout, String> {
        let alike = match self.known(&parts) {
            Ok(known) => return Ok(known),
            Err(alike) => alike,
        };
        let layout = Layout::new(parts, servers)?;
        alike.push(layout.clone());
        Ok(layout)
    }

    /// `layout`, or an equal one that another file has.
    pub(crate) fn share(&mut self, layout: Layout) -> Layout {
        self.known(layout.parts()).unwrap_or_else(|alike| {
            alike.push(layout.clone());
            layout
        })
    }

    /// The layout with these parts, or where it is to be.
    fn known(&mut self, parts: &[Part]) -> Result<Layout, &mut Vec<Layout>> {
        let alike = self.by_hash.entry(hash(parts)).or_default();
        match alike.iter().position(|layout| layout.parts() == parts) {
            Some(at) => Ok(alike[at].clone()),
            None => Err(alike),
        }
    }
}

fn hash(parts: &[Part]) -> u64 {
    let mut hasher = FxHasher::default();
    parts.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_layouts_are_one() {
        let mut shared = SharedLayouts::default();
        let parts = |width| vec![Part { begin: 0, end: None, widths: vec![width; 2] }];
        let first = shared.of(parts(4096), 2).expect("a layout");
        for width in 512..1024 {
            let other = shared.of(parts(width), 2).expect("a layout");
            assert_eq!(other.parts(), parts(width));
        }
        assert!(shared.of(parts(4096), 2).expect("a layout").is_shared_with(&first));
        assert!(shared.share(Layout::simple(vec![4096; 2])).is_shared_with(&first));
        assert!(shared.of(Vec::new(), 2).is_err());
    }
}
