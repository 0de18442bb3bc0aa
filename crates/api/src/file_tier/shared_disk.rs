//! What a tier that nodes share keeps on the shared disk beside files, as far as a tier of one node may meet it there: left by a
//! repair, an adoption or a mount that was refused, or ended before it had changed anything.

/// In the root: the directory with the list of sessions.
pub const REGISTRY: &str = ".halocline-cluster";
/// In the private directory: the file with the tier's id.
pub const TIER: &str = "tier";
/// There: the directory with a file for each node, by its name.
pub const NODES: &str = "nodes";
/// There: the directory with a file for each node, which its mount keeps locked.
pub const MOUNTED: &str = "mounted";
/// There: the directory with the state of checks.
pub const CHECK: &str = "check";
