//! The steps of the move of one file.

use std::io;
use std::path::{Path, PathBuf};

use halocline_model::file_layout::FileLayout;
use rustix::fs::XattrFlags;

use super::super::cut_mark::CutMark;
use super::super::earlier_times::note_if_needed;
use super::super::identity::ObjectId;
use super::super::label::VolumeLabel;
use super::super::layouts;
use super::super::move_notes::takes_no_more;
use super::super::sparse_copy::copy_data;
use super::super::tree_walk::{by_descriptor, file};
use super::super::volume_directory::VolumeDir;
use super::{Before, LEAVE_OUT, LayoutChange, Origin, OriginFile, State, Step, unopened};
use crate::volume::{Distribution, Server, VolumeFile, object_paths};
use halocline_os::chattr;
use halocline_os::error::{Error, Result};

/// What a system call that changes an attribute says if it has changed nothing.
const REFUSED_CUTOVER: [i32; 7] = [
    libc::ENODATA,
    libc::EEXIST,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::E2BIG,
    libc::EACCES,
    libc::EPERM,
];

/// A file on its way to another object.
pub(super) struct Moving<'m> {
    origin: &'m Origin,
    to: &'m LayoutChange,
    shown: PathBuf,
    file: OriginFile,
    state: State,
    /// The object that a file without one gets, by which it is found after a kill.
    given: Option<ObjectId>,
    /// The new object.
    pub(super) new: ObjectId,
    /// Whether the file may refer to the new object.
    pub(super) may_be_cut_over: bool,
}

impl<'m> Moving<'m> {
    /// Opens the file. Changes nothing.
    pub(super) fn begin(origin: &'m Origin, to: &'m LayoutChange) -> Result<Self> {
        let namespace_file = file(origin, &to.path, LEAVE_OUT)?;
        let file = namespace_file.open_data(origin, libc::O_RDWR);
        let shown = namespace_file.shown;
        let file = file.map_err(|error| unopened(&shown, error))?;
        let state = State::of(origin, &file).map_err(Error::at(&shown, "look at"))?;
        if state.inode != to.inode || state.size != to.size {
            return Err(changed(&shown));
        }
        let has_layout = matches!(to.wished, Distribution::Varied(_));
        let object = |has_layout, former: Option<ObjectId>| {
            let former = former.map(|object| object.number);
            let new = ObjectId::new(file.namespace_file(), has_layout, former);
            new.map_err(Error::at(&shown, "name an object for"))
        };
        let given = if state.object.is_none() { Some(object(false, None)?) } else { None };
        let new = object(has_layout, state.object.or(given))?;
        Ok(Self { origin, to, shown, file, state, given, new, may_be_cut_over: false })
    }

