//! Limits of the numeric values of options.

/// The least and the greatest number that an option accepts, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The least.
    pub least: u64,
    /// The greatest.
    pub most: u64,
}

impl Bounds {
    /// Whether `number` is within them.
    pub(crate) const fn contain(self, number: u64) -> bool {
        self.least <= number && number <= self.most
    }
}

/// Largest number of bytes: offsets in files are signed.
pub(super) const BYTES_MAX: u64 = (1 << 63) - 1;
/// A number of table entries: each takes memory.
pub(super) const ENTRIES: Bounds = Bounds { least: 1, most: 1 << 26 };
/// A number of threads; 0 leaves it to the front end.
pub(super) const THREADS: Bounds = Bounds { least: 0, most: 1024 };
/// Limit of the servers of one side, whose queues are threads.
pub const SERVERS_MAX: u32 = 256;
/// A number of servers.
pub(super) const SERVERS: Bounds = Bounds { least: 1, most: SERVERS_MAX as u64 };
/// Bytes of a block: stripes are whole blocks, so that no block is on two servers.
pub(super) const BLOCK: u64 = 4096;
/// Largest stripe in bytes.
pub const STRIPE_BYTES_MAX: u64 = 1 << 40;
/// Bytes of a stripe.
pub(super) const STRIPE: Bounds = Bounds { least: BLOCK, most: STRIPE_BYTES_MAX };
/// Bytes per second; 0 means no limit.
pub(super) const RATE: Bounds = Bounds { least: 0, most: BYTES_MAX };
