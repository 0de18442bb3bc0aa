//! What is said of a file that refers to data that is not its own.

use std::io;

use super::identity;

/// What is wrong with a file that refers to the data of another.
pub(super) const OF_ANOTHER: &str = "it names the data of another file: it is a copy that was made past the mount, or \
     its whole volume was copied and nothing attests there that the data was its own";

/// What can be done about it.
const OF_ANOTHER_REMEDY: &str = "empty or remove it, or, if it was restored from a backup, see how `halocline fsck \
     CACHE` gives it its data (--give); of a copied volume, run `halocline mark-servers` on the original, and copy it again";

/// What is wrong with one, with this inode number, that refers to data that is gone.
pub(super) fn gone(inode: u64) -> String {
    format!(
        "it names data that is not there: it is a copy or backup, put there past the mount, of a file whose data was removed \
         since; empty or remove it, or restore its contents from a backup that has them; or, if somebody changed its {} past the \
         mount, {}",
        identity::ATTRIBUTE,
        identity::remedy_for_number(inode)
    )
}

/// Which data a file refers to that is not its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotOwn {
    /// That of another file, or of this one since it was moved: it is a copy or backup that was put there behind the mount, or
    /// its owner is trying to reach that data.
    OfAnother,
    /// None that is there, and once it was that of another file; this one has this inode number.
    Gone(u64),
}

impl From<NotOwn> for io::Error {
    fn from(data: NotOwn) -> Self {
        let what = match data {
            NotOwn::OfAnother => format!("{OF_ANOTHER}; {OF_ANOTHER_REMEDY}"),
            NotOwn::Gone(inode) => gone(inode),
        };
        Self::new(io::ErrorKind::InvalidData, what)
    }
}
