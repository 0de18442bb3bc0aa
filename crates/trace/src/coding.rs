//! Encodes the requests of a block as bytes, and decodes them. Each block is self-contained.
//!
//! A request is a byte of flags, then whatever the flags do not determine, as varints: process, file, start after the
//! previous one, offset, length, duration. What a process last did in a file predicts its next request: the same gap,
//! the same length. Predictions are kept in slots that may be shared; sharing costs bytes, not correctness.

use crate::request::{Op, Request};
use crate::varint::{fold, put, take, unfold};

const WRITE: u8 = 1;
const SAME_PROCESS: u8 = 2;
const SAME_FILE: u8 = 4;
const PREDICTED_OFFSET: u8 = 8;
const SAME_LENGTH: u8 = 16;
const HAS_DURATION: u8 = 32;
const ALL: u8 = 63;

const SLOTS_LOG2: u32 = 10;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    end: u64,
    gap: i64,
    length: u64,
}

/// The predictions, which are the same for writer and reader.
#[derive(Debug)]
pub(crate) struct Coder {
    slots: Box<[Slot]>,
    start_ns: u64,
    process: u32,
    file: u32,
}

impl Coder {
    pub(crate) fn new() -> Self {
        let slots = vec![Slot::default(); 1 << SLOTS_LOG2].into_boxed_slice();
        Self { slots, start_ns: 0, process: 0, file: 0 }
    }

    /// Forgets everything, at the beginning of a block.
    pub(crate) fn reset(&mut self) {
        self.slots.fill(Slot::default());
        (self.start_ns, self.process, self.file) = (0, 0, 0);
    }

    fn slot(&mut self, process: u32, file: u32) -> &mut Slot {
        let mixed = process.wrapping_mul(0x9E37_79B1) ^ file.wrapping_mul(0x85EB_CA6B);
        &mut self.slots[(mixed >> (32 - SLOTS_LOG2)) as usize]
    }

    fn note(&mut self, request: &Request) {
        let slot = self.slot(request.process, request.file);
        let gap = request.offset.wrapping_sub(slot.end).cast_signed();
        *slot = Slot { end: request.end(), gap, length: request.length };
        self.start_ns = request.start_ns;
        self.process = request.process;
        self.file = request.file;
    }

    /// Appends a request, which must not start earlier than the previous one.
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, request: &Request) {
        let slot = *self.slot(request.process, request.file);
        let flag = |yes: bool, flag: u8| if yes { flag } else { 0 };
        let gap = request.offset.wrapping_sub(slot.end).cast_signed();
        let flags = flag(request.op == Op::Write, WRITE)
            | flag(request.process == self.process, SAME_PROCESS)
            | flag(request.file == self.file, SAME_FILE)
            | flag(gap == slot.gap, PREDICTED_OFFSET)
            | flag(request.length == slot.length, SAME_LENGTH)
            | flag(request.duration_ns.is_some(), HAS_DURATION);
        out.push(flags);
        if flags & SAME_PROCESS == 0 {
            put(out, u64::from(request.process));
        }
        if flags & SAME_FILE == 0 {
            put(out, u64::from(request.file));
        }
        put(out, request.start_ns - self.start_ns);
        if flags & PREDICTED_OFFSET == 0 {
            put(out, fold(gap));
        }
        if flags & SAME_LENGTH == 0 {
            put(out, request.length);
        }
        if let Some(took) = request.duration_ns {
            put(out, took);
        }
        self.note(request);
    }

    /// Takes a request from the front of `input`; `None` if there is no valid one.
    pub(crate) fn take(&mut self, input: &mut &[u8]) -> Option<Request> {
        let (&flags, rest) = input.split_first()?;
        *input = rest;
        if flags & !ALL != 0 {
            return None;
        }
        let mut number = |same: u8, old: u32| {
            if flags & same == 0 { u32::try_from(take(input)?).ok() } else { Some(old) }
        };
        let process = number(SAME_PROCESS, self.process)?;
        let file = number(SAME_FILE, self.file)?;
        let start_ns = self.start_ns.checked_add(take(input)?)?;
        let slot = *self.slot(process, file);
        let gap = if flags & PREDICTED_OFFSET == 0 { unfold(take(input)?) } else { slot.gap };
        let length = if flags & SAME_LENGTH == 0 { take(input)? } else { slot.length };
        let duration_ns = if flags & HAS_DURATION == 0 { None } else { Some(take(input)?) };
        let op = if flags & WRITE == 0 { Op::Read } else { Op::Write };
        let offset = slot.end.wrapping_add(gap.cast_unsigned());
        let request = Request { start_ns, duration_ns, process, file, op, offset, length };
        request.check().ok()?;
        self.note(&request);
        Some(request)
    }
}
