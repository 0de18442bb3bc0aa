//! Finds what is known in memory about the files on the SSD.

use std::sync::Arc;

use super::linked_vnodes::LinkedVnodes;
use super::policy_view::PolicyView;
use super::residents::Residents;
use super::tiers::Tiers;

/// The files on the SSD, with their names.
#[derive(Debug)]
pub(super) struct Catalog {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    linked_vnodes: Arc<LinkedVnodes>,
}

impl Catalog {
    /// A catalog of these files.
    pub(super) fn new(
        tiers: &Arc<Tiers>,
        residents: &Arc<Residents>,
        linked_vnodes: &Arc<LinkedVnodes>,
    ) -> Self {
        let (tiers, residents) = (tiers.clone(), residents.clone());
        Self { tiers, residents, linked_vnodes: linked_vnodes.clone() }
    }

    /// What the policy is shown.
    pub(super) fn view(&self) -> PolicyView<'_> {
        PolicyView::new(&self.residents, self.tiers.tree(), &self.linked_vnodes)
    }
}
