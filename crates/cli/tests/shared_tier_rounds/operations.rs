//! What programs do with items on one mount. Names are given from descriptors of their folders, which are renamed meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use halocline_api::control::client::Client;
use halocline_api::control::{MoveReport, Request};
use halocline_testkit::hostile::Random;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, mkdirat, openat, rename, renameat_with,
    statat, unlinkat,
};

use crate::ledger::{
    DIRECTORIES, FILES, FOLDERS, Held, Ledger, Name, PLACES, PROBE, Version, WORD, WORDS_MAX, word,
};

/// The most names of a file.
const NAMES_MAX: usize = 3;
/// How often a directory is looked for that the kernel knows by an older name, and how long apart.
const STALE_MAX: usize = 200;
const STALE_PAUSE: Duration = Duration::from_millis(5);

/// A program on one node.
#[derive(Debug)]
pub(crate) struct Operations<'a> {
    pub(crate) ledger: &'a Ledger,
    /// Its node's mount.
    pub(crate) mount: &'a Path,
    /// Where that is asked to move files.
    pub(crate) socket: &'a Path,
}

fn words(item: usize, (start, write, end): (usize, u64, usize)) -> Vec<u8> {
    (start..end).flat_map(|at| word(item, at, write).to_le_bytes()).collect()
}

fn pick(names: &BTreeSet<Name>, random: &mut Random) -> Option<Name> {
    names.iter().nth(random.below(names.len())).cloned()
}

/// Does something with a directory. As on NFS: the kernel may know it by the name that it had before another node renamed it,
/// and does not find it then while directories are renamed. Nothing was done by that. It looks when it is asked for it.
fn again<T>(
    (above, name): (&impl AsFd, &Path),
    mut act: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut done = act();
    for _ in 0..STALE_MAX {
        if !done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)) {
            break;
        }
        std::thread::sleep(STALE_PAUSE);
        let _looked = statat(above, name, AtFlags::SYMLINK_NOFOLLOW);
        done = act();
    }
    done
}

/// Whether something was changed, and acknowledged.
type Done = io::Result<bool>;

