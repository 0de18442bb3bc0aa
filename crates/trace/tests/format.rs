//! The format against damage: what is whole comes back, what is not is told, and nothing panics.

use halocline_trace::{Completeness, Error, Kind, Op, Process, Reader, Request, Source, Writer};
use proptest::prelude::*;

const FILES: u32 = 3;
const PROCESSES: u32 = 4;

fn write(requests: &[Request], lost: u64, each_flushed: usize) -> Vec<u8> {
    let source = Source { name: b"made up".to_vec(), ..Source::new(Kind::Generated) };
    let mut writer = Writer::new(Vec::new(), &source).unwrap();
    for file in 0..FILES {
        assert_eq!(writer.file(format!("file-{file}").as_bytes()).unwrap(), file);
    }
    for number in 0..PROCESSES {
        let process = Process { number: u64::from(number), node: b"node".to_vec() };
        assert_eq!(writer.process(&process).unwrap(), number);
    }
    for (index, request) in requests.iter().enumerate() {
        writer.push(request).unwrap();
        if (index + 1).is_multiple_of(each_flushed) {
            writer.flush().unwrap();
        }
    }
    writer.lose(lost);
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<Request>, Completeness), Error> {
    let mut reader = Reader::new(bytes)?;
    let mut all = Vec::new();
    while let Some(block) = reader.next_block()? {
        all.extend_from_slice(block);
    }
    assert_eq!(reader.completeness().requests, all.len() as u64);
    for request in &all {
        assert!(reader.file(request.file).is_some() && reader.process(request.process).is_some());
    }
    Ok((all, reader.completeness().clone()))
}

/// What is read of a damaged trace is a beginning of what was written, and it says that it is damaged.
fn beginning_of(bytes: &[u8], written: &[Request]) -> Result<(), TestCaseError> {
    // Nothing can be said of a trace whose first bytes are gone.
    if let Ok((found, completeness)) = read(bytes) {
        prop_assert!(written.starts_with(&found));
        prop_assert!(completeness.cut.is_some());
        prop_assert!(completeness.weight() <= 0.5);
        let after = format!("cut off after {} requests", found.len());
        prop_assert!(completeness.cut.is_some_and(|cut| cut.starts_with(&after)));
    }
    Ok(())
}

