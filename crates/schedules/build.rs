//! Makes modules from sources of the product: the same text over primitives that shuttle explores, and canaries, in which
//! one line is wrong (docs/decisions/0036-schedule-tests.md).

use std::path::{Path, PathBuf};
use std::{env, fs};

/// A source that is explored.
struct Source {
    name: &'static str,
    /// Below `crates`.
    path: &'static str,
    /// Constants with smaller values, so that few threads reach all states, and what stands in for more of the product
    /// beside the stories.
    smaller: &'static [(&'static str, &'static str)],
    /// For each canary its name, a text that occurs once in the source, and the wrong text in its place.
    canaries: &'static [(&'static str, &'static str, &'static str)],
}

/// The primitives that are replaced, wherever a source names them.
const PRIMITIVES: [(&str, &str); 15] = [
    // What is beside it in its crate is beside the stories.
    ("use crate::", "use super::"),
    ("use parking_lot::", "use crate::sync::"),
    ("use std::sync::atomic::", "use shuttle::sync::atomic::"),
    ("use std::thread::", "use shuttle::thread::"),
    ("use std::thread;", "use shuttle::thread;"),
    ("std::thread::Builder", "shuttle::thread::Builder"),
    ("use halocline_os::clock::Clock;", "use crate::sync::Clock;"),
    ("use super::clock::Clock;", "use crate::sync::Clock;"),
    ("use halocline_meta::lease::Lease;", "use crate::sync::Lease;"),
    // What these do elsewhere stands in for it beside the stories.
    ("use halocline_api::", "use super::halocline_api::"),
    ("use halocline_cluster::", "use super::halocline_cluster::"),
    ("use halocline_vfs::", "use super::halocline_vfs::"),
    ("tracing::debug!", "crate::sync::told!"),
    ("tracing::warn!", "crate::sync::told!"),
    ("tracing::error!", "crate::sync::told!"),
];

