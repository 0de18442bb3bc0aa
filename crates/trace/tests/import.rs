//! Importers against good, bad and cut-off texts.

use std::fs;
use std::path::Path;

use halocline_trace::import::dxt::{self, Module};
use halocline_trace::import::{Imported, Sink, csv};
use halocline_trace::{Error, Kind, Op, Reader, Request, Source, Writer};
use proptest::prelude::*;

type Found = (Vec<Request>, Imported, Reader<std::io::Cursor<Vec<u8>>>);

fn writer() -> Writer<Vec<u8>> {
    Writer::new(Vec::new(), &Source::new(Kind::Csv)).unwrap()
}

fn found(sink: Sink<Vec<u8>>) -> Result<Found, Error> {
    let (bytes, imported) = sink.finish()?;
    let mut reader = Reader::new(std::io::Cursor::new(bytes))?;
    let mut all = Vec::new();
    while let Some(block) = reader.next_block()? {
        all.extend_from_slice(block);
    }
    assert_eq!(reader.completeness().cut, None);
    assert_eq!(reader.completeness().lost, imported.lost);
    assert_eq!(reader.completeness().is_partial(), !imported.missing.is_empty());
    assert_eq!(all.len() as u64, imported.requests);
    Ok((all, imported, reader))
}

fn from_csv(text: &[u8]) -> Result<Found, Error> {
    let mut sink = Sink::ordered(writer());
    csv::import(text, &mut sink)?;
    found(sink)
}

fn from_dxt(text: &[u8], module: Module) -> Result<Found, Error> {
    let mut sink = Sink::sorted(writer(), &std::env::temp_dir());
    dxt::import(text, module, &mut sink)?;
    found(sink)
}

