//! IOR: each process moves its blocks of a file, or of its own file, in transfers.

use halocline_trace::Op;

use super::permutation::permuted;
use super::{Access, Workload, fits, positive};

/// Parameters of IOR, named as its options.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the benchmark")]
pub struct Ior {
    processes: u32,
    block: u64,
    transfer: u64,
    segments: u64,
    file_per_process: bool,
    write: bool,
    read: bool,
    random: Option<u64>,
    reorder: bool,
}

impl Ior {
    /// `segments` (`-s`) times a `block` (`-b`) of each of `processes`, in `transfer`s (`-t`) of bytes, written.
    ///
    /// # Errors
    /// Something is 0, the transfer does not divide the block, or the file is too large.
    pub fn new(processes: u32, block: u64, transfer: u64, segments: u64) -> Result<Self, String> {
        let sizes = [
            ("the block", block),
            ("the transfer", transfer),
            ("the number of segments", segments),
        ];
        positive(&sizes)?;
        positive(&[("the number of processes", u64::from(processes))])?;
        if !block.is_multiple_of(transfer) {
            return Err(format!(
                "a block of {block} bytes is not a multiple of the transfer of {transfer}"
            ));
        }
        fits(&[u64::from(processes), block, segments])?;
        let (file_per_process, write, read, random, reorder) = (false, true, false, None, false);
        Ok(Self {
            processes,
            block,
            transfer,
            segments,
            file_per_process,
            write,
            read,
            random,
            reorder,
        })
    }

    /// A file for each process (`-F`).
    #[must_use]
    pub const fn file_per_process(self) -> Self {
        Self { file_per_process: true, ..self }
    }

    /// Whether to write (`-w`) and then to read (`-r`); at least one.
    ///
    /// # Errors
    /// Neither.
    pub fn directions(self, write: bool, read: bool) -> Result<Self, String> {
        if write || read {
            Ok(Self { write, read, ..self })
        } else {
            Err("neither write nor read".into())
        }
    }

    /// In random order (`-z`). On a shared file the transfers of the whole file are distributed among the processes,
    /// the same number to each; IOR chooses a process at random for each transfer, so that its processes have only
    /// roughly the same number.
    #[must_use]
    pub const fn random(self, seed: u64) -> Self {
        Self { random: Some(seed), ..self }
    }

    /// Each process reads what the next one wrote (`-C`).
    #[must_use]
    pub const fn reorder(self) -> Self {
        Self { reorder: true, ..self }
    }

    fn transfers(&self) -> u64 {
        self.block / self.transfer * self.segments
    }

    /// Transfer number `index` of `process`, as (process, index) in file order.
    fn placed(&self, process: u32, index: u64, seed: u64) -> (u32, u64) {
        let own = self.transfers();
        if self.file_per_process {
            return (process, permuted(index, own, seed ^ u64::from(process) << 32));
        }
        let all = own * u64::from(self.processes);
        let place = permuted(u64::from(process) * own + index, all, seed);
        (u32::try_from(place / own).expect("a process"), place % own)
    }
}

impl Workload for Ior {
    fn processes(&self) -> u32 {
        self.processes
    }

    fn files(&self) -> u32 {
        if self.file_per_process { self.processes } else { 1 }
    }

    fn steps(&self, _process: u32) -> u64 {
        self.transfers() * (u64::from(self.write) + u64::from(self.read))
    }

    fn access(&self, process: u32, step: u64) -> Access {
        let (pass, index) = (step / self.transfers(), step % self.transfers());
        let op = if self.write && pass == 0 { Op::Write } else { Op::Read };
        let shifted = op == Op::Read && self.reorder;
        let process = if shifted { (process + 1) % self.processes } else { process };
        let (process, index) = match self.random {
            Some(seed) => self.placed(process, index, seed),
            None => (process, index),
        };
        let in_block = self.block / self.transfer;
        let (segment, within) = (index / in_block, index % in_block * self.transfer);
        let (file, block) = if self.file_per_process {
            (process, segment)
        } else {
            (0, segment * u64::from(self.processes) + u64::from(process))
        };
        Access { file, op, offset: block * self.block + within, length: self.transfer }
    }
}