const SOURCES: [Source; 15] = [
    Source {
        name: "range_lock",
        path: "cache/src/range_lock.rs",
        smaller: &[],
        canaries: &[
            (
                "who_leaves_tells_nobody",
                "        state.held.swap_remove(at.expect(\"a guard's range is held until it is dropped\"));\n        if !state.waiting.is_empty() {",
                "        state.held.swap_remove(at.expect(\"a guard's range is held until it is dropped\"));\n        if false {",
            ),
            (
                "who_gives_way_tells_nobody",
                "            lock.freed.notify_all();\n            if !watched {",
                "            if !watched {",
            ),
            (
                "who_waits_does_not_look_again",
                "            while !state.may_enter(&mine) {\n",
                "            if !state.may_enter(&mine) {\n",
            ),
        ],
    },
    Source {
        name: "changes_under_way",
        path: "cache/src/changes_under_way.rs",
        smaller: &[],
        canaries: &[
            ("nobody_is_woken", "                self.begun.notify_one();\n", ""),
            (
                "a_change_that_begins_is_not_seen",
                "        if self.is_empty() {\n            lease.forget_exit();",
                "        if true {\n            lease.forget_exit();",
            ),
            (
                "the_note_comes_before_the_count",
                "        self.count.fetch_add(1, Ordering::SeqCst);\n        if !self.noted",
                "        if self.noted.load(Ordering::SeqCst) {\n            self.count.fetch_add(1, Ordering::SeqCst);\n            return;\n        }\n        self.count.fetch_add(1, Ordering::SeqCst);\n        if !self.noted",
            ),
            // As it was until this found it.
            (
                "others_rely_on_a_note_too_early",
                "                lease.note_exit();\n                self.noted.store(true, Ordering::SeqCst);\n",
                "                self.noted.store(true, Ordering::SeqCst);\n                lease.note_exit();\n",
            ),
        ],
    },
    Source {
        name: "backpressure",
        path: "cache/src/backpressure.rs",
        smaller: &[],
        canaries: &[
            ("nobody_is_told", "        self.more.notify_all();\n", ""),
            // As it was until this found it.
            (
                "what_was_made_before_is_not_tried",
                "            match take() {\n                Ok(None) if !late => {}\n                other => break other,\n            }\n            let mut made = self.made.lock();\n            late = self.clock.wait_while(&self.more, &mut made, |made| *made == before, until);\n            before = *made;\n",
                "            let mut made = self.made.lock();\n            before = *made;\n            late = self.clock.wait_while(&self.more, &mut made, |made| *made == before, until);\n            drop(made);\n            match take() {\n                Ok(None) if !late => {}\n                other => break other,\n            }\n",
            ),
        ],
    },
    Source {
        name: "queue",
        path: "storage/src/volume/queue.rs",
        smaller: &[("const WORKERS_MAX: usize = 8;", "const WORKERS_MAX: usize = 2;")],
        canaries: &[
            ("no_worker_is_woken", "            self.shared.work.notify_one();\n", ""),
            ("the_last_part_tells_nobody", "            self.0.ended.notify_one();\n", ""),
        ],
    },
    Source {
        name: "wakeups",
        path: "os/src/wakeups.rs",
        smaller: &[],
        canaries: &[
            (
                "what_is_due_wakes_nobody",
                "        tell(&mut self.state.lock().due);\n        self.changed.notify_all();\n",
                "        tell(&mut self.state.lock().due);\n",
            ),
            (
                "one_of_several_is_woken",
                "        tell(&mut self.state.lock().due);\n        self.changed.notify_all();\n",
                "        tell(&mut self.state.lock().due);\n        self.changed.notify_one();\n",
            ),
            (
                "the_end_wakes_nobody",
                "        self.state.lock().stops = true;\n        self.changed.notify_all();\n",
                "        self.state.lock().stops = true;\n",
            ),
        ],
    },
    Source {
        name: "archive_queue",
        path: "tier/src/archive_queue.rs",
        smaller: &[],
        canaries: &[
            // As it was until this found it.
            (
                "a_change_during_the_look_is_forgotten",
                "        if !resident.clean.waits.load(Ordering::Acquire) {\n            state.waiting.remove(&entry);\n        }\n",
                "        drop(state);\n        resident.clean.waits.store(false, Ordering::Release);\n        let mut state = self.state.lock();\n        state.waiting.remove(&entry);\n",
            ),
            (
                "what_is_needless_is_looked_at_for_ever",
                "        resident.clean.waits.swap(false, Ordering::AcqRel);\n",
                "",
            ),
        ],
    },
    Source {
        name: "pending_syncs",
        path: "tier/src/pending_syncs.rs",
        smaller: &[],
        canaries: &[(
            "a_move_during_the_sync_counts_as_synced",
            "        if files.get(&number).is_some_and(|now| now.move_number == move_number) {",
            "        if files.get(&number).is_some() {",
        )],
    },
    Source {
        name: "waiting_closes",
        path: "shared_tier/src/waiting_closes.rs",
        smaller: &[],
        canaries: &[],
    },
    Source {
        name: "closes",
        path: "shared_tier/src/closes.rs",
        smaller: &[
            ("use std::fs::File;", "use super::fs::File;"),
            // Its files have no capabilities.
            ("use super::places::users_xattrs::follow_capability;\n", ""),
            ("                    follow_capability(attributes, file);\n", ""),
            // Its files keep their names.
            ("data.is_none_or(|data| data.raw.st_nlink == 0)", "data.is_none()"),
            (
                "const PAUSE: Duration = Duration::from_millis(5);",
                "const PAUSE: Duration = Duration::MAX;",
            ),
            ("const IDLE_PAUSES_MAX: u32 = 20;", "const IDLE_PAUSES_MAX: u32 = 2;"),
        ],
        canaries: &[
            (
                "what_was_opened_again_is_noted",
                "            Some(noting) if noting.closes_later => files.push((vnode, noting)),\n            Some(_) => {}\n",
                "            Some(noting) => files.push((vnode, noting)),\n",
            ),
            (
                "who_wants_them_noted_does_not_wait",
                "    let _one_after_another = base.closes.noting.lock();\n",
                "",
            ),
            (
                "what_is_in_the_way_is_forgotten",
                "            None => base.closes.waiting.lock().files.push(vnode.clone()),\n",
                "            None => {}\n",
            ),
            (
                "the_thread_ends_with_closes_that_wait",
                "        if waiting.files.is_empty() {\n            waiting.has_thread = false;",
                "        if true {\n            waiting.has_thread = false;",
            ),
            (
                "the_thread_is_thought_to_run",
                "            waiting.has_thread = false;\n            return;",
                "            return;",
            ),
            // As it was until this found it.
            (
                "a_file_of_others_is_taken_over",
                "        if attributes.many_opens || attributes.opens.iter().any(is_own) {\n",
                "        if attributes.many_opens || attributes.opens.iter().any(is_own) || file.is_some() {\n",
            ),
        ],
    },
    Source {
        name: "lease",
        path: "cluster/src/agent/lease.rs",
        smaller: &[("use crate::sync::Clock;", "use super::clock::Clock;")],
        canaries: &[],
    },
    Source {
        name: "own_session",
        path: "cluster/src/agent/own_session.rs",
        smaller: &[
            ("use crate::sync::Clock;", "use super::clock::Clock;"),
            ("store: &dyn crate::store::Store,", "store: &dyn Store,"),
        ],
        canaries: &[
            (
                "a_refused_renewal_counts",
                "        if renewed {\n            self.holds_since(sent);\n        }\n",
                "        self.holds_since(sent);\n",
            ),
            (
                "one_thread_is_woken",
                "        *self.woken.lock() = true;\n        self.changed.notify_all();\n",
                "        *self.woken.lock() = true;\n        self.changed.notify_one();\n",
            ),
        ],
    },
    Source {
        name: "upkeep",
        path: "cluster/src/agent/upkeep.rs",
        smaller: &[],
        canaries: &[(
            "a_lease_is_renewed_while_it_is_regained",
            "        let _regaining = self.regaining.lock();\n        self.drop_what_is_unsure()?;\n        self.own",
            "        self.drop_what_is_unsure()?;\n        self.own",
        )],
    },
    Source {
        name: "background",
        path: "meta/src/log/background.rs",
        smaller: &[],
        canaries: &[
            (
                "the_bell_is_not_heard",
                "            self.rung.notify_one();\n        }\n",
                "        }\n",
            ),
            (
                "a_ring_is_forgotten",
                "                        shared.wake_waiters();\n",
                "                        let mut state = shared.bell.state.lock();\n                        if *state == State::Rung {\n                            *state = State::Quiet;\n                        }\n                        drop(state);\n                        shared.wake_waiters();\n",
            ),
        ],
    },
    Source {
        name: "listing",
        path: "cluster/src/names/namespace/listings/listing.rs",
        smaller: &[],
        canaries: &[],
    },
    Source {
        name: "listings",
        path: "cluster/src/names/namespace/listings.rs",
        smaller: &[
            (
                "mod listing;\n",
                "mod listing {\n    include!(concat!(env!(\"OUT_DIR\"), \"/listing.rs\"));\n}\n",
            ),
            ("use super::super::{", "use super::names::{"),
        ],
        canaries: &[
            (
                "a_name_is_trusted_while_it_changes",
                "        known.begin(shard, before.begun, touched(script));\n",
                "",
            ),
            (
                "a_page_counts_though_a_change_came_between",
                "        let is_still = before.is_quiet() && self.changes(directory) == before;\n        if !is_still && known.get(directory).is_none_or(|listing| listing.version != version) {",
                "        if false {",
            ),
            (
                "a_lease_of_another_version_counts",
                "        let Some(listing) = listing.filter(|listing| listing.version == version) else { return };\n",
                "        let Some(listing) = listing else { return };\n",
            ),
            (
                "a_listing_does_not_get_what_is_created",
                "                known.apply(shard, change, changed);\n",
                "",
            ),
            (
                "a_change_is_followed_from_any_version",
                "    let is_next = known.get(shard).is_some_and(|listing| listing.version == before);\n",
                "    let is_next = known.get(shard).is_some();\n",
            ),
        ],
    },
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for source in &SOURCES {
        let path = crates.join(source.path);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("crates/{}: {error}", source.path));
        let explored = explored(source, &text);
        fs::write(out.join(format!("{}.rs", source.name)), &explored).expect("OUT_DIR is written");
        for (name, right, wrong) in source.canaries {
            let canary = replaced(source, &explored, right, wrong);
            let name = format!("{}_where_{name}.rs", source.name);
            fs::write(out.join(name), canary).expect("OUT_DIR is written");
        }
    }
}

/// The source without its own tests and all lines of comments, which may be reworded, over other primitives.
fn explored(source: &Source, text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().expect("a first part");
    let text = without_files_of_tests(text);
    let lines = text.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with("//") || line.starts_with("// SAFETY")
    });
    let mut text: String = lines.flat_map(|line| [line, "\n"]).collect();
    for (from, to) in PRIMITIVES {
        text = text.replace(from, to);
    }
    for (from, to) in source.smaller {
        text = replaced(source, &text, from, to);
    }
    assert!(!text.contains("parking_lot::"), "crates/{}: a primitive is not explored", source.path);
    text
}

/// The source without the declarations of files that only have tests.
fn without_files_of_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let is_file = |next: &&str| next.starts_with("mod ") && next.ends_with(';');
        if line == "#[cfg(test)]" && lines.next_if(is_file).is_some() {
            continue;
        }
        kept.extend([line, "\n"]);
    }
    kept
}

fn replaced(source: &Source, text: &str, from: &str, to: &str) -> String {
    assert_eq!(
        text.matches(from).count(),
        1,
        "crates/{}: {from:?} must stand there once, for crates/schedules/build.rs to change it",
        source.path
    );
    text.replace(from, to)
}
