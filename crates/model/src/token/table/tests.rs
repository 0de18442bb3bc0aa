//! Demands and answers, written by hand.

use super::*;

const A: Session = Session(1);
const B: Session = Session(2);
const C: Session = Session(3);
const EPOCH: Epoch = Epoch(1);
const ALL: ByteRange = ByteRange::new(0, u64::MAX);

struct File {
    tokens: Tokens,
    members: Members,
}

impl File {
    fn new() -> Self {
        let mut members = Members::default();
        for session in [A, B, C] {
            members.join(session, EPOCH);
        }
        Self { tokens: Tokens::new(EPOCH), members }
    }

    /// One whose first 4096 bytes changed hands so often that they are contended; nobody has a token.
    fn contended() -> Self {
        let mut file = Self::new();
        for round in 0..60 {
            let (one, other) = if round % 2 == 0 { (A, B) } else { (B, A) };
            file.write(one, (0, 4096));
            file.give_up(other, (0, u64::MAX), None);
            file.write(one, (0, 4096));
        }
        file.give_up(A, (0, u64::MAX), None);
        file.give_up(B, (0, u64::MAX), None);
        file
    }

    fn ask(&mut self, session: Session, direction: Direction, range: (u64, u64)) -> Answer {
        let required = ByteRange::new(range.0, range.1);
        let demand = Demand { direction, required, desired: ALL, alone: false };
        self.tokens.ask(session, demand, (EPOCH, &self.members), 0)
    }

    fn read(&mut self, session: Session, range: (u64, u64)) -> Answer {
        self.ask(session, Direction::Read, range)
    }

    fn write(&mut self, session: Session, range: (u64, u64)) -> Answer {
        self.ask(session, Direction::Write, range)
    }

    fn give_up(&mut self, session: Session, range: (u64, u64), keep: Option<Mode>) {
        self.tokens.give_up(session, ByteRange::new(range.0, range.1), keep, EPOCH);
    }
}

fn held(session: Session, mode: Mode, start: u64, end: u64) -> Held {
    Held { session, mode, range: ByteRange::new(start, end) }
}

#[test]
fn the_first_gets_the_whole_file_and_the_next_its_part() {
    let mut file = File::new();
    let granted = file.write(A, (100, 200));
    assert_eq!(granted, Answer::Granted(vec![held(A, Mode::Exclusive, 0, u64::MAX)]));
    let waits = file.write(B, (500, 600));
    assert_eq!(waits, Answer::Waits(vec![held(A, Mode::Exclusive, 500, 600)]));
    // It uses nothing above 200.
    file.give_up(A, (200, u64::MAX), None);
    let granted = file.write(B, (500, 600));
    assert_eq!(granted, Answer::Granted(vec![held(B, Mode::Exclusive, 200, u64::MAX)]));
    assert_eq!(file.tokens.all().len(), 2);
}

/// Regression: the session that was served first got everything up to the byte for which the next one waited, and soon
/// gave most of it away again.
#[test]
fn who_is_served_first_leaves_the_next_ones_part_free() {
    let mut file = File::new();
    file.write(A, (10, 20));
    assert!(matches!(file.write(B, (700, 710)), Answer::Waits(_)));
    assert!(matches!(file.write(C, (1100, 1110)), Answer::Waits(_)));
    file.give_up(A, (512, u64::MAX), None);
    let granted = file.write(B, (700, 710));
    assert_eq!(granted, Answer::Granted(vec![held(B, Mode::Exclusive, 512, 1024)]));
    let granted = file.write(C, (1100, 1110));
    assert_eq!(granted, Answer::Granted(vec![held(C, Mode::Exclusive, 1024, u64::MAX)]));
    // The same applies to the bytes before it.
    let mut file = File::new();
    file.write(A, (0, 10));
    assert!(matches!(file.write(C, (100, 110)), Answer::Waits(_)));
    assert!(matches!(file.write(B, (600, 610)), Answer::Waits(_)));
    file.give_up(A, (0, u64::MAX), None);
    let granted = file.write(B, (600, 610));
    assert_eq!(granted, Answer::Granted(vec![held(B, Mode::Exclusive, 512, u64::MAX)]));
}

#[test]
fn readers_share_and_a_writer_takes_it_from_all_of_them() {
    let mut file = File::new();
    file.read(A, (0, 10));
    assert!(matches!(file.read(B, (5, 10)), Answer::Granted(_)));
    let Answer::Waits(on) = file.write(C, (0, 10)) else { panic!("two hold it") };
    assert_eq!(on.len(), 2);
    assert_eq!(file.tokens.wanted_from(A), Some((ByteRange::new(0, 10), None)));
    file.give_up(A, (0, 10), None);
    file.give_up(B, (0, 10), None);
    assert!(matches!(file.write(C, (0, 10)), Answer::Granted(_)));
}