fn log(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

#[test]
fn csv_is_read() {
    let text = b"time_s,process,file,op,offset,length,duration_s\n\
        0.5,3,\"a, b\",read,0,4096,0.001\r\n 0.5, 3, c,W,65536,1,\n1,4,c,r,0,0,\n";
    let (all, imported, reader) = from_csv(text).unwrap();
    assert_eq!(imported, Imported { requests: 2, empty: 1, ..Imported::default() });
    let first = Request {
        start_ns: 500_000_000,
        duration_ns: Some(1_000_000),
        process: 0,
        file: 0,
        op: Op::Read,
        offset: 0,
        length: 4096,
    };
    let (offset, length) = (65_536, 1);
    let op = Op::Write;
    assert_eq!(all, [first, Request { duration_ns: None, file: 1, op, offset, length, ..first }]);
    assert_eq!(reader.file(0), Some(&b"a, b"[..]));
    assert_eq!(reader.process(0).unwrap().number, 3);
}

/// Regression: names were trimmed, also quoted ones, so that two files could become one.
#[test]
fn spaces_are_part_of_a_name_unless_they_are_around_commas() {
    let text = b"time_s,process,file,op,offset,length\n\
        0,0,\" lead\",read,0,1\n1,0,lead ,read,0,1\n2,0,lead,read,0,1\n3 , 0 , lead , read , 0 , 1\n";
    let (all, _, reader) = from_csv(text).unwrap();
    let files: Vec<_> = all.iter().map(|request| request.file).collect();
    assert_eq!(files, [0, 1, 2, 2]);
    let names = [&b" lead"[..], b"lead ", b"lead"];
    assert_eq!([0, 1, 2].map(|file| reader.file(file)), names.map(Some));
}

#[test]
fn what_is_wrong_with_a_csv_is_told_by_line() {
    let header = "time_s,process,file,op,offset,length\n";
    let cases = [
        ("", "line 1: empty"),
        ("time,process,file,op,offset,length\n", "line 1: the header is not time_s,"),
        ("0,1,f,read,0,4096\n", "line 1: the header is not"),
        ("HEADER0,1,f,read,0\n", "line 2: 5 fields instead of 6"),
        (
            "HEADER0,1,f,read,0,1\n-1,1,f,read,0,1\n",
            "line 3: time_s is \"-1\", not a number of sec",
        ),
        ("HEADER1,1,f,read,0,1\n0.9,1,f,read,0,1\n", "line 3: time runs backwards"),
        ("HEADER0,x,f,read,0,1\n", "line 2: process is \"x\""),
        ("HEADER0,1,f,append,0,1\n", "line 2: op is \"append\", not read or write"),
        ("HEADER0,1,f,read,-4,1\n", "line 2: offset is \"-4\""),
        ("HEADER0,1,f,read,9223372036854775807,1\n", "line 2: offset and length reach past"),
        ("HEADER0,1,f,read,18446744073709551615,1\n", "line 2: offset and length reach past"),
    ];
    for (text, what) in cases {
        let text = text.replace("HEADER", header);
        let error = from_csv(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(what), "{text:?}: {error}");
    }
    // A quote that is never closed does not take all memory.
    let mut endless = format!("{header}0,1,\"").into_bytes();
    endless.resize(4 << 20, b'x');
    assert!(from_csv(&endless).unwrap_err().to_string().contains("quote never closed"));
}

#[test]
fn a_csv_whose_last_line_has_no_end_is_not_believed_whole() {
    for cut in ["0,1,f,read,0,40", "0,1,f,read", "0,1,f,re", "0.", "0,1,\"f"] {
        let text = format!("time_s,process,file,op,offset,length\n0,1,f,read,0,4096\n{cut}");
        let (all, imported, _) = from_csv(text.as_bytes()).unwrap();
        assert_eq!((all.len(), imported.missing.len()), (1, 1), "{cut}");
    }
}

#[test]
fn a_csv_out_of_order_can_be_sorted() {
    let text = b"time_s,process,file,op,offset,length\n2,1,f,read,0,1\n1,1,f,read,8,1\n";
    let mut sink = Sink::sorted(writer(), &std::env::temp_dir());
    csv::import(&text[..], &mut sink).unwrap();
    let (all, ..) = found(sink).unwrap();
    assert_eq!(all.iter().map(|request| request.offset).collect::<Vec<_>>(), [8, 0]);
}

#[test]
fn real_logs_are_read() {
    let text = log("ior_hdf5_example.dxt.txt");
    // Lines of each module in the text, as grep counts them; one of MPI-IO has no bytes.
    let count = |label: &str| String::from_utf8_lossy(&text).matches(label).count();
    let (posix, imported, reader) = from_dxt(&text, Module::Posix).unwrap();
    assert_eq!(posix.len() as u64 + imported.empty, count("X_POSIX") as u64);
    assert_eq!(reader.file(0), Some(&b"/global/cscratch1/sd/ssnyder/test123.h5"[..]));
    assert_eq!(reader.processes(), 4);
    assert_eq!(reader.process(0).unwrap().node, b"nid00097");
    let written = |all: &[Request]| -> u64 {
        all.iter().filter(|request| request.op == Op::Write).map(|request| request.length).sum()
    };
    // 4 ranks of 4 blocks of 256 KiB, and what HDF5 keeps of them.
    assert!((4 << 20..(4 << 20) + 4096).contains(&written(&posix)));
    let (mpiio, imported, _) = from_dxt(&text, Module::Mpiio).unwrap();
    assert_eq!(mpiio.len() as u64 + imported.empty, count("X_MPIIO") as u64);
    // The same bytes are not counted twice.
    assert_eq!(from_dxt(&text, Module::Lowest).unwrap().0, posix);
    let (all, ..) = from_dxt(&log("sample-dxt-simple.dxt.txt"), Module::Lowest).unwrap();
    assert_eq!(all.len(), 2);
}

#[test]
fn a_dxt_text_that_is_cut_off_says_what_is_missing() {
    let text = String::from_utf8(log("ior_hdf5_example.dxt.txt")).unwrap();
    // After the first 10 of 19 requests of the first section.
    let end = text.match_indices("\n X_POSIX").nth(10).unwrap().0;
    let (all, imported, _) = from_dxt(&text.as_bytes()[..=end], Module::Lowest).unwrap();
    assert_eq!((all.len(), imported.lost), (10, 9));
    assert!(imported.missing[0].contains("9 requests of /global/"), "{:?}", imported.missing);
    // Regression: requests that none announced were believed.
    let none = text.replacen("write_count: 7, read_count: 12", "write_count: 0, read_count: 0", 1);
    assert_ne!(none, text);
    let (_, imported, reader) = from_dxt(none.as_bytes(), Module::Lowest).unwrap();
    assert!(imported.missing[0].contains("are there and 0 announced"), "{:?}", imported.missing);
    assert!(reader.completeness().is_partial());
    // In the middle of a line.
    let (all, imported, _) = from_dxt(&text.as_bytes()[..end - 30], Module::Lowest).unwrap();
    assert_eq!((all.len(), imported.missing.len()), (9, 2));
}

/// Whether what was left of a text was taken for a whole one.
fn is_believed(found: Result<Found, Error>) -> bool {
    found.is_ok_and(|(_, imported, reader)| {
        assert_eq!(imported.missing.is_empty(), !reader.completeness().is_partial());
        imported.missing.is_empty()
    })
}

/// Regression: a text that ended behind the name of a file, before it was said how many requests follow, was whole.
#[test]
fn a_text_that_is_cut_off_at_any_byte_is_believed_only_between_two_files() {
    for name in ["sample-dxt-simple.dxt.txt", "ior_hdf5_example.dxt.txt"] {
        let text = log(name);
        for end in 0..text.len() {
            let (left, cut) = text.split_at(end);
            if is_believed(from_dxt(left, Module::Lowest)) {
                let cut = String::from_utf8_lossy(cut);
                let of_this_file = cut.split("# DXT, file_id: ").next().unwrap();
                let is_all_there = !of_this_file.contains(" X_");
                assert!(is_all_there && left.ends_with(b"\n"), "{name}: {end}");
            }
        }
    }
    let text = b"time_s,process,file,op,offset,length\n0,1,f,read,0,4096\n10,2,g,write,5,40\n";
    for end in 0..text.len() {
        if is_believed(from_csv(&text[..end])) {
            assert!(text[..end].ends_with(b"\n"), "{end}");
        }
    }
}

#[test]
fn what_darshan_says_is_incomplete_stays_so() {
    let text = String::from_utf8(log("sample-dxt-simple.dxt.txt")).unwrap();
    let text = format!("# *WARNING*: The DXT_POSIX module contains incomplete data!\n{text}");
    let (_, imported, reader) = from_dxt(text.as_bytes(), Module::Lowest).unwrap();
    assert!(imported.missing[0].contains("DXT_POSIX module contains incomplete"));
    assert!(reader.completeness().incomplete_source && reader.completeness().weight() <= 0.5);
}

/// Two such files were taken for one, of a name that no file has.
#[test]
fn names_of_files_are_what_bytes_they_are() {
    let one = |name: &[u8]| {
        let head = b"# DXT, file_id: 1, file_name: ";
        let rest = b"\n# DXT, rank: 0, hostname: h\n X_POSIX 0 write 0 0 1 0.1 0.2\n";
        [&head[..], name, rest].concat()
    };
    let names: [&[u8]; 4] = [b"/a\xff", b"/a\xfe", b"/b, file_name: c", b""];
    let text = names.map(one).concat();
    let (all, _, reader) = from_dxt(&text, Module::Lowest).unwrap();
    assert_eq!(all.len(), 4);
    let found: Vec<_> = (0..4).map(|number| reader.file(number).unwrap()).collect();
    assert_eq!(found, [b"/a\xff", b"/a\xfe", &b"/b, file_name: c"[..], b"darshan:1"]);
    let csv = b"time_s,process,file,op,offset,length\n0,1,/a\xff,read,0,1\n0,1,/a\xfe,read,0,1\n";
    assert_eq!(from_csv(csv).unwrap().2.file(1), Some(&b"/a\xfe"[..]));
}

#[test]
fn what_is_wrong_with_a_dxt_text_is_told_by_line() {
    let head = "# DXT, file_id: 1, file_name: f\n# DXT, rank: 0, hostname: h\n";
    let cases = [
        ("", "line 1: no requests of DXT"),
        ("# no DXT module data available for this Darshan log.\n", "line 2: no requests of DXT"),
        (" X_POSIX 0 write 0 0 1 0.1 0.2\n", "line 1: a request before any file"),
        ("HEAD X_POSIX 0 write 0 0 1 0.2 0.1\n", "line 3: it ends before it starts"),
        ("HEAD X_POSIX 0 write 0 0 1 0.2\n", "line 3: the end is not there"),
        ("HEAD X_POSIX 0 write 0 -1 1 0.1 0.2\n", "line 3: offset is \"-1\""),
        ("HEAD X_POSIX 0 open 0 0 1 0.1 0.2\n", "line 3: \"open\" is neither"),
        ("HEAD X_STDIO 0 read 0 0 1 0.1 0.2\n", "line 3: module \"X_STDIO\""),
        ("HEAD X_POSIX 0 read 0 9223372036854775807 1 0.1 0.2\n", "line 3: offset and length"),
    ];
    for (text, what) in cases {
        let text = text.replace("HEAD", head);
        let error = from_dxt(text.as_bytes(), Module::Lowest).unwrap_err().to_string();
        assert!(error.starts_with(what), "{text:?}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_damaged_text_is_no_trouble(
        at in any::<prop::sample::Index>(), length in 0..40_usize,
        with in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        for (is_csv, text) in [
            (false, log("sample-dxt-simple.dxt.txt")),
            (true, b"time_s,process,file,op,offset,length\n0,1,f,read,0,4096\n".to_vec()),
        ] {
            let at = at.index(text.len());
            let rest = &text[(at + length).min(text.len())..];
            let text = [&text[..at], &with, rest].concat();
            let _ = if is_csv { from_csv(&text) } else { from_dxt(&text, Module::Lowest) };
        }
    }
}