    /// Notes the file's times, and gives it an object, without data, if it has none: by that it is found after a kill. If it takes
    /// none the move goes on, and is refused the same at the cutover. The move is noted: by that a copy of the volume knows
    /// that the object has no data yet.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let is_noted = self.note_times()?;
        let file = self.file.namespace_file();
        let give = |given: ObjectId| given.number.name_by(file, XattrFlags::CREATE).is_ok();
        let is_given = self.given.is_some_and(give);
        if !is_noted && !is_given {
            return Ok(());
        }
        let state =
            State::of(self.origin, &self.file).map_err(Error::at(&self.shown, "look at"))?;
        if (state.inode, state.size) != (self.state.inode, self.state.size) {
            return Err(changed(&self.shown));
        }
        self.state = state;
        Ok(())
    }

    /// Notes the file's times for a cache that may have newer bytes; says whether there may be one.
    fn note_times(&self) -> Result<bool> {
        let noted = note_if_needed(self.origin, &by_descriptor(self.file.namespace_file()));
        noted.map_err(|error| {
            Error::invalid(
                format!(
                    "{}: a cache may have newer bytes of it, and the times by which that knows it cannot be noted in its extended \
                     attributes: {error}",
                    self.shown.display()
                ),
                "mount the volume with that cache first, which flushes them",
            )
        })
    }

    /// The file's object before the move.
    pub(super) fn old(&self) -> Option<ObjectId> {
        self.state.object.or(self.given)
    }

    /// Makes the new object, durably. It is noted.
    pub(super) fn copy(&self, before: Before<'_>, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let at = |what| Error::at(&self.shown, what);
        before(Step::Layout)?;
        if let Distribution::Varied(layout) = &self.to.wished {
            self.write_layout(layout)?;
        }
        before(Step::Copy)?;
        let (volume, path) = (&self.origin.volume, self.new.path());
        let copy = VolumeFile::lazy(volume, 0, self.to.wished.clone(), &path);
        // Which server has no room, or fails, is to be told: there may be hundreds.
        let on_server = |(server, error): (&Server, io::Error)| {
            unwritten(server, &path, "write the new data of a file in", error)
        };
        let mut refused = None;
        let mut put = |offset, bytes: &[u8]| {
            let written = before(Step::Copy)
                .and_then(|()| copy.write_on_servers(offset, bytes).map_err(on_server));
            written.map_err(|error| {
                refused = Some(error);
                io::ErrorKind::Interrupted.into()
            })
        };
        let copied = copy_data(&self.file, self.to.size, &mut put, progress);
        refused.map_or(Ok(()), Err)?;
        copied.map_err(at("copy the data of"))?;
        before(Step::Sync)?;
        copy.sync_servers(false).map_err(on_server)?;
        if State::of(self.origin, &self.file).map_err(at("look at"))? != self.state {
            return Err(changed(&self.shown));
        }
        Ok(())
    }

    /// Makes the file refer to the new object.
    pub(super) fn cut_over(&mut self, before: Before<'_>) -> Result<()> {
        before(Step::CutOver)?;
        // Again, because the copy may have taken long: the time at which a killed mount cannot have changed the file any longer may
        // lie in between.
        self.note_times()?;
        let how = self.state.object.map_or(XattrFlags::CREATE, |_| XattrFlags::REPLACE);
        let file = self.file.namespace_file();
        let Err(error) = self.new.number.name_by(file, how) else {
            self.may_be_cut_over = true;
            return Ok(());
        };
        let is_refused = error.raw_os_error().is_some_and(|errno| REFUSED_CUTOVER.contains(&errno));
        let is_as_it_was = self.origin.object_of(file).is_ok_and(|object| object != Some(self.new));
        self.may_be_cut_over = !(is_refused && is_as_it_was);
        if error.raw_os_error().is_some_and(|errno| [libc::ENOSPC, libc::E2BIG].contains(&errno)) {
            return Err(Error::invalid(
                format!(
                    "{}: its extended attributes leave no room for the number of its new data, or the file system of the \
                     volume's tree is full: {error}",
                    self.shown.display()
                ),
                "remove some of its attributes (getfattr -d lists them), or free space there",
            ));
        }
        let what = "give its new layout, in an extended attribute, to";
        Err(Error::at(&self.shown, what)(error))
    }

    /// Makes that durable: the old object may be removed.
    pub(super) fn settle(&self, before: Before<'_>) -> Result<()> {
        before(Step::Settle)?;
        // The new object has no bytes beyond the file's size.
        CutMark(self.file.namespace_file()).clear();
        self.file.namespace_file().sync_all().map_err(Error::at(&self.shown, "sync"))?;
        let copy =
            VolumeFile::lazy(&self.origin.volume, 0, self.to.wished.clone(), &self.new.path());
        if !self.new.number.has_layout && self.to.size > 0 && !copy.is_anywhere() {
            // A file of holes alone: in a copy of the volume, whose files' numbers are not theirs, this tells that it is one. In the
            // volume itself its number does, so a server need not have room for it. Before the file names it, it would be taken for
            // the data that the file names no longer.
            let _ = copy.truncate(1);
        }
        Ok(())
    }

    /// Marks the volume so that earlier versions, which do not know layouts, or look for them on the first server alone,
    /// refuse it. False if it cannot have layouts on other servers.
    fn allow_layouts(&self, anywhere: bool) -> Result<bool> {
        let dir = self.origin.namespace_dir().parent().unwrap_or(Path::new("/"));
        let volume_dir = VolumeDir::open(dir)?;
        let Some(label) = VolumeLabel::read(&volume_dir)? else { return Ok(true) };
        let marked =
            if anywhere { label.with_layouts_anywhere() } else { Some(label.with_layouts()) };
        let Some(marked) = marked else { return Ok(false) };
        if label != marked {
            marked.write(&volume_dir)?;
        }
        Ok(true)
    }

    /// On the first server that takes it: one without room, or one that cannot be changed, is what moves are for.
    fn write_layout(&self, layout: &FileLayout) -> Result<()> {
        self.allow_layouts(false)?;
        let (path, what) =
            (self.new.path_in(object_paths::LAYOUTS), "write the layout of a file in");
        let mut refused = None;
        for (index, server) in self.origin.servers().iter().enumerate() {
            if index == 1 && !self.allow_layouts(true)? {
                break;
            }
            match layouts::write(self.new, layout, server) {
                Ok(()) => return Ok(()),
                Err(error) if error.raw_os_error().is_some_and(takes_no_more) => {
                    refused.get_or_insert((server, error));
                }
                Err(error) => return Err(unwritten(server, &path, what, error)),
            }
        }
        let Some((server, error)) = refused else { return Ok(()) };
        Err(unwritten(server, &path, what, error))
    }
}

/// The error of a server that does not take what a plan puts at `path` there: it has no other directory.
fn unwritten(server: &Server, path: &Path, action: &'static str, error: io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EROFS) => Some("mount it for writing, or plan without it".to_owned()),
        Some(libc::EPERM) => chattr::remedy(&server.dir().join(path)),
        _ => None,
    };
    let what = || format!("{}: cannot {action}: {error}", server.dir().display());
    match remedy {
        Some(remedy) => Error::invalid(what(), remedy),
        None => Error::at(server.dir(), action)(error),
    }
}

fn changed(shown: &Path) -> Error {
    let what = format!("{} was changed meanwhile", shown.display());
    Error::invalid(what, "end what changes it, and apply the plan again")
}
