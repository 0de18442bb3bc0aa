//! Changes of places and names, which the tests of kills, power losses and failing devices run.

mod clean_copies;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use halocline_api::config::Copies;
use halocline_api::control::Controlled;
use halocline_os::error::{Error, Result};
use halocline_tier::{Chore, TierOptions};
use halocline_vfs::{Engine, Make};

use self::clean_copies::{ARCHIVE_SCENARIOS, COPY_SCENARIOS};
use crate::fixture::{BY, CALLER, Fixture, limited};

/// Files by their paths, with their contents.
pub(super) type FileContents = BTreeMap<String, Vec<u8>>;

/// Some changes, one after the other.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) acts: &'static [Act],
}

/// One change.
pub(super) struct Act {
    pub(super) kind: Kind,
    does: fn(&Fixture) -> Result<()>,
    /// The files afterwards, as `path=content`; `BIG` is a large content.
    tree: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file changes its place, if that goes: no program minds if not.
    Move,
    /// Names change.
    Names,
    /// Bytes change: until they are synced a power loss may leave a mixture.
    Bytes,
    /// Bytes become durable.
    Sync,
    /// Data of removed files goes.
    CleanUp,
    /// Copies of removed files go: that needs no durable removal.
    CleanUpCopies,
}

/// What a killed mount unwinds with: the step that it had done.
struct Killed(&'static str);

/// Kills the mount after a step.
pub(super) fn kill(step: &'static str) -> ! {
    std::panic::resume_unwind(Box::new(Killed(step)))
}

/// How an act ended.
pub(super) enum Ended {
    Well,
    Failed(Error),
    /// The mount was killed after this step.
    Killed(&'static str),
}

/// Length of a large content: it does not fit beside what scenarios begin with.
const BIG_BYTES: usize = 40 << 10;

/// What all scenarios begin with: one file on the SSD and two below.
const BEGIN: &str = "away=away dir/deep=deep here=here";

/// That with a second name of a file.
const TWINS: &str = "away=away dir/deep=deep dir/twin=here here=here";
const LOWER_TWINS: &str = "away=away dir/deep=deep dir/twin=away here=here";

fn big() -> Vec<u8> {
    vec![b'x'; BIG_BYTES]
}

const fn moves(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { kind: Kind::Move, does, tree }
}

const fn names(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { kind: Kind::Names, does, tree }
}

const fn writes(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { kind: Kind::Bytes, does, tree }
}

const fn copies_go(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { kind: Kind::CleanUpCopies, does, tree }
}

const fn syncs(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { kind: Kind::Sync, does, tree }
}

const fn cleans(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { kind: Kind::CleanUp, does, tree }
}

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "demote", acts: &[moves(|tier| tier.moves_down("here"), BEGIN)] },
    Scenario { name: "promote", acts: &[moves(|tier| tier.moves_up("away"), BEGIN)] },
    Scenario {
        name: "batches go up and down, then one of the files is written and synced",
        acts: &[
            moves(|tier| tier.moves_up(""), BEGIN),
            moves(|tier| tier.moves_down(""), BEGIN),
            writes(|tier| tier.overwrites("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            syncs(Fixture::syncs, "away=away dir/deep=deep here=WRIT"),
        ],
    },
    Scenario {
        name: "open",
        acts: &[moves(
            |tier| tier.tier().open(&tier.vnode("away")?, libc::O_RDONLY, CALLER).map(drop),
            BEGIN,
        )],
    },
    Scenario {
        name: "unlink",
        acts: &[
            names(|tier| tier.unlinks("away"), "dir/deep=deep here=here"),
            cleans(Fixture::reap, "dir/deep=deep here=here"),
        ],
    },
    Scenario {
        name: "unlink, and another of that name goes down",
        acts: &[
            names(|tier| tier.unlinks("away"), "dir/deep=deep here=here"),
            names(|tier| tier.renames("here", "away"), "away=here dir/deep=deep"),
            moves(|tier| tier.moves_down("away"), "away=here dir/deep=deep"),
            cleans(Fixture::reap, "away=here dir/deep=deep"),
        ],
    },
    Scenario {
        name: "a directory goes with its file",
        acts: &[
            names(|tier| tier.unlinks("dir/deep"), "away=away here=here"),
            names(
                |tier| tier.tier().remove_dir(&tier.tier().root(), "dir".as_ref(), CALLER),
                "away=away here=here",
            ),
            cleans(Fixture::reap, "away=away here=here"),
        ],
    },
    Scenario {
        name: "rename",
        acts: &[names(
            |tier| tier.renames("away", "dir/new"),
            "dir/deep=deep dir/new=away here=here",
        )],
    },
    Scenario {
        name: "rename over",
        acts: &[
            names(|tier| tier.renames("here", "away"), "away=here dir/deep=deep"),
            cleans(Fixture::reap, "away=here dir/deep=deep"),
        ],
    },
    Scenario {
        name: "rename of a lower file over another",
        acts: &[
            names(|tier| tier.renames("away", "dir/deep"), "dir/deep=away here=here"),
            cleans(Fixture::reap, "dir/deep=away here=here"),
        ],
    },
    Scenario {
        name: "names exchanged",
        acts: &[names(
            |tier| {
                let root = tier.tier().root();
                let (one, other) = ((&root, "here".as_ref()), (&root, "away".as_ref()));
                tier.tier().rename(one, other, libc::RENAME_EXCHANGE, CALLER)
            },
            "away=here dir/deep=deep here=away",
        )],
    },
    Scenario {
        name: "directory renamed, then its file promoted and demoted",
        acts: &[
            names(|tier| tier.renames("dir", "other"), "away=away here=here other/deep=deep"),
            moves(|tier| tier.moves_up("other/deep"), "away=away here=here other/deep=deep"),
            moves(|tier| tier.moves_down("other/deep"), "away=away here=here other/deep=deep"),
            cleans(Fixture::reap, "away=away here=here other/deep=deep"),
        ],
    },
    Scenario {
        name: "truncating open",
        acts: &[writes(
            |tier| {
                let flags = libc::O_RDWR | libc::O_TRUNC;
                tier.tier().open(&tier.vnode("away")?, flags, CALLER).map(drop)
            },
            "away= dir/deep=deep here=here",
        )],
    },
    Scenario {
        name: "spill",
        acts: &[
            writes(|tier| tier.overwrites("here", &big()), "away=away dir/deep=deep here=BIG"),
            syncs(Fixture::syncs, "away=away dir/deep=deep here=BIG"),
        ],
    },
    Scenario {
        name: "written and synced wherever it is",
        acts: &[
            writes(|tier| tier.overwrites("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            syncs(Fixture::syncs, "away=away dir/deep=deep here=WRIT"),
            moves(|tier| tier.moves_down("here"), "away=away dir/deep=deep here=WRIT"),
            writes(|tier| tier.writes_more(b"below"), "away=away dir/deep=deep here=below"),
            syncs(Fixture::syncs, "away=away dir/deep=deep here=below"),
            moves(|tier| tier.moves_up("here"), "away=away dir/deep=deep here=below"),
            writes(|tier| tier.writes_more(b"above"), "away=away dir/deep=deep here=above"),
            syncs(Fixture::syncs, "away=away dir/deep=deep here=above"),
        ],
    },
    Scenario {
        name: "moved while nobody has it open, then written and synced",
        acts: &[
            moves(|tier| tier.moves_down("here"), BEGIN),
            writes(|tier| tier.overwrites("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            syncs(Fixture::syncs, "away=away dir/deep=deep here=WRIT"),
        ],
    },
    Scenario {
        name: "made, synced and sent down into a new directory",
        acts: &[
            names(
                |tier| {
                    let root = tier.tier().root();
                    let what = Make::Directory(0o755);
                    tier.tier().make((&root, "made".as_ref()), what, BY).map(drop)
                },
                BEGIN,
            ),
            names(|tier| tier.creates("made/new"), "away=away dir/deep=deep here=here made/new="),
            writes(
                |tier| tier.writes_more(b"new"),
                "away=away dir/deep=deep here=here made/new=new",
            ),
            syncs(Fixture::syncs, "away=away dir/deep=deep here=here made/new=new"),
            moves(
                |tier| tier.moves_down("made/new"),
                "away=away dir/deep=deep here=here made/new=new",
            ),
        ],
    },
    Scenario {
        name: "a second name for a lower file",
        acts: &[
            names(|tier| tier.links("away", "twin"), "away=away dir/deep=deep here=here twin=away"),
            names(
                |tier| tier.renames("twin", "dir/twin"),
                "away=away dir/deep=deep dir/twin=away here=here",
            ),
            names(|tier| tier.unlinks("away"), "dir/deep=deep dir/twin=away here=here"),
            moves(|tier| tier.moves_up("dir/twin"), "dir/deep=deep dir/twin=away here=here"),
            cleans(Fixture::reap, "dir/deep=deep dir/twin=away here=here"),
        ],
    },
    Scenario {
        name: "two names go down and up",
        acts: &[
            names(|tier| tier.links("here", "dir/twin"), TWINS),
            moves(|tier| tier.moves_down("here"), TWINS),
            moves(|tier| tier.moves_up("dir/twin"), TWINS),
        ],
    },
    Scenario {
        name: "two names of a lower file go up and down",
        acts: &[
            names(|tier| tier.links("away", "dir/twin"), LOWER_TWINS),
            moves(|tier| tier.moves_up("away"), LOWER_TWINS),
            moves(|tier| tier.moves_down("dir/twin"), LOWER_TWINS),
        ],
    },
    Scenario {
        name: "both names of a lower file go",
        acts: &[
            names(|tier| tier.links("here", "dir/twin"), TWINS),
            moves(|tier| tier.moves_down("here"), TWINS),
            names(|tier| tier.renames("dir/deep", "here"), "away=away dir/twin=here here=deep"),
            names(|tier| tier.unlinks("dir/twin"), "away=away here=deep"),
            cleans(Fixture::reap, "away=away here=deep"),
        ],
    },
    Scenario {
        name: "written below by one of two names, and synced",
        acts: &[
            names(|tier| tier.links("here", "dir/twin"), TWINS),
            moves(|tier| tier.moves_down("here"), TWINS),
            writes(
                |tier| tier.overwrites("dir/twin", b"WRIT"),
                "away=away dir/deep=deep dir/twin=WRIT here=WRIT",
            ),
            syncs(Fixture::syncs, "away=away dir/deep=deep dir/twin=WRIT here=WRIT"),
        ],
    },
    Scenario {
        name: "spill of two names",
        acts: &[
            names(|tier| tier.links("here", "dir/twin"), TWINS),
            writes(
                |tier| tier.overwrites("here", &big()),
                "away=away dir/deep=deep dir/twin=BIG here=BIG",
            ),
            syncs(Fixture::syncs, "away=away dir/deep=deep dir/twin=BIG here=BIG"),
        ],
    },
];

/// All scenarios, and which copies are kept in each.
pub(super) fn scenarios() -> impl Iterator<Item = (&'static Scenario, Copies)> {
    let of_copies = COPY_SCENARIOS.iter().map(|scenario| (scenario, Copies::Keep));
    let of_archiving = ARCHIVE_SCENARIOS.iter().map(|scenario| (scenario, Copies::Archive));
    SCENARIOS.iter().map(|scenario| (scenario, Copies::None)).chain(of_copies).chain(of_archiving)
}

impl Act {
    pub(super) fn run(&self, fixture: &Fixture) -> Ended {
        match catch_unwind(AssertUnwindSafe(|| (self.does)(fixture))) {
            Ok(Ok(())) => Ended::Well,
            Ok(Err(error)) => Ended::Failed(error),
            Err(payload) => match payload.downcast::<Killed>() {
                Ok(killed) => Ended::Killed(killed.0),
                Err(other) => std::panic::resume_unwind(other),
            },
        }
    }

    /// Whether nothing of it or of what went before is lost in a power loss once it is done.
    pub(super) fn is_durable(&self) -> bool {
        matches!(self.kind, Kind::Move | Kind::Sync | Kind::CleanUp)
    }
}

impl Scenario {
    /// The tree after `acts` of its acts.
    pub(super) fn tree(&self, acts: usize) -> FileContents {
        let files = if acts == 0 { BEGIN } else { self.acts[acts - 1].tree };
        let files = files.split(' ').map(|file| file.split_once('=').expect("path=content"));
        let bytes = |text: &str| if text == "BIG" { big() } else { text.as_bytes().to_vec() };
        files.map(|(path, text)| (path.to_owned(), bytes(text))).collect()
    }

    /// Asserts that `found` is one of the trees after `first` to `last` acts. A file that changed
    /// between them may be torn: its bytes are those of one of the trees, or zero.
    pub(super) fn assert_between(
        &self,
        found: &FileContents,
        (first, last): (usize, usize),
        context: &dyn Fn() -> String,
    ) {
        let trees: Vec<FileContents> = (first..=last).map(|acts| self.tree(acts)).collect();
        let writes = self.acts[first..last].iter().any(|act| act.kind == Kind::Bytes);
        let torn = |path: &String, bytes: &[u8]| {
            let versions: Vec<&Vec<u8>> = trees.iter().filter_map(|tree| tree.get(path)).collect();
            writes
                && versions.iter().any(|version| *version != versions[0])
                && bytes.iter().enumerate().all(|(at, byte)| {
                    versions.iter().any(|version| version.get(at).is_some_and(|b| b == byte))
                        || (*byte == 0 && versions.iter().any(|version| at < version.len()))
                })
        };
        let is = |tree: &FileContents| {
            tree.len() == found.len()
                && tree.iter().zip(found).all(|((path, bytes), (other, found))| {
                    path == other && (bytes == found || torn(path, found))
                })
        };
        assert!(trees.iter().any(is), "{}: {}", context(), shown(found));
    }
}

fn shown(tree: &FileContents) -> String {
    let short =
        |bytes: &Vec<u8>| String::from_utf8_lossy(&bytes[..bytes.len().min(8)]).into_owned();
    let files = tree.iter().map(|(path, bytes)| format!("{path}: {:?}", short(bytes)));
    files.collect::<Vec<_>>().join(", ")
}

impl Fixture {
    /// What all scenarios begin with, on a file system that is quick to sync if there is one.
    pub(super) fn of_scenarios(copies: Copies) -> Self {
        let archive_after = Duration::ZERO;
        let options = TierOptions { copies, archive_after, ..limited(48 << 10) };
        let fixture = Self::quick(options);
        fixture.write("here", b"here");
        fixture.write("away", b"away");
        let (root, name) = fixture.at("dir");
        fixture.tier().make((&root, name), Make::Directory(0o755), BY).unwrap();
        fixture.write("dir/deep", b"deep");
        fixture.demote("away");
        fixture.demote("dir/deep");
        fixture.reap().unwrap();
        fixture
    }

    /// All files with their contents.
    pub(super) fn tree(&self) -> FileContents {
        let files = self.tier().files(Path::new("")).unwrap();
        let paths = files.iter().map(|file| file.path.to_str().unwrap().to_owned());
        paths.map(|path| (path.clone(), self.content(&path).expect("it is there"))).collect()
    }

    fn unlinks(&self, path: &str) -> Result<()> {
        let (dir, name) = self.at(path);
        self.tier().unlink(&dir, name, CALLER)
    }

    fn links(&self, from: &str, to: &str) -> Result<()> {
        let (vnode, (dir, name)) = (self.vnode(from)?, self.at(to));
        self.tier().link(&vnode, &dir, name).map(drop)
    }

    fn renames(&self, from: &str, to: &str) -> Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.at(from), self.at(to));
        self.tier().rename((&from_dir, from), (&to_dir, to), 0, CALLER)
    }

    /// A file that cannot be moved stays, and nobody fails.
    fn moves_down(&self, path: &str) -> Result<()> {
        self.tier().evict(Path::new(path), false, &mut |_| ControlFlow::Continue(())).map(drop)
    }

    fn moves_up(&self, path: &str) -> Result<()> {
        let sink = &mut |_| ControlFlow::Continue(());
        self.tier().warm(&[path.into()], false, sink).map(drop)
    }

    fn archives(&self) {
        self.work(Chore::RecordCopies);
        self.work(Chore::Archive);
    }

    fn overwrites(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let handle = self.tier().open(&self.vnode(path)?, libc::O_RDWR, CALLER)?;
        self.held.lock().push(handle);
        self.writes_more(bytes)
    }

    fn creates(&self, path: &str) -> Result<()> {
        let (dir, name) = self.at(path);
        let made = self.tier().create((&dir, name), 0o640, libc::O_RDWR, BY)?;
        self.held.lock().push(made.2);
        Ok(())
    }

    fn writes_more(&self, bytes: &[u8]) -> Result<()> {
        let held = self.held.lock();
        self.tier().write(held.last().expect("an open file"), 0, bytes, CALLER)
    }

    fn syncs(&self) -> Result<()> {
        self.tier().fsync(self.held.lock().last().expect("an open file"), false)
    }
}
