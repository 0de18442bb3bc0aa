//! `CephFS` and `BeeGFS`, which choose the servers of a file themselves, within a pool.

use super::{check_stripe, directory_of, only, word};
use crate::layout::Part;
use crate::plan_file::Plan;

/// The unit of Ceph's stripes, and the smallest chunk of a file on `BeeGFS`, in bytes.
const POOLED_UNIT: u64 = 64 << 10;
/// Size of a Ceph object in bytes, unless a stripe is longer.
const CEPH_OBJECT: u64 = 4 << 20;
/// Layouts that can be expressed on a file system that itself chooses the servers of a file, within a pool.
#[derive(Debug)]
struct Pooled<'p> {
    pool: &'p str,
    stripe: u64,
    servers: usize,
}

impl<'p> Pooled<'p> {
    /// One part with equal stripes on servers of one pool. Servers are named by their pool and a number: `ssd.0`,
    /// `ssd.1`.
    fn of(system: &str, plan: &'p Plan, parts: &[Part]) -> Result<Self, String> {
        let part = only(system, parts)?;
        let mut found: Option<Self> = None;
        let used = part.widths.iter().zip(&plan.server).filter(|(width, _)| **width > 0);
        for (&stripe, server) in used {
            let (pool, _) = server.name.rsplit_once('.').ok_or_else(|| {
                format!(
                    "the server {:?} has no pool in its name, as \"pool.0\" has; name it so in the \
                     description of the servers",
                    server.name
                )
            })?;
            match &mut found {
                None => found = Some(Self { pool, stripe, servers: 1 }),
                Some(found) if found.pool != pool => {
                    let other = found.pool;
                    return Err(format!(
                        "it lies on the pools {other:?} and {pool:?}; {system} has one for a file"
                    ));
                }
                Some(found) if found.stripe != stripe => {
                    let other = found.stripe;
                    return Err(format!(
                        "its stripes have {other} and {stripe} bytes; those of {system} are equal"
                    ));
                }
                Some(found) => found.servers += 1,
            }
        }
        let found = found.ok_or("it lies on no server")?;
        if !found.stripe.is_multiple_of(POOLED_UNIT) {
            let stripe = found.stripe;
            return Err(format!("its stripe of {stripe} bytes is not a multiple of {POOLED_UNIT}"));
        }
        check_stripe(found.stripe)?;
        Ok(found)
    }
}

pub(super) fn cephfs(plan: &Plan, path: &[u8], parts: &[Part]) -> Result<Vec<String>, String> {
    let Pooled { pool, stripe, servers } = Pooled::of("CephFS", plan, parts)?;
    if !pool.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
        return Err(format!("{pool:?} cannot be the name of a pool of CephFS"));
    }
    let object = CEPH_OBJECT.max(stripe).next_multiple_of(stripe);
    let path = word(path)?;
    let set = |field: &str, value: &str| {
        format!("setfattr -n ceph.file.layout.{field} -v {value} {path}")
    };
    Ok(vec![
        "# objects are placed by hash: on the planned servers' pool, each with as much on average"
            .into(),
        format!("touch {path}"),
        set("pool", pool),
        format!(
            "setfattr -n ceph.file.layout -v 'stripe_unit={stripe} stripe_count={servers} object_size={object}' {path}"
        ),
    ])
}

pub(super) fn beegfs(plan: &Plan, path: &[u8], parts: &[Part]) -> Result<Vec<String>, String> {
    let Pooled { pool, stripe, servers } = Pooled::of("BeeGFS", plan, parts)?;
    if pool.parse::<u16>().is_err() {
        return Err(format!("{pool:?} is not the number of a storage pool of BeeGFS"));
    }
    if !stripe.is_power_of_two() {
        return Err(format!(
            "its stripe of {stripe} bytes is not a power of two, as chunks of BeeGFS are"
        ));
    }
    let directory = word(directory_of(path))?;
    Ok(vec![
        "# the targets are chosen by BeeGFS, in the pool".into(),
        format!(
            "beegfs-ctl --setpattern --storagepoolid={pool} --numtargets={servers} --chunksize={stripe} {directory}"
        ),
        format!("touch {}", word(path)?),
    ])
}
