//! A mount that is killed at each step of each change of places and names.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::tier::crash::armed::{Killed, arm};

/// A change that may be killed, and what the files may hold afterwards.
struct Case {
    name: &'static str,
    act: fn(&Fixture),
    /// Path, and contents it may have then; `None` is no file.
    allowed: &'static [(&'static str, &'static [Option<&'static str>])],
}

const CASES: &[Case] = &[
    Case {
        name: "demote",
        act: |tier| drop(tier.demote("here")),
        allowed: &[("here", &[Some("here")]), ("away", &[Some("away")])],
    },
    Case {
        name: "promote",
        act: |tier| drop(tier.warm("away")),
        allowed: &[("here", &[Some("here")]), ("away", &[Some("away")])],
    },
    Case {
        name: "open",
        act: |tier| drop(tier.open_file("away", libc::O_RDONLY)),
        allowed: &[("away", &[Some("away")])],
    },
    Case {
        name: "unlink",
        act: |tier| {
            let (dir, name) = tier.at("away");
            tier.tier().unlink(&dir, name).unwrap();
            tier.tier().core.finish_removals().unwrap();
        },
        allowed: &[("away", &[Some("away"), None]), ("here", &[Some("here")])],
    },
    Case {
        name: "rename",
        act: |tier| rename(tier, "away", "dir/new"),
        allowed: &[("away", &[Some("away"), None]), ("dir/new", &[Some("away"), None])],
    },
    Case {
        name: "rename over",
        act: |tier| rename(tier, "here", "away"),
        allowed: &[("here", &[Some("here"), None]), ("away", &[Some("away"), Some("here")])],
    },
    Case {
        name: "rename of a lower file over another",
        act: |tier| rename(tier, "away", "dir/deep"),
        allowed: &[("away", &[Some("away"), None]), ("dir/deep", &[Some("away"), Some("deep")])],
    },
    Case {
        name: "directory renamed, then its file promoted and demoted",
        act: |tier| {
            rename(tier, "dir", "other");
            tier.warm("other/deep");
            tier.demote("other/deep");
            tier.tier().core.finish_removals().unwrap();
        },
        allowed: &[("dir/deep", &[Some("deep"), None]), ("other/deep", &[Some("deep"), None])],
    },
    Case {
        name: "truncating open",
        act: |tier| drop(tier.open_file("away", libc::O_RDWR | libc::O_TRUNC)),
        allowed: &[("away", &[Some("away"), Some("")])],
    },
    Case {
        name: "spill",
        act: |tier| {
            let handle = tier.open_file("here", libc::O_WRONLY);
            tier.tier().write(&handle, 0, &vec![b'x'; 200 << 10], CALLER).unwrap();
        },
        allowed: &[("away", &[Some("away")])],
    },
];

fn rename(tier: &Fixture, from: &str, to: &str) {
    let ((from_dir, from), (to_dir, to)) = (tier.at(from), tier.at(to));
    tier.tier().rename((&from_dir, from), (&to_dir, to), 0).unwrap();
}

fn prepared() -> Fixture {
    let fixture = Fixture::new(limited(160 << 10));
    fixture.write("here", b"here");
    fixture.write("away", b"away");
    let (root, name) = fixture.at("dir");
    fixture.tier().make((&root, name), crate::engine::Make::Directory(0o755), BY).unwrap();
    fixture.write("dir/deep", b"deep");
    fixture.demote("away");
    fixture.demote("dir/deep");
    fixture.tier().core.finish_removals().unwrap();
    fixture
}

/// I4 and I10: after a kill at any step the next mount has every file, whole, in one place, and
/// nothing else.
#[test]
fn i10_a_kill_at_any_step_leaves_one_whole_copy() {
    let mut steps = 0;
    for case in CASES {
        for count in 0.. {
            let mut fixture = prepared();
            arm(Some(count));
            let ended = catch_unwind(AssertUnwindSafe(|| (case.act)(&fixture)));
            arm(None);
            let at = match ended {
                Ok(()) => break,
                Err(payload) => match payload.downcast::<Killed>() {
                    Ok(killed) => killed.0,
                    Err(other) => std::panic::resume_unwind(other),
                },
            };
            steps += 1;
            fixture.open();
            let context = format!("{}, killed after {at}", case.name);
            assert_eq!(fixture.found.problems, [], "{context}");
            assert!(fixture.found.adopted.is_empty(), "{context}: {:?}", fixture.found.adopted);
            let mut left: Vec<String> = Vec::new();
            for (path, allowed) in case.allowed {
                let found = fixture.content(path).map(|b| String::from_utf8(b).unwrap());
                assert!(allowed.contains(&found.as_deref()), "{context}: {path} is {found:?}");
                left.extend(found);
            }
            // What a rename moves is there under one of its names.
            for kept in ["here", "deep"] {
                let replaced = case.name.contains("over");
                let spilled = case.name == "spill";
                assert!(
                    replaced || spilled || fixture.anywhere(kept),
                    "{context}: {kept} is lost, {left:?}"
                );
            }
            fixture.check_places();
        }
    }
    assert!(steps > 60, "only {steps} steps were killed");
}

impl Fixture {
    fn anywhere(&self, content: &str) -> bool {
        let files = self.tier().files(Path::new("")).unwrap();
        files.iter().any(|file| {
            self.content(file.path.to_str().unwrap()).as_deref() == Some(content.as_bytes())
        })
    }
}
