//! Traces and texts that somebody made to be read wrongly: none panics, none is believed beyond its sums.

use std::io::Cursor;

use halocline_testkit::hostile::attack;
use halocline_trace::analysis::Analysis;
use halocline_trace::import::dxt::{self, Module};
use halocline_trace::import::{Sink, csv};
use halocline_trace::{Error, Kind, Op, Process, Reader, Request, Source, Writer};

const CSV: &[u8] = b"time_s,process,file,op,offset,length,duration_s\n\
    0.5,3,\"a, b\",read,0,4096,0.001\r\n0.75,3,c,W,65536,4096,\n1,4,c,r,69632,4096,2.5e-05\n\
    1.5,4,c,r,8192,4096,1\n2,4,c,w,4611686018427387904,4611686018427387903,17179869183\n";
const DXT: &[u8] = b"# DXT, file_id: 12, file_name: /a/b\n# DXT, rank: 0, hostname: n1\n\
    # DXT, write_count: 2, read_count: 1\n X_POSIX 0 write 0 0 4096 0.0010 0.0020 [1] [2]\n\
    X_POSIX 0 write 1 4096 4096 0.0030 0.0040\n X_MPIIO 0 read 0 0 8192 0.1 0.2\n\
    # *WARNING*: The DXT_POSIX module contains incomplete data!\n";

/// Reads a trace and looks for patterns in it: what is read may be counted with.
fn analyse(bytes: &[u8]) -> Result<(), Error> {
    let mut reader = Reader::new(Cursor::new(bytes))?;
    let mut analysis = Analysis::default();
    let mut last = 0;
    while let Some(block) = reader.next_block()? {
        for request in block {
            assert_eq!(request.check(), Ok(()));
            assert!(request.start_ns >= last, "time runs backwards");
            last = request.start_ns;
            analysis.push(request);
        }
    }
    let weight = reader.completeness().weight();
    assert!((0.0..=1.0).contains(&weight), "{weight}");
    let summary = analysis.finish();
    let requests: u64 = summary.files.iter().map(|file| file.mix.requests()).sum();
    assert_eq!(requests + summary.requests_of_other_files, reader.completeness().requests);
    Ok(())
}

fn writer(kind: Kind) -> Writer<Vec<u8>> {
    Writer::new(Vec::new(), &Source::new(kind)).unwrap()
}

#[test]
fn hostile_csv() {
    attack(&[CSV], 8_000, |text| {
        for sorted in [false, true] {
            let writer = writer(Kind::Csv);
            let mut sink = if sorted {
                Sink::sorted(writer, &std::env::temp_dir())
            } else {
                Sink::ordered(writer)
            };
            if csv::import(text, &mut sink).is_ok() {
                let (trace, imported) = sink.finish().unwrap();
                analyse(&trace).unwrap();
                assert!(imported.requests <= text.len() as u64);
            }
        }
    });
}

#[test]
fn hostile_text_of_darshan() {
    attack(&[DXT], 8_000, |text| {
        for module in [Module::Lowest, Module::Posix, Module::Mpiio] {
            let mut sink = Sink::sorted(writer(Kind::DxtText), &std::env::temp_dir());
            if dxt::import(text, module, &mut sink).is_ok() {
                analyse(&sink.finish().unwrap().0).unwrap();
            }
        }
    });
}

fn trace() -> Vec<u8> {
    let mut writer = writer(Kind::Generated);
    for number in 0..3 {
        writer.file(format!("file {number}").as_bytes()).unwrap();
        writer.process(&Process { number, node: b"n".to_vec() }).unwrap();
    }
    for at in 0..20_u32 {
        let request = Request {
            start_ns: u64::from(at) * 1000,
            duration_ns: at.is_multiple_of(2).then_some(7),
            process: at % 3,
            file: at / 7,
            op: if at.is_multiple_of(3) { Op::Write } else { Op::Read },
            offset: u64::from(at) << 16,
            length: 4096,
        };
        writer.push(&request).unwrap();
    }
    writer.lose(2);
    writer.finish().unwrap()
}

/// With the checksums that its blocks ought to have: a trace says what its maker wants it to.
fn summed(bytes: &[u8]) -> Vec<u8> {
    let sum = |parts: &[&[u8]]| {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        for part in parts {
            digest.update(part);
        }
        u32::try_from(digest.finalize()).unwrap()
    };
    let mut out = bytes.to_vec();
    let mut chain = sum(&[&bytes[..bytes.len().min(12)]]);
    let mut at = 12;
    while at + 20 <= out.len() {
        let length = u32::from_le_bytes(out[at + 8..at + 12].try_into().unwrap()) as usize;
        // A length that cannot be is made to fit, so that what follows is read, too.
        let length = if at + 20 + length <= out.len() { length } else { out.len() - at - 20 };
        out[at + 8..at + 12].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
        let (head, content) = (at..at + 16, at + 20..at + 20 + length);
        chain = sum(&[&chain.to_le_bytes(), &out[head], &out[content.clone()]]);
        out[at + 16..at + 20].copy_from_slice(&chain.to_le_bytes());
        at = content.end;
    }
    out
}

#[test]
fn hostile_traces() {
    let trace = trace();
    assert_eq!(summed(&trace), trace, "the sums of the format");
    attack(&[&trace], 20_000, |bytes| {
        let _ = analyse(bytes);
        let _ = analyse(&summed(bytes));
    });
}