impl Operations<'_> {
    /// What every tier has at first.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        for place in PLACES {
            std::fs::create_dir(self.mount.join(place))?;
        }
        std::fs::write(self.mount.join(PROBE), [])?;
        for folder in 0..FOLDERS {
            let made =
                self.ledger.in_folder(folder, |path| std::fs::create_dir(self.mount.join(path)));
            made.expect("nobody works yet")?;
        }
        Ok(())
    }

    /// Does something.
    pub(crate) fn any(&self, random: &mut Random) -> Done {
        match random.below(100) {
            0..4 => self.rename_folder(random),
            4..14 => self.with_directory(random),
            14..26 => self.with_two_files(random),
            _ => self.with_file(random),
        }
    }

    fn folder(&self, folder: usize) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &str| {
            let path = self.mount.join(path);
            again((&CWD, &path), || Ok(openat(CWD, &path, flags, Mode::empty())?))
        };
        self.ledger.in_folder(folder, open).transpose()
    }

    /// A name that nothing has, and its folder.
    fn fresh_name(&self, item: usize, random: &mut Random) -> io::Result<Option<(OwnedFd, Name)>> {
        let folder = random.below(FOLDERS);
        let kind = if item < FILES { 'f' } else { 'd' };
        let name = format!("{kind}{item}.{}", self.ledger.fresh());
        Ok(self.folder(folder)?.map(|fd| (fd, (folder, name))))
    }

    fn rename_folder(&self, random: &mut Random) -> Done {
        let folder = random.below(FOLDERS);
        let to = format!("{}/folder{folder}.{}", PLACES[random.below(2)], self.ledger.fresh());
        let rename = |from: &str, to: &str| {
            let (from, to) = (self.mount.join(from), self.mount.join(to));
            again((&CWD, &from), || Ok(rename(&from, &to)?))
        };
        self.ledger.rename_folder(folder, to, rename).transpose().map(|done| done.is_some())
    }

    fn with_directory(&self, random: &mut Random) -> Done {
        let Some(held) = self.ledger.hold(FILES + random.below(DIRECTORIES)) else {
            return Ok(false);
        };
        let Some((to, name)) = self.fresh_name(held.item, random)? else { return Ok(false) };
        let make = || Ok(mkdirat(&to, &name.1, Mode::from_raw_mode(0o755))?);
        let Some(old) = pick(&held.version().names, random) else {
            let change = (vec![held.version().with(&name)], vec![]);
            return self.ledger.change("mkdirs", vec![held], change, make).map(|()| true);
        };
        let Some(from) = self.folder(old.0)? else { return Ok(false) };
        // There are two of it where a rename over a directory failed between its two changes.
        let (both, gone) = (held.version().with(&name), held.version().without(&old));
        let renamed = gone.with(&name);
        let (what, after, between) = match random.below(3) {
            0 => ("rmdirs", gone, vec![]),
            1 => ("renames of directories", renamed, vec![]),
            // Over an empty one.
            _ => ("renames over directories", renamed, vec![vec![both]]),
        };
        let act = || {
            let at = (&from, Path::new(&old.1));
            if what == "rmdirs" {
                return again(at, || Ok(unlinkat(&from, &old.1, AtFlags::REMOVEDIR)?));
            }
            if what == "renames over directories" {
                make()?;
            }
            again(at, || Ok(renameat_with(&from, &old.1, &to, &name.1, RenameFlags::empty())?))
        };
        self.ledger.change(what, vec![held], (vec![after], between), act).map(|()| true)
    }

    fn with_file(&self, random: &mut Random) -> Done {
        let Some(held) = self.ledger.hold(random.below(FILES)) else { return Ok(false) };
        let Some(old) = pick(&held.version().names, random) else {
            return self.create(held, random);
        };
        let Some(from) = self.folder(old.0)? else { return Ok(false) };
        match random.below(100) {
            0..25 => self.read(&held, &from, &old).map(|()| false),
            25..50 => self.write(held, &from, &old, random),
            50..55 => {
                // Others may open it meanwhile.
                drop(held);
                self.moved(&old, random);
                Ok(false)
            }
            55..70 => self.unlink(held, &from, &old),
            _ => {
                let Some((to, name)) = self.fresh_name(held.item, random)? else {
                    return Ok(false);
                };
                self.give_name(held, (&from, &old), (&to, name), random)
            }
        }
    }

    fn create(&self, held: Held<'_>, random: &mut Random) -> Done {
        let item = held.item;
        let Some((to, name)) = self.fresh_name(item, random)? else { return Ok(false) };
        let write = (0, self.ledger.fresh(), 1 + random.below(WORDS_MAX));
        let begun = Version { unanswered: Some(write), ..Version::default().with(&name) };
        let after = Version { words: vec![write.1; write.2], unanswered: None, ..begun.clone() };
        let act = || {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = openat(&to, &name.1, flags, Mode::from_raw_mode(0o644))?;
            std::fs::File::from(file).write_all_at(&words(item, write), 0)
        };
        let change = (vec![after], vec![vec![begun]]);
        self.ledger.change("creates", vec![held], change, act).map(|()| true)
    }

    /// Reads a file that the other node may have changed last.
    fn read(&self, held: &Held<'_>, from: &OwnedFd, (folder, name): &Name) -> io::Result<()> {
        let file = openat(from, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes)?;
        let version = held.version();
        let expected: Vec<u8> = version
            .words
            .iter()
            .enumerate()
            .flat_map(|(at, write)| word(held.item, at, *write).to_le_bytes())
            .collect();
        assert!(
            bytes == expected,
            "{name} in folder {folder} has {} bytes, and other ones than the {} of {version:?}",
            bytes.len(),
            expected.len()
        );
        self.ledger.count("reads", true);
        Ok(())
    }

    fn write(&self, held: Held<'_>, from: &OwnedFd, name: &Name, random: &mut Random) -> Done {
        let (item, before) = (held.item, held.version().clone());
        let start = random.below(before.words.len() + 1);
        let end = start + 1 + random.below(WORDS_MAX - start.min(WORDS_MAX - 1));
        let end = end.min(WORDS_MAX);
        let write = (start, self.ledger.fresh(), end);
        let between = Version { unanswered: Some(write), ..before.clone() };
        let mut after = before;
        after.words.resize(after.words.len().max(end), write.1);
        after.words[start..end].fill(write.1);
        let act = || {
            let file = openat(from, &name.1, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            std::fs::File::from(file).write_all_at(&words(item, write), (start * WORD) as u64)
        };
        let change = (vec![after], vec![vec![between]]);
        self.ledger.change("writes", vec![held], change, act).map(|()| true)
    }

    fn unlink(&self, held: Held<'_>, from: &OwnedFd, name: &Name) -> Done {
        let after = held.version().without(name);
        let act = || Ok(unlinkat(from, &name.1, AtFlags::empty())?);
        self.ledger.change("unlinks", vec![held], (vec![after], vec![]), act).map(|()| true)
    }

    /// A new name, instead of an old one or beside it.
    fn give_name(
        &self,
        held: Held<'_>,
        (from, old): (&OwnedFd, &Name),
        (to, name): (&OwnedFd, Name),
        random: &mut Random,
    ) -> Done {
        let links = held.version().names.len() < NAMES_MAX && random.below(3) == 0;
        let mut after = held.version().with(&name);
        if !links {
            after = after.without(old);
        }
        let what = if links { "links" } else { "renames" };
        let act = || {
            if links {
                return Ok(linkat(from, &old.1, to, &name.1, AtFlags::empty())?);
            }
            Ok(renameat_with(from, &old.1, to, &name.1, RenameFlags::empty())?)
        };
        self.ledger.change(what, vec![held], (vec![after], vec![]), act).map(|()| true)
    }

    /// Renames a file over another one, or exchanges both.
    fn with_two_files(&self, random: &mut Random) -> Done {
        let Some(one) = self.ledger.hold(random.below(FILES)) else { return Ok(false) };
        let Some(other) = self.ledger.hold(random.below(FILES)) else { return Ok(false) };
        // One without bytes is known by its name.
        let [first, second] = [&one, &other].map(Held::version);
        if first.words.is_empty() || second.words.is_empty() {
            return Ok(false);
        }
        let names = (pick(&first.names, random), pick(&second.names, random));
        let (Some(from), Some(to)) = names else { return Ok(false) };
        let (Some(above), Some(there)) = (self.folder(from.0)?, self.folder(to.0)?) else {
            return Ok(false);
        };
        let exchanges = random.below(2) == 0;
        let (first, mut second) = (first.with(&to).without(&from), second.clone());
        if exchanges {
            second = second.with(&from);
        }
        second = second.without(&to);
        let (what, flags) = if exchanges {
            ("exchanges", RenameFlags::EXCHANGE)
        } else {
            ("renames over files", RenameFlags::empty())
        };
        let act = || Ok(renameat_with(&above, &from.1, &there, &to.1, flags)?);
        let change = (vec![first, second], vec![]);
        self.ledger.change(what, vec![one, other], change, act).map(|()| true)
    }

    /// Asks the node to move a file to its SSD or to the shared disk. It may be open, or have another path by then.
    fn moved(&self, (folder, name): &Name, random: &mut Random) {
        let path = self.ledger.in_folder(*folder, |folder| Path::new(folder).join(name));
        let Some(path) = path else { return };
        let request = if random.below(2) == 0 {
            Request::Warm { paths: vec![path], dry_run: false }
        } else {
            Request::Evict { path, dry_run: false }
        };
        let moved = Client::connect(self.socket)
            .and_then(|mut client| client.call::<MoveReport>(&request, |_| {}));
        let is_moved = moved.is_ok_and(|moved| moved.files > 0);
        self.ledger.count(if is_moved { "moves of files" } else { "of files that stayed" }, true);
    }
}
