//! The layouts of the paper: DEF, PA and PSA (docs/ALGORITHMS.md, section 7), for files of any kind.
//!
//! The paper has two classes of servers, one request length and one file. Here the slowest class serves as its
//! `HServer`s and all others as its `SServer`s, with the service times of the slowest and the space of the smallest of
//! those; S is the length that carries most bytes of a file; files take space in the order in which the trace names
//! them. Bytes that no longer fit go to the `HServer`s in stripes of S/m.

use halocline_model::psa::{self, Candidate, Params, Task};
use halocline_model::request::Direction;
use halocline_trace::Op;

use crate::Error;
use crate::judge::{Judge, Layouts, Step};
use crate::layout::{DEFAULT_STRIPE, Layout, Placer, STRIPE_BYTES_MIN, WIDTH_BYTES_MAX, assemble};
use crate::servers::{Network, Servers};
use crate::shared::SharedLayouts;
use crate::workload::{File, Workload};

/// Stripes are multiples of this, in bytes.
pub const STEP: u64 = 4096;
/// Limit of the disk stripes that are tried for a request: that for requests of one system call, 2 GiB, on one disk.
/// Others' traces may claim requests of exbibytes.
const STRIPES_MAX: u64 = 1 << 19;
/// Bits that the exact arithmetic has for products.
const BITS_MAX: u32 = 118;
/// Limit of the pairs that are kept of a file's ties: of requests of gigabytes on full SSDs, all of hundreds of thousands
/// tie.
pub const TIES_MAX: usize = 256;

/// A layout of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// The paper's default: 64 KiB everywhere as long as there is room.
    Def,
    /// By performance alone.
    Pa,
    /// By performance and space.
    Psa,
}

/// Stripes on `HServer`s and `SServer`s, bytes.
pub type Pair = (u64, u64);

/// Stripes of equal cost for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ties {
    /// The file's number in the trace.
    pub file: u32,
    /// How many pairs of stripes PSA cannot distinguish.
    pub pairs: usize,
    /// These, or the last [`TIES_MAX`] of them; the last is its choice.
    pub candidates: Vec<Candidate>,
}

/// Files for which a scheme has no stripes: they lie as with [`Scheme::Def`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// PA or PSA.
    pub scheme: Scheme,
    /// How many.
    pub files: usize,
    /// The number of the first in the trace.
    pub first: u32,
    /// Why there are none for the first.
    pub why: String,
}

/// The files laid out by a scheme.
#[derive(Debug, Clone)]
pub(crate) struct LaidOut {
    pub(crate) layouts: Layouts,
    /// Of PSA.
    pub(crate) ties: Vec<Ties>,
    /// `None` if the scheme has stripes for each file.
    pub(crate) unanswered: Option<Unanswered>,
}

/// Widths on `HServer`s and `SServer`s for each server.
pub fn widths(servers: &Servers, (h, s): Pair) -> Vec<u64> {
    let by_class: Vec<u64> =
        (0..servers.classes().len()).map(|class| if class == 0 { h } else { s }).collect();
    servers.widths(&by_class)
}

/// Stripes on the `HServer`s alone, for requests of `size` bytes.
pub fn on_disks(servers: &Servers, size: u64) -> Vec<u64> {
    let m = servers.classes()[0].members.len() as u64;
    let even = size > 0 && size.is_multiple_of(m);
    let width =
        if even { (size / m).clamp(STRIPE_BYTES_MIN, WIDTH_BYTES_MAX) } else { DEFAULT_STRIPE };
    widths(servers, (width, 0))
}

/// Refuses stripes that are impossible on a volume.
fn wide_enough(widths: Vec<u64>) -> Result<Vec<u64>, String> {
    match widths.iter().find(|width| (1..STRIPE_BYTES_MIN).contains(*width)) {
        Some(width) => Err(format!(
            "it has stripes of {width} bytes; a volume has none below {STRIPE_BYTES_MIN}"
        )),
        None => Ok(widths),
    }
}

