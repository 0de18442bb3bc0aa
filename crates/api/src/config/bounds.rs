//! Between which numbers the values of options are.

/// The least and the greatest number that an option takes: both are allowed.
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

/// Most bytes that are read: offsets in files are signed.
pub(super) const BYTES_MAX: u64 = (1 << 63) - 1;
/// A number of entries of a table: each takes memory.
pub(super) const ENTRIES: Bounds = Bounds { least: 1, most: 1 << 26 };
/// A number of threads; 0 is for as many as the front end likes.
pub(super) const THREADS: Bounds = Bounds { least: 0, most: 1024 };
/// Servers of one side at most: their queues are threads.
pub const SERVERS_MAX: u32 = 256;
/// A number of servers.
pub(super) const SERVERS: Bounds = Bounds { least: 1, most: SERVERS_MAX as u64 };
/// Bytes of a block: stripes are whole ones, so that no block lies on two servers.
pub(super) const BLOCK: u64 = 4096;
/// Bytes of a stripe at most.
pub const STRIPE_BYTES_MAX: u64 = 1 << 40;
/// Bytes of a stripe.
pub(super) const STRIPE: Bounds = Bounds { least: BLOCK, most: STRIPE_BYTES_MAX };
/// Bytes a second; 0 is no limit.
pub(super) const RATE: Bounds = Bounds { least: 0, most: BYTES_MAX };
