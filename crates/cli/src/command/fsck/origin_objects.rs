//! The objects of a striped origin: those that a crash or a move left, those without names, and those that others name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_storage::volume::Origin;
use halocline_storage::volume::origin::relayout::Leftovers;
use halocline_storage::volume::origin::{Misnamed, NamedObjects, UnreadableFile};

use super::FsckArgs;
use super::findings::{Findings, NamedBy, Problem};
use crate::failure::Failure;
use crate::print::say;
use crate::text;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct OriginObjects {
    pub(super) problems: Vec<Problem>,
    /// Why they, or those without names, were not looked for.
    pub(super) unchecked: Option<String>,
    /// All objects, with and without names.
    pub(super) count: usize,
    /// Whether all names were read.
    is_checked: bool,
    /// Whether files were given what was asked for.
    has_given: bool,
}

impl OriginObjects {
    /// Looks at those of the origin in `dir`, gives files those that are asked for, and removes what is asked for.
    pub(super) fn check(dir: &Path, args: &FsckArgs) -> Result<Self, Failure> {
        let mut found = Self::default();
        let origin = match Origin::open_alone(dir) {
            Ok(Some(origin)) => origin,
            Ok(None) => return Ok(found),
            Err(error) => {
                found.unchecked = Some(error.to_string());
                return Ok(found);
            }
        };
        if let Err(error) = origin.check_tree() {
            found.problems.push(Problem::OtherTree { reason: error.to_string() });
            return Ok(found);
        }
        for (object, file) in args.give.iter().map(object_and_file) {
            origin.give_object(&object.to_string_lossy(), Path::new(file))?;
        }
        found.has_given = true;
        // Of what moves have left, the file that it was of is known.
        let left = Leftovers::of(&origin)?;
        let superfluous = left.objects_and_bytes(&origin)?;
        if args.repair {
            left.sync(&origin)?;
        }
        for (id, bytes) in &superfluous {
            let (object, bytes) = (id.to_string(), *bytes);
            found.problems.push(Problem::LeftoverObject { object, bytes });
            if args.repair {
                origin.remove_orphan(*id)?;
            }
        }
        let mut named = match origin.named_objects() {
            Err(error @ Error::Invalid { .. }) => {
                found.unchecked = Some(error.to_string());
                return Ok(found);
            }
            named => named?,
        };
        named.unnamed.retain(|id, _| !superfluous.contains_key(id));
        named.misnamed.retain(|it| !superfluous.contains_key(&it.object));
        found.count = origin.object_count()?;
        found.take(&origin, named, args)?;
        Ok(found)
    }

    /// Takes what was found of the names, and removes what is asked for.
    fn take(
        &mut self,
        origin: &Origin,
        named: NamedObjects,
        args: &FsckArgs,
    ) -> Result<(), Failure> {
        let NamedObjects { unnamed, misnamed, unreadable, unread } = named;
        if !unread.is_empty() {
            self.unchecked = Some(format!(
                "{} of its names cannot be read, and what lies there may name any of them",
                unread.len()
            ));
            let unread =
                unread.iter().map(|error| Problem::UnreadName { reason: error.to_string() });
            self.problems.extend(unread);
            return Ok(());
        }
        self.is_checked = true;
        for Misnamed { object, named_by } in misnamed {
            let named_by =
                named_by.into_iter().map(|(path, owner)| NamedBy { path, owner }).collect();
            self.problems.push(Problem::MisnamedObject { object: object.to_string(), named_by });
        }
        let unreadable = unreadable.into_iter().map(|UnreadableFile { path, owner, reason }| {
            Problem::UnreadableFile { path, owner, reason }
        });
        self.problems.extend(unreadable);
        if let Some(count) = args.remove_unnamed {
            if count != unnamed.len() {
                let found = counted(unnamed.len(), "object");
                let what = format!("no file names {found}, not {count}");
                return Err(Failure::failed(format!(
                    "{what}: none of them is removed; look at them with `halocline fsck`, and give their number"
                )));
            }
            origin.sync_names()?;
        }
        for (id, bytes) in unnamed {
            let (object, removed) = (id.to_string(), args.remove_unnamed.is_some());
            self.problems.push(Problem::OrphanObject { object, bytes, removed });
            if removed {
                origin.remove_orphan(id)?;
            }
        }
        Ok(())
    }

    /// Refuses what was asked for, and could not be done, because the objects were not looked at.
    pub(super) fn check_what_was_asked(&self, args: &FsckArgs) -> Result<(), Failure> {
        let asked = match (args.remove_unnamed, args.give.is_empty()) {
            (Some(_), _) if !self.is_checked => "nothing without a name was removed",
            (None, false) if !self.has_given => "nothing was given to any file",
            _ => return Ok(()),
        };
        let other_tree = self.problems.iter().find_map(|problem| match problem {
            Problem::OtherTree { reason } => Some(reason.as_str()),
            _ => None,
        });
        let unread: Vec<_> = self
            .problems
            .iter()
            .filter_map(|problem| match problem {
                Problem::UnreadName { reason } => Some(reason.as_str()),
                _ => None,
            })
            .collect();
        let why = self.unchecked.as_deref().or(other_tree);
        let why = why.unwrap_or("the cache has no striped origin");
        Err(Failure::failed([&[&*format!("{asked}: {why}")], &unread[..]].concat().join("; ")))
    }
}

/// The parts of `OBJECT=FILE`.
pub(super) fn object_and_file(given: &OsString) -> (&OsStr, &OsStr) {
    let bytes = given.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').unwrap_or(bytes.len());
    let file = bytes.get(at + 1..).unwrap_or_default();
    let file = file.strip_prefix(b"/").unwrap_or(file);
    (OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(file))
}

/// Tells what the objects may be that no file names, or others than their own, and what can be done.
pub(super) fn tell_unnamed(findings: &Findings, args: &FsckArgs, all: usize) {
    let cache = text::path(&args.cache);
    if findings.problems.iter().any(|problem| matches!(problem, Problem::MisnamedObject { .. })) {
        say!(
            "an object whose own file is not found stays where it is: that file may be elsewhere for a while, and whoever may \
             write to a file can have it name any object. If you know that a file is what a backup restored of it: halocline \
             fsck {cache} --repair --give OBJECT=FILE"
        );
    }
    let unnamed = |problem: &Problem| match problem {
        Problem::OrphanObject { bytes, removed: false, .. } => Some(*bytes),
        _ => None,
    };
    let unnamed: Vec<_> = findings.problems.iter().filter_map(unnamed).collect();
    if unnamed.is_empty() {
        return;
    }
    let count = unnamed.len();
    let bytes = text::bytes(unnamed.into_iter().fold(0, u64::saturating_add));
    say!(
        "no file names {count} of {} of the origin, with {bytes}: they stay. They may be the data of files that were moved \
         out of `namespace` for a while, or whose file system below it is not mounted. If you know that these files are gone \
         for good: halocline fsck {cache} --repair --remove-unnamed {count}",
        counted(all, "object")
    );
}

/// An object that others name, for people.
pub(super) fn misnamed_object(object: &str, named_by: &[NamedBy]) -> String {
    let named_by: Vec<_> = named_by
        .iter()
        .map(|NamedBy { path, owner }| format!("{} (of user {owner})", text::path(path)))
        .collect();
    format!(
        "origin object {object}: its file is not found, and others name it: {}",
        named_by.join(", ")
    )
}
