//! Scenarios of clean copies.

use super::{Act, BEGIN, Scenario, cleans, copies_go, moves, names, syncs, writes};
use halocline_os::error::Result;
use halocline_tier::Chore;
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{AMPLE_ROOM, CALLER, Fixture};

const fn archives(tree: &'static str) -> Act {
    let does = |tier: &Fixture| {
        tier.archives();
        Ok(())
    };
    moves(does, tree)
}

const fn records_again(tree: &'static str) -> Act {
    let does = |tier: &Fixture| {
        tier.work(Chore::RecordCopies);
        Ok(())
    };
    moves(does, tree)
}

impl Fixture {
    /// Takes a file's permissions away from everybody but its owner.
    fn closes(&self, path: &str) -> Result<()> {
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        self.tier().set_attr(&self.vnode(path)?, None, &change, CALLER).map(drop)
    }
}

/// Those in which copies are kept.
pub(crate) const COPY_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "promoted and demoted to what it was",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            moves(|tier| tier.moves_down("away"), BEGIN),
        ],
    },
    Scenario {
        name: "promoted, written, and demoted before anybody syncs it",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            writes(|tier| tier.overwrites("away", b"WRIT"), "away=WRIT dir/deep=deep here=here"),
            moves(|tier| tier.moves_down("away"), "away=WRIT dir/deep=deep here=here"),
        ],
    },
    Scenario {
        name: "promoted, written and synced",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            writes(|tier| tier.overwrites("away", b"WRIT"), "away=WRIT dir/deep=deep here=here"),
            syncs(Fixture::syncs, "away=WRIT dir/deep=deep here=here"),
            cleans(Fixture::reap, "away=WRIT dir/deep=deep here=here"),
        ],
    },
    Scenario {
        name: "written below, then promoted and demoted",
        acts: &[
            writes(|tier| tier.overwrites("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            syncs(Fixture::syncs, "away=away dir/deep=deep here=WRIT"),
            moves(|tier| tier.moves_down("here"), "away=away dir/deep=deep here=WRIT"),
            writes(|tier| tier.writes_more(b"below"), "away=away dir/deep=deep here=below"),
            moves(|tier| tier.moves_up("here"), "away=away dir/deep=deep here=below"),
            moves(|tier| tier.moves_down("here"), "away=away dir/deep=deep here=below"),
        ],
    },
    Scenario {
        name: "promoted and emptied",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            writes(
                |tier| {
                    let flags = libc::O_RDWR | libc::O_TRUNC;
                    tier.tier().open(&tier.vnode("away")?, flags, CALLER).map(drop)
                },
                "away= dir/deep=deep here=here",
            ),
        ],
    },
    Scenario {
        name: "promoted, given another mode, and demoted",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            writes(
                |tier| {
                    let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                    tier.tier().set_attr(&tier.vnode("away")?, None, &change, CALLER).map(drop)
                },
                BEGIN,
            ),
            moves(|tier| tier.moves_down("away"), BEGIN),
        ],
    },
    Scenario {
        name: "promoted, closed, recorded again, and demoted",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            writes(|tier| tier.closes("away"), BEGIN),
            records_again(BEGIN),
            moves(|tier| tier.moves_down("away"), BEGIN),
        ],
    },
    Scenario {
        name: "promoted, closed, and synced",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            writes(
                |tier| {
                    let handle = tier.tier().open(&tier.vnode("away")?, libc::O_RDWR, CALLER)?;
                    tier.held.lock().push(handle);
                    tier.closes("away")
                },
                BEGIN,
            ),
            syncs(Fixture::syncs, BEGIN),
        ],
    },
    Scenario {
        name: "promoted, written, and closed before its copy is removed",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            writes(|tier| tier.overwrites("away", b"WRIT"), "away=WRIT dir/deep=deep here=here"),
            writes(|tier| tier.closes("away"), "away=WRIT dir/deep=deep here=here"),
            copies_go(Fixture::reap, "away=WRIT dir/deep=deep here=here"),
        ],
    },
    Scenario {
        name: "promoted and removed",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            names(|tier| tier.unlinks("away"), "dir/deep=deep here=here"),
            copies_go(Fixture::reap, "dir/deep=deep here=here"),
        ],
    },
    Scenario {
        name: "promoted, renamed and demoted",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            names(|tier| tier.renames("away", "dir/new"), "dir/deep=deep dir/new=away here=here"),
            moves(|tier| tier.moves_down("dir/new"), "dir/deep=deep dir/new=away here=here"),
            cleans(Fixture::reap, "dir/deep=deep dir/new=away here=here"),
        ],
    },
    Scenario {
        name: "promoted and replaced",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            names(|tier| tier.renames("here", "away"), "away=here dir/deep=deep"),
            moves(|tier| tier.moves_down("away"), "away=here dir/deep=deep"),
            cleans(Fixture::reap, "away=here dir/deep=deep"),
        ],
    },
    Scenario {
        name: "promoted and given a second name",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            names(
                |tier| {
                    let root = tier.tier().root();
                    tier.tier().link(&tier.vnode("away")?, &root, "twin".as_ref()).map(drop)
                },
                "away=away dir/deep=deep here=here twin=away",
            ),
        ],
    },
    Scenario {
        name: "promoted, and its copy gives way",
        acts: &[
            moves(|tier| tier.moves_up("away"), BEGIN),
            cleans(
                |tier| {
                    // Another file shall go where there is no room.
                    tier.set_room(1, 0);
                    tier.moves_down("here")?;
                    tier.set_room(1, AMPLE_ROOM);
                    tier.reap()
                },
                BEGIN,
            ),
            moves(|tier| tier.moves_down("away"), BEGIN),
        ],
    },
];

