//! `halocline-volume.toml`: the label of a striped origin with its geometry, and the lock that marks a volume as in
//! use.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use halocline_model::striping::Striping;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use halocline_api::config::{SERVERS_MAX, STRIPE_BYTES_MAX};
use halocline_os::error::{Error, Result};
use halocline_os::locked_file::LockedFile;
use halocline_os::private::{self, PrivateDir};

use super::volume_directory::VolumeDir;

/// The format of new volumes, whose servers are marked; their files may have their own layouts.
const FORMAT: u32 = 4;

/// The format of a volume whose layouts may be on any server: earlier versions look for them on the first one alone.
const FORMAT_LAYOUTS_ANYWHERE: u32 = 5;

/// The format of a volume whose files may have their own layouts: earlier versions must not open it.
const FORMAT_LAYOUTS: u32 = 3;

/// The first format in which objects record whose they are.
const FORMAT_BOUND: u32 = 2;

/// The first format, in which objects did not record whose they are.
const FORMAT_UNBOUND: u32 = 1;

/// Name of the file on the first server whose lock marks the volume as in use. No one else can open it, because anyone
/// who may read a file may lock it.
const LOCK: &str = "halocline.lock";

/// Name of the label in the origin's directory.
pub(super) const NAME: &str = "halocline-volume.toml";

/// Name of the directory with the tree that programs see.
pub(super) const NAMESPACE: &str = "namespace";

const HEAD: &str = "\
# This directory is a striped Halocline volume: docs/FORMAT.md describes it.
# `halocline unstripe` turns its files back into plain ones. Do not edit.
";

/// How a striped volume is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Together with others that read and write files.
    Shared,
    /// Exclusively.
    Alone,
    /// Together with others, to read alone: nothing is made or changed, also not a mode or a lock file.
    Look,
}

/// Marks the volume in `volume_dir` as in use until the result is dropped; `first` is its first server.
pub(super) fn lock(volume_dir: &VolumeDir, first: &PrivateDir, how: Use) -> Result<LockedFile> {
    let using = if how == Use::Look { private::Use::Read } else { private::Use::Write };
    let file = match first.file(LOCK, using) {
        // Nothing can be changed there, or nobody has ever used it: the lock hardly matters.
        Err(error)
            if error.errno() == libc::EROFS
                || (how == Use::Look && error.errno() == libc::ENOENT) =>
        {
            let dir = first.as_fd().try_clone_to_owned();
            dir.map_err(Error::at(first.path(), "open"))?.into()
        }
        file => file?,
    };
    relock(volume_dir, &file, how)?;
    Ok(LockedFile::shared(file))
}

/// Changes how an already locked volume is used.
pub(super) fn relock(volume_dir: &VolumeDir, file: &File, how: Use) -> Result<()> {
    let operation = match how {
        Use::Shared | Use::Look => FlockOperation::NonBlockingLockShared,
        Use::Alone => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::invalid(
            format!(
                "the striped volume {} is in use by another process",
                volume_dir.path().display()
            ),
            "unmount it, or wait until its check is done",
        )),
        Err(errno) => Err(Error::at(volume_dir.path(), "lock the volume in")(errno.into())),
    }
}

/// The contents of the label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeLabel {
    format: u32,
    pub(super) servers: u32,
    pub(super) stripe: u64,
    /// Inode number of the tree whose files' inode numbers are in the objects' names; in decimal digits, because a TOML
    /// number is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tree: Option<TreeInodeNumber>,
    /// What the marks on the servers call the volume, since [`FORMAT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volume: Option<VolumeName>,
}

/// What of a label says whether the rest can be read.
#[derive(Debug, Deserialize)]
struct LabelFormat {
    format: u64,
}

/// 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct VolumeName(u128);

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> Self {
        format!("{:032x}", name.0)
    }
}

impl TryFrom<String> for VolumeName {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, Self::Error> {
        let name = u128::from_str_radix(&text, 16).map(Self);
        let name = name.ok().filter(|name| String::from(*name) == text);
        name.ok_or("the name of a volume has 32 lower-case hexadecimal digits")
    }
}

/// Decimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct TreeInodeNumber(u64);

impl From<TreeInodeNumber> for String {
    fn from(inode: TreeInodeNumber) -> Self {
        inode.0.to_string()
    }
}

impl TryFrom<String> for TreeInodeNumber {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> std::result::Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl VolumeLabel {
    /// The label of a volume whose objects are bound to the files below the directory with inode number `tree`, which
    /// was last changed at `changed_ns`. Both name the volume: who makes it at the same time, or goes on with making it,
    /// gives it the same name.
    pub(super) const fn new(servers: u32, stripe: u64, tree: u64, changed_ns: u64) -> Self {
        let volume = Some(VolumeName((tree as u128) << 64 | changed_ns as u128));
        Self { format: FORMAT, servers, stripe, tree: Some(TreeInodeNumber(tree)), volume }
    }

    /// What the marks on the servers call the volume; `None` if they are not marked.
    pub(super) fn volume(self) -> Option<String> {
        self.volume.map(String::from)
    }

    /// The same, bound to the files below the directory with inode number `tree`.
    pub(super) fn bound_to(self, tree: u64) -> Self {
        Self { format: self.format.max(FORMAT_BOUND), tree: Some(TreeInodeNumber(tree)), ..self }
    }

    /// The same for a volume whose files may have their own layouts.
    pub(super) fn with_layouts(self) -> Self {
        Self { format: self.format.max(FORMAT_LAYOUTS), ..self }
    }

