//! Bodies of this crate's fuzz targets (`fuzz/`): traces and texts that somebody made to be read wrongly. They are
//! called by cargo-fuzz, and by the tests below over the same seeds (docs/TESTING.md, fuzz targets).

use std::io::Cursor;

use crate::analysis::Analysis;
use crate::import::dxt::{self, Module};
use crate::import::{Sink, csv};
use crate::{Error, Kind, Reader, Source, Writer};

/// Bytes of a trace before its first block, and of a block before its content.
const HEAD: usize = 12;
const FRAME: usize = 20;

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
    Writer::new(Vec::new(), &Source::new(kind)).expect("memory takes it")
}

/// A trace, as it stands and with the checksums that its blocks ought to have.
pub fn trace(bytes: &[u8]) {
    let _ = analyse(bytes);
    let _ = analyse(&summed(bytes));
}

/// With the checksums that its blocks ought to have: a trace says what its maker wants it to.
fn summed(bytes: &[u8]) -> Vec<u8> {
    let sum = |parts: &[&[u8]]| {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        for part in parts {
            digest.update(part);
        }
        u32::try_from(digest.finalize()).expect("32 bits")
    };
    let mut out = bytes.to_vec();
    let mut chain = sum(&[&bytes[..bytes.len().min(HEAD)]]);
    let mut at = HEAD;
    while at + FRAME <= out.len() {
        let length = u32::from_le_bytes(*out[at + 8..].first_chunk().expect("four bytes")) as usize;
        // A length that cannot be is made to fit, so that what follows is read, too.
        let length = if at + FRAME + length <= out.len() { length } else { out.len() - at - FRAME };
        let field = u32::try_from(length).expect("it fits");
        out[at + 8..at + 12].copy_from_slice(&field.to_le_bytes());
        let (head, content) = (at..at + 16, at + FRAME..at + FRAME + length);
        chain = sum(&[&chain.to_le_bytes(), &out[head], &out[content.clone()]]);
        out[at + 16..at + FRAME].copy_from_slice(&chain.to_le_bytes());
        at = content.end;
    }
    out
}

/// Comma-separated values: what is imported is a trace with no more requests than there are bytes.
pub fn csv(text: &[u8]) {
    for sorted in [false, true] {
        let writer = writer(Kind::Csv);
        let mut sink = if sorted {
            Sink::sorted(writer, &std::env::temp_dir())
        } else {
            Sink::ordered(writer)
        };
        if csv::import(text, &mut sink).is_ok() {
            let (trace, imported) = sink.finish().expect("memory takes it");
            analyse(&trace).expect("our own");
            assert!(imported.requests <= text.len() as u64);
        }
    }
}

/// What `darshan-dxt-parser` writes.
pub fn dxt(text: &[u8]) {
    for module in [Module::Lowest, Module::Posix, Module::Mpiio] {
        let mut sink = Sink::sorted(writer(Kind::DxtText), &std::env::temp_dir());
        if dxt::import(text, module, &mut sink).is_ok() {
            analyse(&sink.finish().expect("memory takes it").0).expect("our own");
        }
    }
}

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;
    use crate::{Op, Process, Request};

    const CSV: &[u8] = b"time_s,process,file,op,offset,length,duration_s\n\
        0.5,3,\"a, b\",read,0,4096,0.001\r\n0.75,3,c,W,65536,4096,\n1,4,c,r,69632,4096,2.5e-05\n\
        1.5,4,c,r,8192,4096,1\n2,4,c,w,4611686018427387904,4611686018427387903,17179869183\n";
    const DXT: &[u8] = b"# DXT, file_id: 12, file_name: /a/b\n# DXT, rank: 0, hostname: n1\n\
        # DXT, write_count: 2, read_count: 1\n X_POSIX 0 write 0 0 4096 0.0010 0.0020 [1] [2]\n\
        X_POSIX 0 write 1 4096 4096 0.0030 0.0040\n X_MPIIO 0 read 0 0 8192 0.1 0.2\n\
        # *WARNING*: The DXT_POSIX module contains incomplete data!\n";

    #[test]
    fn hostile_csv() {
        run("trace_csv", &[("some", CSV.to_vec())], 8_000, csv);
    }

    #[test]
    fn hostile_text_of_darshan() {
        run("trace_dxt", &[("some", DXT.to_vec())], 8_000, dxt);
    }

    fn made() -> Vec<u8> {
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

    #[test]
    fn hostile_traces() {
        let made = made();
        assert_eq!(summed(&made), made, "the sums of the format");
        run("trace_reader", &[("generated", made)], 20_000, trace);
    }
}
