//! The blocks of a file. The checksum of each includes that of the previous one, so that a block that was changed,
//! omitted, moved or inserted from another trace is detected.

use std::io::{self, Read, Write};

/// First bytes of a trace. Whatever damages text files damages them, too: a changed line end, a lost bit.
pub(crate) const MAGIC: [u8; 8] = *b"\x89HCT\r\n\x1a\n";
/// Version of the format.
pub(crate) const VERSION: u32 = 1;
/// Limit of a block's content in bytes.
pub(crate) const CONTENT_MAX: usize = 1 << 20;
/// Limit of the requests in a block.
pub(crate) const ROWS_MAX: u32 = 16_384;
const HEAD: usize = 16;

/// The kind of a block's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Block {
    About = 1,
    Files = 2,
    Processes = 3,
    Requests = 4,
    End = 5,
}

impl Block {
    const ALL: [Self; 5] = [Self::About, Self::Files, Self::Processes, Self::Requests, Self::End];
}

/// Why a block could not be read.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the medium.
    Io(io::Error),
    /// There are no more blocks.
    Ended,
    /// There is no complete block.
    Damaged(&'static str),
}

/// The checksum at the beginning of the chain of blocks.
pub(crate) fn chain_begin() -> u32 {
    sum(&[&MAGIC, &VERSION.to_le_bytes()])
}

fn sum(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).expect("the sum has 32 bits")
}

/// Writes a block and advances `chain`.
pub(crate) fn write(
    out: &mut impl Write,
    chain: &mut u32,
    block: Block,
    count: u32,
    content: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(content.len()).expect("a block's content is bounded");
    let mut head = [0; HEAD + 4];
    head[0] = block as u8;
    head[4..8].copy_from_slice(&count.to_le_bytes());
    head[8..12].copy_from_slice(&length.to_le_bytes());
    let sum = sum(&[&chain.to_le_bytes(), &head[..HEAD], content]);
    head[HEAD..].copy_from_slice(&sum.to_le_bytes());
    *chain = sum;
    out.write_all(&head)?;
    out.write_all(content)
}

/// Reads a block into `content` and advances `chain`; returns its kind and its count.
pub(crate) fn read(
    input: &mut impl Read,
    chain: &mut u32,
    content: &mut Vec<u8>,
) -> Result<(Block, u32), Failure> {
    let mut head = [0; HEAD + 4];
    match fill(input, &mut head)? {
        0 => return Err(Failure::Ended),
        got if got < head.len() => return Err(Failure::Damaged("a block's head is cut off")),
        _ => {}
    }
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let known = Block::ALL.into_iter().find(|block| *block as u8 == head[0]);
    let length = usize::try_from(word(8)).unwrap_or(usize::MAX);
    // Before the checksum is verified, only limits are checked.
    if length > CONTENT_MAX {
        return Err(Failure::Damaged("a block is longer than any is"));
    }
    content.resize(length, 0);
    if fill(input, content)? < length {
        return Err(Failure::Damaged("a block is cut off"));
    }
    let sum = sum(&[&chain.to_le_bytes(), &head[..HEAD], content]);
    if sum != word(HEAD) {
        return Err(Failure::Damaged("a block's checksum is wrong"));
    }
    let Some(block) = known.filter(|_| head[1..4] == [0; 3] && word(12) == 0) else {
        return Err(Failure::Damaged("a block of a kind that there is not"));
    };
    *chain = sum;
    Ok((block, word(4)))
}

/// Reads until `buffer` is full or the input ends; returns the number of bytes.
pub(crate) fn fill(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Failure> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::Io(error)),
        }
    }
    Ok(got)
}
