//! Changes of places and names that the tests of kills, power losses and failing devices go through.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::engine::Make;

/// Files by their paths, with their contents.
pub(super) type Tree = BTreeMap<String, Vec<u8>>;

/// Some changes, one after the other.
pub(super) struct Story {
    pub(super) name: &'static str,
    pub(super) acts: &'static [Act],
}

/// One change.
pub(super) struct Act {
    pub(super) does: fn(&Fixture) -> Result<()>,
    /// The files afterwards, as `path=content`; `BIG` is a large content.
    pub(super) tree: &'static str,
    /// Nothing of it or of what went before is lost in a power loss once it is done.
    pub(super) durable: bool,
    /// It changes bytes: until they are synced a power loss may leave a mixture.
    pub(super) writes: bool,
}

const BIG: &[u8] = &[b'x'; 40 << 10];

/// What all stories begin with: one file on the SSD and two below.
const BEGIN: &str = "away=away dir/deep=deep here=here";

const fn change(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { does, tree, durable: false, writes: false }
}

const fn durable(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { does, tree, durable: true, writes: false }
}

const fn write(does: fn(&Fixture) -> Result<()>, tree: &'static str) -> Act {
    Act { does, tree, durable: false, writes: true }
}

pub(super) const STORIES: &[Story] = &[
    Story { name: "demote", acts: &[durable(|tier| tier.moves_down("here"), BEGIN)] },
    Story { name: "promote", acts: &[durable(|tier| tier.moves_up("away"), BEGIN)] },
    Story {
        name: "open",
        acts: &[durable(
            |tier| tier.tier().open(&tier.node("away")?, libc::O_RDONLY, CALLER).map(drop),
            BEGIN,
        )],
    },
    Story {
        name: "unlink",
        acts: &[
            change(|tier| tier.unlinks("away"), "dir/deep=deep here=here"),
            durable(|tier| tier.tier().core.finish_removals(), "dir/deep=deep here=here"),
        ],
    },
    Story {
        name: "unlink, and another of that name goes down",
        acts: &[
            change(|tier| tier.unlinks("away"), "dir/deep=deep here=here"),
            change(|tier| tier.renames("here", "away"), "away=here dir/deep=deep"),
            change(|tier| tier.moves_down("away"), "away=here dir/deep=deep"),
            durable(|tier| tier.tier().core.finish_removals(), "away=here dir/deep=deep"),
        ],
    },
    Story {
        name: "a directory goes with its file",
        acts: &[
            change(|tier| tier.unlinks("dir/deep"), "away=away here=here"),
            change(
                |tier| tier.tier().remove_dir(&tier.tier().root(), "dir".as_ref()),
                "away=away here=here",
            ),
            durable(|tier| tier.tier().core.finish_removals(), "away=away here=here"),
        ],
    },
    Story {
        name: "rename",
        acts: &[change(
            |tier| tier.renames("away", "dir/new"),
            "dir/deep=deep dir/new=away here=here",
        )],
    },
    Story {
        name: "rename over",
        acts: &[
            change(|tier| tier.renames("here", "away"), "away=here dir/deep=deep"),
            durable(|tier| tier.tier().core.finish_removals(), "away=here dir/deep=deep"),
        ],
    },
    Story {
        name: "rename of a lower file over another",
        acts: &[
            change(|tier| tier.renames("away", "dir/deep"), "dir/deep=away here=here"),
            change(|tier| tier.tier().core.finish_removals(), "dir/deep=away here=here"),
        ],
    },
    Story {
        name: "names exchanged",
        acts: &[change(
            |tier| {
                let root = tier.tier().root();
                let (one, other) = ((&root, "here".as_ref()), (&root, "away".as_ref()));
                tier.tier().rename(one, other, libc::RENAME_EXCHANGE)
            },
            "away=here dir/deep=deep here=away",
        )],
    },
    Story {
        name: "directory renamed, then its file promoted and demoted",
        acts: &[
            change(|tier| tier.renames("dir", "other"), "away=away here=here other/deep=deep"),
            change(|tier| tier.moves_up("other/deep"), "away=away here=here other/deep=deep"),
            change(|tier| tier.moves_down("other/deep"), "away=away here=here other/deep=deep"),
            change(
                |tier| tier.tier().core.finish_removals(),
                "away=away here=here other/deep=deep",
            ),
        ],
    },
    Story {
        name: "truncating open",
        acts: &[write(
            |tier| {
                let flags = libc::O_RDWR | libc::O_TRUNC;
                tier.tier().open(&tier.node("away")?, flags, CALLER).map(drop)
            },
            "away= dir/deep=deep here=here",
        )],
    },
    Story {
        name: "spill",
        acts: &[
            write(|tier| tier.writes("here", BIG), "away=away dir/deep=deep here=BIG"),
            durable(Fixture::syncs, "away=away dir/deep=deep here=BIG"),
        ],
    },
    Story {
        name: "written and synced wherever it is",
        acts: &[
            write(|tier| tier.writes("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            durable(Fixture::syncs, "away=away dir/deep=deep here=WRIT"),
            durable(|tier| tier.moves_down("here"), "away=away dir/deep=deep here=WRIT"),
            write(|tier| tier.goes_on(b"below"), "away=away dir/deep=deep here=below"),
            durable(Fixture::syncs, "away=away dir/deep=deep here=below"),
            durable(|tier| tier.moves_up("here"), "away=away dir/deep=deep here=below"),
            write(|tier| tier.goes_on(b"above"), "away=away dir/deep=deep here=above"),
            durable(Fixture::syncs, "away=away dir/deep=deep here=above"),
        ],
    },
    Story {
        name: "made, synced and sent down into a new directory",
        acts: &[
            change(
                |tier| {
                    let root = tier.tier().root();
                    let what = Make::Directory(0o755);
                    tier.tier().make((&root, "made".as_ref()), what, BY).map(drop)
                },
                BEGIN,
            ),
            change(|tier| tier.creates("made/new"), "away=away dir/deep=deep here=here made/new="),
            write(|tier| tier.goes_on(b"new"), "away=away dir/deep=deep here=here made/new=new"),
            durable(Fixture::syncs, "away=away dir/deep=deep here=here made/new=new"),
            durable(
                |tier| tier.moves_down("made/new"),
                "away=away dir/deep=deep here=here made/new=new",
            ),
        ],
    },
    Story {
        name: "a second name for a lower file",
        acts: &[change(
            |tier| {
                let root = tier.tier().root();
                tier.tier().link(&tier.node("away")?, &root, "twin".as_ref()).map(drop)
            },
            "away=away dir/deep=deep here=here twin=away",
        )],
    },
];

impl Story {
    /// The tree after `acts` of its acts.
    pub(super) fn tree(&self, acts: usize) -> Tree {
        let files = if acts == 0 { BEGIN } else { self.acts[acts - 1].tree };
        let files = files.split(' ').map(|file| file.split_once('=').expect("path=content"));
        let bytes =
            |text: &str| if text == "BIG" { BIG.to_vec() } else { text.as_bytes().to_vec() };
        files.map(|(path, text)| (path.to_owned(), bytes(text))).collect()
    }

    /// Asserts that `found` is one of the trees after `first` to `last` acts. A file that changed
    /// between them may be torn: its bytes are those of one of the trees, or zero.
    pub(super) fn assert_between(
        &self,
        found: &Tree,
        (first, last): (usize, usize),
        context: &dyn Fn() -> String,
    ) {
        let trees: Vec<Tree> = (first..=last).map(|acts| self.tree(acts)).collect();
        let writes = self.acts[first..last].iter().any(|act| act.writes);
        let torn = |path: &String, bytes: &[u8]| {
            let versions: Vec<&Vec<u8>> = trees.iter().filter_map(|tree| tree.get(path)).collect();
            writes
                && versions.iter().any(|version| *version != versions[0])
                && bytes.iter().enumerate().all(|(at, byte)| {
                    versions.iter().any(|version| version.get(at).is_some_and(|b| b == byte))
                        || (*byte == 0 && versions.iter().any(|version| at < version.len()))
                })
        };
        let is = |tree: &Tree| {
            tree.len() == found.len()
                && tree.iter().zip(found).all(|((path, bytes), (other, found))| {
                    path == other && (bytes == found || torn(path, found))
                })
        };
        assert!(trees.iter().any(is), "{}: {}", context(), shown(found));
    }
}

fn shown(tree: &Tree) -> String {
    let short =
        |bytes: &Vec<u8>| String::from_utf8_lossy(&bytes[..bytes.len().min(8)]).into_owned();
    let files = tree.iter().map(|(path, bytes)| format!("{path}: {:?}", short(bytes)));
    files.collect::<Vec<_>>().join(", ")
}

impl Fixture {
    /// What all stories begin with, on a file system that is quick to sync if there is one.
    pub(super) fn of_stories() -> Self {
        let quick = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let fixture = Self::within(quick, &["ssd", "hdd"], limited(48 << 10));
        fixture.write("here", b"here");
        fixture.write("away", b"away");
        let (root, name) = fixture.at("dir");
        fixture.tier().make((&root, name), Make::Directory(0o755), BY).unwrap();
        fixture.write("dir/deep", b"deep");
        fixture.demote("away");
        fixture.demote("dir/deep");
        fixture.tier().core.finish_removals().unwrap();
        fixture
    }

    /// All files with their contents.
    pub(super) fn tree(&self) -> Tree {
        let files = self.tier().files(Path::new("")).unwrap();
        let paths = files.iter().map(|file| file.path.to_str().unwrap().to_owned());
        paths.map(|path| (path.clone(), self.content(&path).expect("it is there"))).collect()
    }

    fn unlinks(&self, path: &str) -> Result<()> {
        let (dir, name) = self.at(path);
        self.tier().unlink(&dir, name)
    }

    fn renames(&self, from: &str, to: &str) -> Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.at(from), self.at(to));
        self.tier().rename((&from_dir, from), (&to_dir, to), 0)
    }

    /// A file that cannot be moved stays, and nobody fails.
    fn moves_down(&self, path: &str) -> Result<()> {
        self.tier().evict(Path::new(path), false, &mut |_| ControlFlow::Continue(())).map(drop)
    }

    fn moves_up(&self, path: &str) -> Result<()> {
        let sink = &mut |_| ControlFlow::Continue(());
        self.tier().warm(&[path.into()], false, sink).map(drop)
    }

    fn writes(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let handle = self.tier().open(&self.node(path)?, libc::O_RDWR, CALLER)?;
        self.held.lock().push(handle);
        self.goes_on(bytes)
    }

    fn creates(&self, path: &str) -> Result<()> {
        let (dir, name) = self.at(path);
        let made = self.tier().create((&dir, name), 0o640, libc::O_RDWR, BY)?;
        self.held.lock().push(made.2);
        Ok(())
    }

    fn goes_on(&self, bytes: &[u8]) -> Result<()> {
        let held = self.held.lock();
        self.tier().write(held.last().expect("an open file"), 0, bytes, CALLER)
    }

    fn syncs(&self) -> Result<()> {
        self.tier().fsync(self.held.lock().last().expect("an open file"), false)
    }
}