#[test]
fn a_writer_that_somebody_wants_to_read_from_may_go_on_reading() {
    let mut file = File::new();
    file.write(A, (0, 10));
    file.read(B, (4, 6));
    let wanted = file.tokens.wanted_from(A);
    assert_eq!(wanted, Some((ByteRange::new(4, 6), Some(Mode::Shared))));
    file.give_up(A, (4, 6), Some(Mode::Shared));
    assert!(matches!(file.read(B, (4, 6)), Answer::Granted(_)));
    assert_eq!(file.tokens.of(A).len(), 3);
    assert!(matches!(file.read(A, (0, 10)), Answer::Granted(_)), "all in one");
}

#[test]
fn nobody_overtakes_who_waits() {
    let mut file = File::new();
    file.read(A, (0, 10));
    file.write(B, (0, 10));
    assert_eq!(file.read(C, (0, 10)), Answer::Waits(Vec::new()), "B came first");
    file.give_up(A, (0, 10), None);
    assert!(matches!(file.write(B, (0, 10)), Answer::Granted(_)));
    assert!(matches!(file.read(C, (0, 10)), Answer::Waits(on) if on.len() == 1));
}

#[test]
fn what_is_asked_twice_is_queued_once_and_each_answer_is_a_version() {
    let mut file = File::new();
    file.write(A, (0, 10));
    let before = file.tokens.version;
    file.write(B, (0, 10));
    file.write(B, (0, 10));
    assert_eq!(file.tokens.waiting.len(), 1);
    file.write(A, (0, 10));
    assert_eq!(file.tokens.version, before + 3, "also where nothing changed");
    file.tokens.begin(EPOCH);
    file.tokens.leave_queue(B, Direction::Write, ByteRange::new(0, 10));
    assert!(file.tokens.waiting.is_empty());
}

#[test]
fn i13_dirty_bytes_of_a_lost_node_are_nobodys() {
    let mut file = File::new();
    file.write(A, (0, 10));
    file.give_up(A, (10, u64::MAX), None);
    file.read(A, (20, 30));
    file.give_up(A, (30, u64::MAX), None);
    file.members.lease_is_over(A);
    assert_eq!(file.read(B, (5, 15)), Answer::Lost(held(A, Mode::Exclusive, 5, 10)));
    assert!(matches!(file.write(B, (10, 30)), Answer::Granted(_)), "the rest goes on");
    file.members.remove(A);
    assert!(matches!(file.read(B, (5, 15)), Answer::Granted(_)), "it was recovered");
}

#[test]
fn i14_in_a_new_epoch_only_what_is_asserted_holds() {
    let mut file = File::new();
    file.write(A, (0, 10));
    let mine = file.tokens.of(A);
    let next = Epoch(2);
    file.tokens.assert(B, &[held(B, Mode::Shared, 50, 60)], next);
    assert_eq!(file.tokens.all(), [held(B, Mode::Shared, 50, 60)]);
    file.tokens.assert(A, &[Held { range: ByteRange::new(0, 10), ..mine[0] }], next);
    assert_eq!(file.tokens.all().len(), 2);
}

#[test]
fn what_changes_hands_all_the_time_is_written_by_all_directly() {
    let mut file = File::new();
    for round in 0..60 {
        let (one, other) = if round % 2 == 0 { (A, B) } else { (B, A) };
        file.write(one, (0, 8));
        file.give_up(other, (0, 8), None);
        file.write(one, (0, 8));
    }
    file.give_up(A, (0, u64::MAX), None);
    file.give_up(B, (0, u64::MAX), None);
    let direct = |session| Answer::Granted(vec![held(session, Mode::Direct, 0, REGION)]);
    assert_eq!(file.write(A, (0, 8)), direct(A));
    assert_eq!(file.read(B, (8, 16)), direct(B));
    file.tokens.calm();
    assert!(matches!(file.write(C, (0, 8)), Answer::Waits(on) if on.len() == 2));
}

#[test]
fn a_crowd_takes_bounded_room() {
    let mut file = File::new();
    for at in 0..10 * CROWD as u64 {
        let required = ByteRange::at(at * 10, 1);
        let demand =
            Demand { direction: Direction::Write, required, desired: required, alone: false };
        let session = if at % 2 == 0 { A } else { B };
        file.tokens.ask(session, demand, (EPOCH, &file.members), 0);
    }
    assert!(file.tokens.all().len() <= 2 * CROWD, "then in wide ranges");
    file.write(C, (0, u64::MAX));
    for at in 0..10 * CROWD as u64 {
        file.write(B, (at, at + 1));
    }
    assert!(file.tokens.waiting.len() <= CROWD);
}

