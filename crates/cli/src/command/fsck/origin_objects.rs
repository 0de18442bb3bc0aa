//! The objects of a striped origin: those that a crash or a move left, those without names, and those that others name.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use halocline_os::bounded;
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

/// Limit of a file with pairs of objects and files, in bytes.
const PAIRS_BYTES_MAX: u64 = 1 << 30;

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
    pub(super) fn check(dir: &Path, args: &FsckArgs, gifts: &Gifts) -> Result<Self, Failure> {
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
        // Until they are bound to the files of a copy all objects look like those of files that are gone.
        if let Err(error) = origin.check_bound() {
            found.unchecked = Some(error.to_string());
            return Ok(found);
        }
        origin.give_objects(gifts)?;
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
        if args.repair {
            origin.sync_servers()?;
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
        if args.remove_unnamed.is_some() {
            origin.sync_servers()?;
        }
        Ok(())
    }

    /// Refuses what was asked for, and could not be done, because the objects were not looked at.
    pub(super) fn check_what_was_asked(
        &self,
        args: &FsckArgs,
        gifts: &Gifts,
    ) -> Result<(), Failure> {
        let asked = match (args.remove_unnamed, gifts.is_empty()) {
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

/// What is to be given, by the names of objects, and to which files below the mount.
pub(super) type Gifts = Vec<(String, PathBuf)>;

/// What is asked for: each `OBJECT=FILE` of the command line, and each line of the file of such pairs.
///
/// # Errors
/// If that cannot be read, or one of them is no such pair.
pub(super) fn gifts(args: &FsckArgs) -> Result<Gifts, Failure> {
    let mut pairs = args.give.clone();
    if let Some(path) = &args.give_from {
        let read = if path == Path::new("-") {
            bounded::read_from(io::stdin().lock(), PAIRS_BYTES_MAX)
        } else {
            bounded::read(path, PAIRS_BYTES_MAX)
        };
        let read = read.map_err(|error| Failure::unreadable(path, &error))?;
        let lines = read.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        pairs.extend(lines.map(|line| OsString::from_vec(line.to_vec())));
    }
    pairs.iter().map(|pair| object_and_file(pair)).collect()
}

/// The parts of `OBJECT=FILE`.
fn object_and_file(given: &OsStr) -> Result<(String, PathBuf), Failure> {
    let bytes = given.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=');
    let parts = at.map(|at| (&bytes[..at], &bytes[at + 1..]));
    let parts = parts.map(|(object, file)| (object, file.strip_prefix(b"/").unwrap_or(file)));
    match parts {
        Some((object, file)) if !object.is_empty() && !file.is_empty() => {
            let file = PathBuf::from(OsStr::from_bytes(file));
            Ok((String::from_utf8_lossy(object).into_owned(), file))
        }
        _ => Err(Failure::refused(format!(
            "{}: not OBJECT=FILE; give each pair as `halocline fsck` tells object and file",
            text::path(Path::new(given))
        ))),
    }
}

/// Tells what the objects may be that no file names, or others than their own, and what can be done.
pub(super) fn tell_unnamed(findings: &Findings, args: &FsckArgs, all: usize) {
    let cache = text::path(&args.cache);
    if findings.problems.iter().any(|problem| matches!(problem, Problem::MisnamedObject { .. })) {
        say!(
            "an object whose own file is not found stays where it is: that file may be elsewhere for a while, and whoever may \
             write to a file can have it name any object. If you know that a file is what a backup restored of it: halocline \
             fsck {cache} --repair --give OBJECT=FILE; of many, write such pairs to a file, and give --give-from FILE. If the whole \
             volume was copied, after an earlier version or an ordinary user had used it: `halocline mark-servers` on the original, \
             and copy it again"
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
