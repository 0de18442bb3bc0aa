//! What a check says of what it could not read.

use halocline_cluster::names::attributes::Kind;

use super::Repair;
use super::findings::{About, Finding, Findings, note};

/// What could not be read. Where nodes are at work, directories are moved and removed meanwhile.
pub(super) fn tell_all(repair: &Repair<'_>, findings: &mut Findings) {
    for disk in &repair.disks.all {
        let root = disk.tree.path.display();
        for line in disk.scanned.unread() {
            note(&mut findings.told, Finding::new(About::Line, format!("{root}/{line}")));
        }
        // Directories are among those whose names cannot be read.
        let closed = disk.scanned.items.iter().enumerate();
        let closed =
            closed.filter(|(_, item)| item.is_closed && item.attributes.kind != Kind::Directory);
        for (at, item) in closed.clone() {
            let line = format!("{}: its attributes cannot be read", disk.shown(at));
            note(&mut findings.told, Finding::new(About::item(item), line));
        }
        if !repair.is_rebuilt && (closed.count() > 0 || !disk.scanned.unlisted.is_empty()) {
            let line = format!(
                "{root}: what cannot be read is not compared; --repair by its owner opens it"
            );
            note(&mut findings.told, Finding::new(About::Line, line));
        }
        match &disk.scanned.vanished {
            None => {}
            Some(_) if !repair.live.is_empty() => findings.under_way += 1,
            Some(path) => {
                let line = format!("{root}/{path}: it was moved or removed while it was read");
                note(&mut findings.told, Finding::new(About::Line, line));
            }
        }
    }
}