#[test]
fn what_is_wanted_alone_is_exclusive_also_where_it_is_contended() {
    let mut file = File::contended();
    let block = ByteRange::new(0, 4096);
    assert!(
        matches!(file.write(A, (0, 4096)), Answer::Granted(held) if held[0].mode == Mode::Direct)
    );
    assert!(matches!(file.write(B, (0, 4096)), Answer::Granted(_)), "beside each other");
    for direction in [Direction::Read, Direction::Write] {
        let demand = Demand { direction, required: block, desired: ALL, alone: true };
        let answer = file.tokens.ask(A, demand, (EPOCH, &file.members), 0);
        assert!(matches!(&answer, Answer::Waits(on) if on[0].session == B), "{answer:?}");
        assert_eq!(file.tokens.wanted_from(B), Some((block, None)));
        file.give_up(B, (0, u64::MAX), None);
        let answer = file.tokens.ask(A, demand, (EPOCH, &file.members), 0);
        let Answer::Granted(got) = answer else { panic!("{answer:?}") };
        assert!(got.contains(&held(A, Mode::Exclusive, 0, 4096)), "{got:?}");
        assert!(matches!(file.write(B, (0, 4096)), Answer::Waits(_)), "nobody is beside it");
        file.give_up(A, (0, u64::MAX), None);
        assert!(matches!(file.write(B, (0, 4096)), Answer::Granted(_)));
        assert!(matches!(file.write(A, (0, 4096)), Answer::Granted(_)), "direct again");
    }
}

#[test]
fn what_no_function_here_makes_is_no_table() {
    let mut file = File::new();
    file.write(A, (0, 10));
    file.read(B, (5, 7));
    assert!(file.tokens.is_sound());
    let said = serde_json::to_string(&file.tokens).unwrap();
    for (from, to) in [
        ("\"version\":2", "\"version\":18446744073709551615"),
        ("\"held\":[", "\"held\":[{\"session\":1,\"mode\":\"shared\",\"range\":[3,9]},"),
        ("\"held\":[", "\"held\":[{\"session\":0,\"mode\":\"shared\",\"range\":[3,3]},"),
        ("\"handovers\":1", "\"handovers\":4294967295"),
    ] {
        let other = said.replacen(from, to, 1);
        assert_ne!(other, said, "{from}");
        let tokens: Tokens = serde_json::from_str(&other).unwrap();
        assert!(!tokens.is_sound(), "{other}");
    }
}

#[test]
fn who_reads_what_became_contended_gets_there() {
    let mut file = File::contended();
    // Somebody had cached it before.
    file.tokens.assert(A, &[held(A, Mode::Shared, 0, 4096)], EPOCH);
    assert!(matches!(file.read(B, (0, 4096)), Answer::Waits(on) if on.len() == 1));
    assert_eq!(file.tokens.wanted_from(A), Some((ByteRange::new(0, 4096), None)));
    file.give_up(A, (0, 4096), None);
    assert!(matches!(file.read(B, (0, 4096)), Answer::Granted(_)));
    assert!(matches!(file.read(A, (0, 4096)), Answer::Granted(_)), "beside it");
}

/// A reader of what became contended, beside bytes that it and another one cache, does not get the right to write to these
/// past the other one's cache.
#[test]
fn i11_what_others_cache_too_is_not_written_to_directly_beside_what_became_contended() {
    let mut file = File::contended();
    for session in [A, B] {
        file.tokens.assert(session, &[held(session, Mode::Shared, 0, 4096)], EPOCH);
    }
    let Answer::Granted(got) = file.read(A, (0, 8192)) else { panic!("nobody is in the way") };
    let cached = held(A, Mode::Shared, 0, 4096);
    assert!(got.contains(&cached), "{got:?}");
    assert!(
        got.iter().any(|held| held.mode == Mode::Direct && held.range.start == 4096),
        "{got:?}"
    );
    assert!(matches!(file.write(A, (0, 4096)), Answer::Waits(on) if on.len() == 1));
}

#[test]
#[should_panic(expected = "I11, I13: a token for bytes that another session has")]
fn i11_i13_bytes_that_another_session_may_have_dirty_are_never_given_away() {
    let mut file = File::new();
    file.write(A, (0, 10));
    file.members.lease_is_over(A);
    file.tokens.set(B, Mode::Exclusive, &[ByteRange::new(5, 20)]);
}