/// Parameters of the cost model for a file; the error says why there are none.
pub fn params(servers: &Servers, workload: &Workload, file: &File) -> Result<Params, String> {
    if servers.classes().len() < 2 {
        return Err("all servers are of one kind".into());
    }
    let writing = file.share(|request| request.op == Op::Write) > 0.5;
    let direction = if writing { Direction::Write } else { Direction::Read };
    let sequential = file.share(|request| request.sequential) > 0.5;
    let of = |class: &crate::servers::Class| {
        let service = class.profile.of(direction);
        let startup =
            if sequential { service.startup_sequential_ps } else { service.startup_random_ps };
        let Network { connect_ps, per_byte_ps } = class.network;
        // A server that serves several requests at once moves bytes faster than one caller sees.
        [startup, service.per_byte_ps / u64::from(class.channels), connect_ps, per_byte_ps]
    };
    let disk = of(&servers.classes()[0]);
    let fast = servers.classes().iter().skip(1).map(of);
    let slower = |a: [u64; 4], b: [u64; 4]| std::array::from_fn(|time| a[time].max(b[time]));
    let ssd = fast.reduce(slower).expect("there are two classes");
    let m = servers.classes()[0].members.len() as u64;
    Ok(Params {
        p: file.processes,
        c: workload.processes_per_node.min(file.processes),
        m,
        n: servers.count() as u64 - m,
        e_h_ps: disk[2],
        t_h_ps_per_byte: disk[3],
        e_s_ps: ssd[2],
        t_s_ps_per_byte: ssd[3],
        alpha_h_ps: disk[0],
        beta_h_ps_per_byte: disk[1],
        alpha_s_ps: ssd[0],
        beta_s_ps_per_byte: ssd[1],
    })
}

/// The problem that PA and PSA solve for a file when `room` bytes are left on each server.
pub fn task(servers: &Servers, file: &File, room: &[u64]) -> Result<Task, String> {
    let size = file.size();
    let sserver_bytes = servers.fast().map(|server| room[server]).min().unwrap_or(0);
    if size == 0 {
        return Err("it has no requests".into());
    }
    Ok(Task { size, k: file.bytes.div_ceil(size), sserver_bytes, step: STEP })
}

/// Whether products of these stay exact.
fn fits(params: &Params, task: &Task) -> bool {
    let bits = |value: u64| 64 - value.leading_zeros();
    let connect = params.e_h_ps.max(params.e_s_ps);
    let startup = bits(params.alpha_h_ps.max(params.alpha_s_ps).max(connect));
    let device = params.beta_h_ps_per_byte.max(params.beta_s_ps_per_byte);
    let byte = device.max(params.t_h_ps_per_byte).max(params.t_s_ps_per_byte);
    let one = startup.max(bits(byte) + bits(task.size));
    let servers = bits(params.m + params.n);
    one + bits(params.p.max(params.c)) + bits(task.k) + 2 * servers + 2 <= BITS_MAX
}

/// The pair that PA or PSA chooses, and its ties.
pub fn choose(scheme: Scheme, servers: &Servers, params: &Params, task: &Task) -> Answer {
    let size = task.size;
    let none =
        || format!("no stripes in steps of {STEP} bytes divide its requests of {size} bytes");
    if !fits(params, task) {
        return Err(format!("requests of {size} bytes and these service times are out of bounds"));
    }
    if size / STEP / params.m > STRIPES_MAX {
        return Err(format!("requests of {size} bytes have more stripes than can be tried"));
    }
    match scheme {
        Scheme::Def => Ok((vec![DEFAULT_STRIPE; servers.count()], Vec::new())),
        Scheme::Pa => {
            let (h, s, _) = params.performance_aware(task, true).ok_or_else(none)?;
            Ok((wide_enough(widths(servers, (h, s)))?, Vec::new()))
        }
        Scheme::Psa => {
            let ties = psa::ties(&params.candidates(task));
            let choice = ties.last().ok_or_else(none)?;
            Ok((wide_enough(widths(servers, (choice.h, choice.s)))?, ties))
        }
    }
}

/// A scheme's stripes and their ties, or why it has none.
type Answer = Result<(Vec<u64>, Vec<Candidate>), String>;

/// The last answer: of thousands of files that are alike, each has that of the one before.
struct Known(Option<((Params, Task), Answer)>);

impl Known {
    fn choose(&mut self, scheme: Scheme, servers: &Servers, asked: (Params, Task)) -> Answer {
        if let Some((known, answer)) = &self.0
            && *known == asked
        {
            return answer.clone();
        }
        let answer = choose(scheme, servers, &asked.0, &asked.1);
        self.0 = Some((asked, answer.clone()));
        answer
    }
}

/// Lays out a file in stripes of `first` as far as there is room, and what no longer fits on the slowest servers.
pub(crate) fn place(
    servers: &Servers,
    file: &File,
    first: &[u64],
    placer: &mut Placer,
) -> Result<Layout, Error> {
    let rest = on_disks(servers, file.size());
    let parts = placer.place(0, file.bytes, &[first, &rest]).map_err(|missing| Error::NoSpace {
        file: file.number.to_string(),
        bytes: file.bytes,
        missing,
    })?;
    Ok(assemble(parts))
}