    /// The same for a volume whose layouts may be on any server; `None` if its servers are not marked, so that one without
    /// its layouts could be in the place of another.
    pub(super) fn with_layouts_anywhere(self) -> Option<Self> {
        self.volume.map(|_| Self { format: FORMAT_LAYOUTS_ANYWHERE, ..self })
    }

    /// The same for a volume whose servers are marked. The volume's name is made from its tree, with inode number `tree`, and
    /// the time `changed_ns`.
    pub(super) fn marked(self, tree: u64, changed_ns: u64) -> Self {
        let named = Self::new(self.servers, self.stripe, tree, changed_ns);
        Self { format: FORMAT, volume: named.volume, ..self }
    }

    /// Whether the objects are bound to the files below the directory with inode number `tree`. A copy
    /// of a volume has other inode numbers.
    pub(super) fn is_bound_to(self, tree: u64) -> bool {
        self.format != FORMAT_UNBOUND && self.tree == Some(TreeInodeNumber(tree))
    }

    pub(super) const fn striping(self) -> Striping {
        Striping::new(self.servers, self.stripe)
    }

    /// The label of the origin in `volume_dir`, if it has one.
    pub(super) fn read(volume_dir: &VolumeDir) -> Result<Option<Self>> {
        let path = volume_dir.path().join(NAME);
        let Some(text) = volume_dir.read(NAME)? else { return Ok(None) };
        Self::parse(&text, &path).map(Some)
    }

    /// The label of the volume in `volume_dir`; an error if there is none.
    pub(super) fn required(volume_dir: &VolumeDir) -> Result<Self> {
        Self::read(volume_dir)?.ok_or_else(|| {
            let dir = volume_dir.path().display();
            let what = format!("{dir}: not a striped volume ({NAME} is missing)");
            Error::invalid(what, "give the directory that was the origin of the mount")
        })
    }

    /// Parses the label in `text`, which was read from `path`.
    fn parse(text: &str, path: &Path) -> Result<Self> {
        let damaged = |what: String| {
            let what = format!("{}: {what}", path.display());
            Error::invalid(what, "restore the file: docs/FORMAT.md shows what it must hold")
        };
        // Before all else: a newer version may have written keys that this one does not know.
        let format = toml::from_str::<LabelFormat>(text).ok().map(|label| label.format);
        if let Some(format) = format
            && !u32::try_from(format)
                .is_ok_and(|format| (FORMAT_UNBOUND..=FORMAT_LAYOUTS_ANYWHERE).contains(&format))
        {
            return Err(Error::invalid(
                format!("{}: format {format} of the volume is unknown", path.display()),
                "use the version of Halocline that made it, or a newer one",
            ));
        }
        let label: Self = toml::from_str(text).map_err(|error| damaged(error.to_string()))?;
        if label.servers == 0 || label.stripe == 0 {
            return Err(damaged("servers and stripe must not be 0".into()));
        }
        if label.volume.is_some() != (label.format >= FORMAT) {
            return Err(damaged(format!(
                "volume is there from format {FORMAT} on, and never before"
            )));
        }
        if label.servers > SERVERS_MAX || label.stripe > STRIPE_BYTES_MAX {
            let what =
                format!("more than {SERVERS_MAX} servers, or a stripe above {STRIPE_BYTES_MAX}");
            return Err(damaged(what));
        }
        Ok(label)
    }

    /// Makes the label durable, atomically.
    pub(super) fn write(self, volume_dir: &VolumeDir) -> Result<()> {
        let body = toml::to_string(&self).expect("numbers are TOML");
        volume_dir.write(NAME, &format!("{HEAD}{body}"))
    }
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;

    /// Any label is either refused or gives a geometry that fits every file.
    #[test]
    fn hostile_labels_of_volumes_are_refused_or_can_be_counted_with() {
        let marked = VolumeLabel::new(8, 64 << 10, 131, 1_764_000_000_123_456_789);
        let made = VolumeLabel { format: FORMAT_BOUND, volume: None, ..marked };
        let layouts = made.with_layouts();
        let unbound = VolumeLabel { format: FORMAT_UNBOUND, tree: None, ..made };
        let seeds = [("now", made), ("layouts", layouts), ("unbound", unbound), ("marked", marked)];
        let text = |label| format!("{HEAD}{}", toml::to_string(&label).unwrap()).into_bytes();
        let mut accepted = 0;
        let count = |bytes: &[u8]| accepted += usize::from(fuzzing::check(bytes));
        run("storage_volume_label", &seeds.map(|(name, label)| (name, text(label))), 20_000, count);
        assert!(accepted > 1000, "{accepted} were accepted");
    }

    /// It was said to be damaged, and to be restored, for the first key that was not known.
    #[test]
    fn a_label_of_a_later_format_is_refused_as_that() {
        for format in ["6", "4294967300"] {
            let text = format!("format = {format}\nservers = 3\nstripe = 4096\nwings = \"2\"\n");
            let told = VolumeLabel::parse(&text, Path::new("label")).unwrap_err().to_string();
            let what = format!("label: format {format} of the volume is unknown; use the version");
            assert!(told.starts_with(&what), "{told}");
        }
        let now = VolumeLabel::parse(
            "format = 3\nservers = 3\nstripe = 4096\nwings = 2\n",
            Path::new("label"),
        );
        assert!(now.unwrap_err().to_string().contains("wings"));
    }
}