/// What its holder cannot read is an error at once, without any other byte being one, until the holder is asked again.
#[test]
fn i13_what_cannot_be_read_is_an_error_until_it_is_tried_again() {
    let mut file = File::new();
    file.write(A, (0, 4096));
    assert!(matches!(file.read(B, (10, 20)), Answer::Waits(_)));
    let lost = [ByteRange::new(12, 14), ByteRange::new(100, 200), ByteRange::new(9000, 9001)];
    let tried = ByteRange::new(0, 150);
    file.tokens.note_unreadable(A, (tried, &lost), EPOCH, 1000);
    assert!(file.tokens.is_sound());
    let marked = |file: &File| -> Vec<_> {
        file.tokens.unreadable().iter().map(|entry| (entry.range.start, entry.range.end)).collect()
    };
    assert_eq!(marked(&file), [(12, 14), (100, 150)], "only of what was tried");
    let ask = |file: &mut File, range: (u64, u64), now_ms| {
        let required = ByteRange::new(range.0, range.1);
        let demand =
            Demand { direction: Direction::Read, required, desired: required, alone: false };
        file.tokens.ask(B, demand, (EPOCH, &file.members), now_ms)
    };
    let unreadable = Answer::Unreadable(held(A, Mode::Exclusive, 12, 14));
    assert_eq!(ask(&mut file, (10, 20), 1000), unreadable);
    assert!(file.tokens.waiting.is_empty(), "whoever has an error does not wait");
    assert_eq!(ask(&mut file, (0, u64::MAX), 5000), unreadable);
    assert!(matches!(ask(&mut file, (20, 30), 1000), Answer::Waits(_)), "the rest goes on");
    file.give_up(A, (16, 64), None);
    assert!(matches!(ask(&mut file, (20, 30), 1000), Answer::Granted(_)));
    assert_eq!(marked(&file), [(12, 14), (100, 150)]);
    assert_eq!(ask(&mut file, (10, 20), 0), unreadable, "clocks differ a little");
    // After a while the holder tries again; a clock that was set back makes an entry hold no longer than a few of them.
    assert!(matches!(ask(&mut file, (10, 14), 11_000), Answer::Waits(_)));
    file.tokens.note_unreadable(A, (ByteRange::new(10, 14), &[ALL]), EPOCH, 31_000);
    assert!(matches!(ask(&mut file, (10, 15), 999), Answer::Waits(_)));
    file.tokens.note_unreadable(A, (ByteRange::new(10, 14), &[]), EPOCH, 11_500);
    assert_eq!(marked(&file), [(100, 150)], "what it can read is given up next");
    file.give_up(A, (120, 130), Some(Mode::Shared));
    assert_eq!(marked(&file), [(100, 120), (130, 150)]);
    // Who is gone may have them still: they are recovered, or given up.
    file.members.lease_is_over(A);
    assert!(matches!(ask(&mut file, (100, 110), 1000), Answer::Lost(_)));
    file.members.remove(A);
    assert!(matches!(ask(&mut file, (100, 110), 1000), Answer::Granted(_)));
    assert!(file.tokens.unreadable().is_empty());
}

/// Nobody else's bytes can be marked, and a session that says anew what it holds tries anew.
#[test]
fn marks_are_of_what_their_session_holds_alone() {
    let mut file = File::new();
    file.read(A, (0, 10));
    let all = [ALL];
    file.tokens.note_unreadable(A, (ALL, &all), EPOCH, 0);
    file.tokens.note_unreadable(B, (ALL, &all), EPOCH, 0);
    assert!(file.tokens.unreadable().is_empty());
    file.give_up(A, (0, u64::MAX), None);
    file.write(A, (0, 10));
    file.tokens.note_unreadable(A, (ALL, &all), EPOCH, 0);
    assert_eq!(file.tokens.unreadable().len(), 1);
    let many: Vec<_> = (0..10_000).map(|at| ByteRange::at(at * 10, 5)).collect();
    file.tokens.note_unreadable(A, (ALL, &many), EPOCH, 0);
    assert!(file.tokens.is_sound());
    let holds = file.tokens.of(A);
    file.tokens.assert(A, &holds, EPOCH);
    assert!(file.tokens.unreadable().is_empty());
    file.tokens.note_unreadable(A, (ALL, &all), EPOCH, 0);
    file.tokens.give_up(B, ALL, None, Epoch(2));
    assert!(file.tokens.unreadable().is_empty(), "another epoch of the store");
}