/// The files laid out by a scheme. The outer error means that they do not fit, the inner one that the scheme has a
/// solution for none of them.
pub(crate) fn lay_out(
    scheme: Scheme,
    servers: &Servers,
    workload: &Workload,
    judge: &mut dyn Judge,
) -> Result<Result<LaidOut, String>, Error> {
    let mut placer = Placer::new(servers.room());
    let mut files: Vec<&File> = workload.files.iter().collect();
    files.sort_by_key(|file| file.number);
    let mut layouts = Layouts {
        files: rustc_hash::FxHashMap::default(),
        default: Layout::simple(vec![DEFAULT_STRIPE; servers.count()]),
    };
    let mut all_ties = Vec::new();
    let mut unanswered: Option<Unanswered> = None;
    let default = vec![DEFAULT_STRIPE; servers.count()];
    let (mut shared, mut known) = (SharedLayouts::default(), Known(None));
    let all = files.len();
    for (done, file) in files.into_iter().enumerate() {
        judge.advanced(Step::PaperLayouts, done, all);
        let chosen = match scheme {
            Scheme::Def => Ok((default.clone(), Vec::new())),
            _ => params(servers, workload, file).and_then(|params| {
                let task = task(servers, file, placer.room())?;
                known.choose(scheme, servers, (params, task))
            }),
        };
        let (first, mut candidates) = match chosen {
            Ok(chosen) => chosen,
            Err(why) => {
                let first = Unanswered { scheme, files: 0, first: file.number, why };
                unanswered.get_or_insert(first).files += 1;
                (default.clone(), Vec::new())
            }
        };
        let layout = place(servers, file, &first, &mut placer)?;
        layouts.files.insert(file.number, shared.share(layout));
        let pairs = candidates.len();
        if pairs > 1 {
            let candidates = candidates.split_off(pairs.saturating_sub(TIES_MAX));
            all_ties.push(Ties { file: file.number, pairs, candidates });
        }
    }
    Ok(match unanswered {
        Some(Unanswered { files, why, .. }) if files == all => Err(why),
        unanswered => Ok(LaidOut { layouts, ties: all_ties, unanswered }),
    })
}

#[cfg(test)]
mod tests {
    use halocline_model::profile::DeviceProfile;
    use halocline_trace::Request;

    use super::*;
    use crate::judge::Queues;
    use crate::servers::{Network, Server};

    /// Regression: of 169 files of a real log one had requests of 64 bytes, and there was no `pa` and no `psa` of any.
    #[test]
    fn files_without_stripes_of_the_paper_lie_as_under_the_default() {
        let network = Network { connect_ps: 50_000_000, per_byte_ps: 1_000 };
        let server = |(name, profile): (&str, DeviceProfile)| {
            let (name, directory) = (name.into(), None);
            Server { name, directory, capacity: None, channels: 1, profile, network }
        };
        let (disk, ssd) = (DeviceProfile::hdd_7200(), DeviceProfile::ssd_revodrive_x2());
        let all = [("disk", disk), ("other", disk), ("ssd", ssd)].map(server);
        let servers = Servers::new(all.into()).expect("servers");
        let workload = |sizes: &[u64]| {
            let sizes = (0_u32..).zip(sizes.iter().copied()).cycle();
            let request = |(n, (file, length))| Request {
                start_ns: n,
                duration_ns: None,
                process: 0,
                file,
                op: Op::Write,
                offset: n * length,
                length,
            };
            let requests: Vec<Request> = (0..128).zip(sizes).map(request).collect();
            Workload::of(&requests, 1)
        };
        let laid_out = |scheme, sizes: &[u64]| {
            lay_out(scheme, &servers, &workload(sizes), &mut Queues::new(&servers)).expect("room")
        };
        let sizes = [32 << 10, 64, 64];
        let def = laid_out(Scheme::Def, &sizes).expect("def");
        for scheme in [Scheme::Pa, Scheme::Psa] {
            let found = laid_out(scheme, &sizes).expect("there are stripes for one of them");
            assert_ne!(found.layouts.of(0), def.layouts.of(0));
            assert_eq!(found.layouts.of(1), def.layouts.of(1));
            let unanswered = found.unanswered.expect("there are none for the others");
            assert_eq!((unanswered.scheme, unanswered.files, unanswered.first), (scheme, 2, 1));
            assert!(unanswered.why.contains("none below 512"), "{}", unanswered.why);
            // Where there are stripes for no file, there is no such layout.
            laid_out(scheme, &[64]).expect_err("none");
        }
    }
}
