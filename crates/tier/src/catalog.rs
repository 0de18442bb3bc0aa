//! Where what is known in memory of the files on the SSD is found.

use std::sync::Arc;

use super::many_names::ManyNames;
use super::residents::Residents;
use super::tiers::Tiers;
use super::view::View;

/// The files on the SSD, with their names.
#[derive(Debug)]
pub(super) struct Catalog {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    many_names: Arc<ManyNames>,
}

impl Catalog {
    /// Of these files.
    pub(super) fn new(
        tiers: &Arc<Tiers>,
        residents: &Arc<Residents>,
        many_names: &Arc<ManyNames>,
    ) -> Self {
        let (tiers, residents) = (tiers.clone(), residents.clone());
        Self { tiers, residents, many_names: many_names.clone() }
    }

    /// What the policy is shown.
    pub(super) fn view(&self) -> View<'_> {
        View::new(&self.residents, self.tiers.tree(), &self.many_names)
    }
}
