//! The kinds of record stores: one row each.

use std::sync::Arc;

use super::log::{self, Log, Pace};
use super::migrate;
use super::records::{Opening, RecordStore, Salvage, StoreKind};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// The kinds of stores that a cache may have. The first is the default, and that of a cache whose identity names none.
pub(crate) const STORES: &[StoreKind] =
    &[StoreKind { name: "log", fill: Log::fill, open: open_log, salvage: salvage_log }];

/// The kind that a cache has if nothing names one.
pub(crate) const DEFAULT: &StoreKind = &STORES[0];

/// The kind called `name`, of the table or of `besides`, which tests inject.
pub fn by_name(name: &str, besides: &'static [StoreKind]) -> Result<&'static StoreKind> {
    let all = || STORES.iter().chain(besides);
    all().find(|kind| kind.name == name).ok_or_else(|| {
        let names: Vec<_> = all().map(|kind| kind.name).collect();
        let what = format!("there is no record store called {name:?}");
        Error::invalid(what, format!("choose one with --record-store: {}", names.join(", ")))
    })
}

/// Opens a log, of which the records of an earlier version are made where there are such.
fn open_log(dir: PrivateDir, opening: Opening) -> Result<Arc<dyn RecordStore>> {
    if migrate::is_in(&dir)? {
        migrate::migrate(&dir, opening.torn)?;
    }
    let by_share = || Pace::of(opening.set_aside_bytes);
    let pace = opening.rewrite_bytes.map_or_else(by_share, Pace::of_log);
    Ok(Arc::new(Log::open(dir, opening.torn, pace)?))
}

fn salvage_log(dir: &PrivateDir, boot_id: &str) -> Result<Salvage> {
    let mut salvaged = log::salvage(dir, boot_id)?;
    let damage = salvaged.damage.take();
    Ok((Arc::new(salvaged), damage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_its_name_and_an_unknown_one_is_refused_with_the_names() {
        static BESIDES: [StoreKind; 1] = [StoreKind { name: "other", ..*DEFAULT }];
        assert_eq!(by_name("log", &[]).unwrap().name, "log");
        assert_eq!(by_name("other", &BESIDES).unwrap().name, "other");
        let refused = by_name("other", &[]).unwrap_err().to_string();
        assert!(refused.contains("\"other\"") && refused.contains(": log"), "{refused}");
    }
}
