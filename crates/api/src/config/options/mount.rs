//! Options of the mount and its programs.

use super::{OptionSpec, option};
use crate::config::bounds::THREADS;
use crate::config::scope::Scope;
use crate::config::units::{Kind, format_duration, parse_duration};
use crate::config::values::{count, put, single_thread};

/// In the order of the documentation.
pub(super) const ROWS: &[OptionSpec] = &[
    option!(
        "direct",
        Mount,
        Kind::Bool,
        |c| c.direct.to_string(),
        |c, v| put(&mut c.direct, v.parse().ok()),
        "Make every read reach the engine. The kernel's page cache is then not used for file data."
    ),
    option!(
        "allow_other",
        Mount,
        Kind::Bool,
        |c| c.allow_other.to_string(),
        |c, v| put(&mut c.allow_other, v.parse().ok()),
        "Let other users use the mount. The kernel checks the origin's permissions for each. \
         Without root it needs `user_allow_other` in /etc/fuse.conf. A file tier must then lie below a \
         directory that is closed to them (chmod 0700 ROOT), and the mount point outside it."
    ),
    option!(
        "allow_suid",
        Mount,
        Kind::Bool,
        |c| c.allow_suid.to_string(),
        |c, v| put(&mut c.allow_suid, v.parse().ok()),
        "Let set-id bits and file capabilities have their effect when a program on the mount is \
         started, as far as they have it on the origin. Only in mounts of root."
    ),
    option!(
        "allow_dev",
        Mount,
        Kind::Bool,
        |c| c.allow_dev.to_string(),
        |c, v| put(&mut c.allow_dev, v.parse().ok()),
        "Let device nodes on the mount be opened, as far as the origin lets them. Only in mounts of \
         root."
    ),
    option!(
        "threads",
        Mount,
        Kind::Count(THREADS),
        |c| c.threads.to_string(),
        |c, v| put(&mut c.threads, count(v, THREADS)),
        "Threads that serve the kernel. Calls wait for slow devices, so there are more of them than \
         processors; 0 is the built-in number."
    ),
    option!(
        "io_uring",
        Mount,
        Kind::Bool,
        |c| c.io_uring.to_string(),
        |c, v| put(&mut c.io_uring, v.parse().ok()),
        "Take requests from the kernel through io_uring where it offers that (Linux 6.14, module \
         parameter fuse.enable_uring): half the system calls, and no program waits for another \
         processor. Otherwise they come through /dev/fuse."
    ),
    option!(
        "busy_poll",
        Mount,
        Kind::Bool,
        |c| c.busy_poll.to_string(),
        |c, v| put(&mut c.busy_poll, v.parse().ok()),
        "With io_uring, look for a program's next request for up to 50 microseconds before sleeping, \
         as long as that mostly succeeds and nobody else wants the processor. Threads of a file tier \
         stay on a processor instead."
    ),
    option!(
        "attr_timeout",
        Mount,
        Kind::Duration,
        |c| format_duration(c.attr_timeout),
        |c, v| put(&mut c.attr_timeout, parse_duration(v)),
        "How long the kernel may keep names and attributes; for a file tier see \
         tier_attr_timeout. 0s where the origin is also changed behind the mount."
    ),
    option!(
        "warm_passthrough",
        Mount,
        Kind::Bool,
        |c| c.warm_passthrough.to_string(),
        |c, v| put(&mut c.warm_passthrough, v.parse().ok()),
        "Let the kernel serve files by itself that are opened for reading and that memory holds \
         whole. It needs root, Linux 6.9 and a plain origin; reports do not count such reads."
    ),
    option!(
        "single_thread",
        Mount,
        Kind::Bool,
        |c| (c.threads == 1).to_string(),
        |c, v| single_thread(c, v),
        "Serve the kernel with one thread, as `threads = 1`. The papers' single-thread mode."
    ),
];