prop_compose! {
    fn request()(
        after in prop_oneof![0..2_000_u64, 0..1_u64 << 40],
        duration_ns in proptest::option::of(prop_oneof![0..100_000_u64, 0..1_u64 << 40]),
        process in 0..PROCESSES,
        file in 0..FILES,
        write in any::<bool>(),
        offset in prop_oneof![(0..64_u64).prop_map(|at| at << 16), 0..1_u64 << 62],
        length in prop_oneof![Just(65_536_u64), 1..1_u64 << 40],
    ) -> Request {
        let op = if write { Op::Write } else { Op::Read };
        Request { start_ns: after, duration_ns, process, file, op, offset, length }
    }
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    proptest::collection::vec(request(), 0..200).prop_map(|mut all| {
        let mut now = 0;
        for request in &mut all {
            now += request.start_ns;
            request.start_ns = now;
        }
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_is_written_is_read(all in requests(), lost in 0..5_u64, flushed in 1..300_usize) {
        let (found, completeness) = read(&write(&all, lost, flushed)).unwrap();
        prop_assert_eq!(&found, &all);
        prop_assert_eq!(completeness.cut.as_deref(), None);
        prop_assert_eq!(completeness.lost, lost);
        prop_assert_eq!(completeness.is_partial(), lost > 0);
    }

    #[test]
    fn a_trace_cut_anywhere_keeps_its_whole_blocks(
        all in requests(), flushed in 20..60_usize, at in any::<prop::sample::Index>(),
    ) {
        let bytes = write(&all, 0, flushed);
        beginning_of(&bytes[..at.index(bytes.len())], &all)?;
    }

    #[test]
    fn a_changed_byte_is_found(
        all in requests(), flushed in 20..60_usize,
        at in any::<prop::sample::Index>(), change in 1..=255_u8,
    ) {
        let mut bytes = write(&all, 0, flushed);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        beginning_of(&bytes, &all)?;
    }

    #[test]
    fn bytes_left_out_or_put_in_are_found(
        all in requests(), flushed in 20..60_usize,
        from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
        other in requests(),
    ) {
        let bytes = write(&all, 0, flushed);
        let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
        prop_assume!(from < to);
        let left_out = [&bytes[..from], &bytes[to..]].concat();
        beginning_of(&left_out, &all)?;
        let twice = [&bytes[..to], &bytes[from..]].concat();
        beginning_of(&twice, &all)?;
        let another = write(&other, 1, flushed);
        prop_assume!(another != bytes && !another.starts_with(&bytes[..to]));
        let at = to.min(another.len());
        let mixed = [&bytes[..to], &another[at..]].concat();
        if mixed != bytes && mixed != another {
            beginning_of(&mixed, &all)?;
        }
    }

    #[test]
    fn any_bytes_at_all_are_no_trouble(noise in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&noise);
        let mut bytes = write(&[], 0, 1);
        bytes.extend_from_slice(&noise);
        let (_, completeness) = read(&bytes).unwrap();
        prop_assert_eq!(completeness.is_partial(), !noise.is_empty());
    }
}

fn simple(start_ns: u64) -> Request {
    let (process, file, op) = (0, 0, Op::Read);
    Request { start_ns, duration_ns: None, process, file, op, offset: 0, length: 1 }
}

#[test]
fn more_requests_than_a_block_holds_come_back() {
    let all: Vec<Request> = (0..40_000).map(simple).collect();
    let bytes = write(&all, 0, usize::MAX);
    assert_eq!(read(&bytes).unwrap().0, all);
    // Cut in the last block: the two before it are there.
    let (found, completeness) = read(&bytes[..bytes.len() - 60]).unwrap();
    assert_eq!(found.len(), 32_768);
    let cut = completeness.cut.unwrap();
    assert!(cut.starts_with("cut off after 32768 requests: "), "{cut}");
}

/// Regression: a node had more processes than the whole trace, which counts those with requests.
#[test]
fn processes_that_only_have_a_name_are_not_counted() {
    let mut writer = Writer::new(Vec::new(), &Source::new(Kind::Generated)).unwrap();
    let file = writer.file(b"f").unwrap();
    for number in 0..8 {
        let process = writer.process(&Process { number, node: b"n".to_vec() }).unwrap();
        writer.push(&Request { file, process, ..simple(number) }).unwrap();
        if number == 3 {
            writer.flush().unwrap();
        }
    }
    // The names of all are written, and then the requests of the last four.
    let bytes = writer.finish().unwrap();
    let whole = report(&bytes);
    assert_eq!((whole.processes, whole.processes_per_node_max), (8, Some(8)));
    let cut = report(&bytes[..bytes.len() - 40]);
    assert_eq!((cut.requests, cut.processes, cut.processes_per_node_max), (4, 4, Some(4)));
}

fn report(bytes: &[u8]) -> halocline_trace::report::Report {
    halocline_trace::report::report(&mut Reader::new(bytes).unwrap(), |_| {}).unwrap()
}

#[test]
fn requests_that_cannot_be_are_refused_by_number() {
    let mut writer = Writer::new(Vec::new(), &Source::new(Kind::Generated)).unwrap();
    writer.file(b"f").unwrap();
    writer.process(&Process::default()).unwrap();
    writer.push(&simple(5)).unwrap();
    let bad = [
        (simple(4), "starts before"),
        (Request { length: 0, ..simple(5) }, "no bytes"),
        (Request { offset: i64::MAX as u64, ..simple(5) }, "largest file"),
        (Request { offset: u64::MAX, ..simple(5) }, "largest file"),
        (Request { duration_ns: Some(u64::MAX), ..simple(5) }, "largest time"),
        (Request { file: 1, ..simple(5) }, "has no name"),
        (Request { process: 1, ..simple(5) }, "has no name"),
    ];
    for (request, what) in bad {
        let error = writer.push(&request).unwrap_err().to_string();
        assert!(error.starts_with("request 2: ") && error.contains(what), "{error}");
    }
    assert_eq!(read(&writer.finish().unwrap()).unwrap().0, [simple(5)]);
}

#[test]
fn other_files_are_not_taken_for_traces() {
    let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(error(b"").ends_with("it is empty"));
    assert!(error(b"time_s,process,file,op,offset,length\n").contains("not a trace"));
    let mut newer = write(&[], 0, 1);
    newer[8] = 2;
    assert!(error(&newer).contains("format 2") && error(&newer).contains("use a newer"));
}

#[test]
fn missing_requests_lower_the_weight() {
    let all: Vec<Request> = (0..30).map(simple).collect();
    let (_, completeness) = read(&write(&all, 10, 100)).unwrap();
    assert!((completeness.weight() - 0.75).abs() < 1e-9);
    assert!((Completeness::default().weight() - 1.0).abs() < 1e-9);
}