/// Those in which copies are made.
pub(crate) const ARCHIVE_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "archived and demoted",
        acts: &[archives(BEGIN), moves(|tier| tier.moves_down("here"), BEGIN)],
    },
    Scenario {
        name: "archived, written, and demoted before anybody syncs it",
        acts: &[
            archives(BEGIN),
            writes(|tier| tier.overwrites("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            moves(|tier| tier.moves_down("here"), "away=away dir/deep=deep here=WRIT"),
        ],
    },
    Scenario {
        name: "archived, written, archived again and demoted",
        acts: &[
            archives(BEGIN),
            writes(|tier| tier.overwrites("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            archives("away=away dir/deep=deep here=WRIT"),
            moves(|tier| tier.moves_down("here"), "away=away dir/deep=deep here=WRIT"),
        ],
    },
    Scenario {
        name: "archived, written, closed, and archived again",
        acts: &[
            archives(BEGIN),
            writes(|tier| tier.overwrites("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            writes(|tier| tier.closes("here"), "away=away dir/deep=deep here=WRIT"),
            archives("away=away dir/deep=deep here=WRIT"),
        ],
    },
    Scenario {
        name: "archived, closed, renamed, and straightened",
        acts: &[
            archives(BEGIN),
            writes(|tier| tier.closes("here"), BEGIN),
            names(|tier| tier.renames("here", "dir/new"), "away=away dir/deep=deep dir/new=here"),
            archives("away=away dir/deep=deep dir/new=here"),
        ],
    },
    Scenario {
        name: "written, archived, and removed",
        acts: &[
            writes(|tier| tier.overwrites("here", b"WRIT"), "away=away dir/deep=deep here=WRIT"),
            archives("away=away dir/deep=deep here=WRIT"),
            names(|tier| tier.unlinks("here"), "away=away dir/deep=deep"),
            copies_go(Fixture::reap, "away=away dir/deep=deep"),
        ],
    },
    Scenario {
        name: "archived, renamed, straightened and demoted",
        acts: &[
            archives(BEGIN),
            names(|tier| tier.renames("here", "dir/new"), "away=away dir/deep=deep dir/new=here"),
            archives("away=away dir/deep=deep dir/new=here"),
            moves(|tier| tier.moves_down("dir/new"), "away=away dir/deep=deep dir/new=here"),
        ],
    },
];
