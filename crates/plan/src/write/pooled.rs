//! `CephFS` and `BeeGFS`, which choose the servers of a file themselves, within a pool.

use super::{Made, STRIPE_MAX, UNIT, check_stripe, directory_of, only, word};
use crate::layout::Part;
use crate::plan_file::Plan;
use crate::servers::Server;

/// Size of a Ceph object in bytes, unless a stripe is longer.
const CEPH_OBJECT: u64 = 4 << 20;
/// The longest object of Ceph, in bytes, unless its administrator allows more (`osd_max_object_size`). A layout with longer
/// ones is taken; what is written beyond is lost, as only `fsync` says.
const CEPH_OBJECT_MAX: u64 = 128 << 20;

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
                        "it lies on the pools {other:?} and {pool:?}; {system} has one for a file: plan with the \
                         servers of one pool, or leave it out of the trace"
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
        found.check_all_of_the_pool(system, plan)?;
        Ok(found)
    }

    /// Refuses some servers of a pool, where it matters which: that is not for the plan to say. One file alone may have any of
    /// them, if the file system takes so many for each file.
    fn check_all_of_the_pool(&self, system: &str, plan: &Plan) -> Result<(), String> {
        let in_pool = |server: &&Server| {
            server.name.rsplit_once('.').is_some_and(|(pool, _)| pool == self.pool)
        };
        let (pool, servers) = (self.pool, self.servers);
        let all = plan.server.iter().filter(in_pool).count();
        if servers == all || system == "BeeGFS" && plan.file.len() == 1 {
            return Ok(());
        }
        Err(format!(
            "it lies on {servers} of the {all} servers of the pool {pool:?}; {system} chooses the servers in a pool itself: \
             give each server, or those of one file, a pool of their own"
        ))
    }

    /// The planned parts in its stripes. On one server alone all stripes are the same layout.
    fn parts(&self, planned: &[Part]) -> Vec<Part> {
        let mut parts = planned.to_vec();
        if self.servers > 1 {
            let used = parts.iter_mut().flat_map(|part| &mut part.widths);
            used.filter(|width| **width > 0).for_each(|width| *width = self.stripe);
        }
        parts
    }

    /// Takes the longer stripe `made` that the file system has, if there is one; says so if it is another one.
    fn rounded(&mut self, made: u64, longest: u64) -> Result<Option<String>, String> {
        check_stripe(made, longest)?;
        let planned = std::mem::replace(&mut self.stripe, made);
        Ok((made != planned).then(|| format!("# stripes of {made} bytes instead of {planned}")))
    }
}

pub(super) fn cephfs(plan: &Plan, path: &[u8], parts: &[Part]) -> Result<Made, String> {
    let mut pooled = Pooled::of("CephFS", plan, parts)?;
    let made = pooled.stripe.next_multiple_of(UNIT);
    let mut lines = vec![
        "# objects are placed by hash: on the planned servers' pool, each with as much on average"
            .to_owned(),
    ];
    lines.extend(pooled.rounded(made, CEPH_OBJECT_MAX)?);
    let parts = pooled.parts(parts);
    let Pooled { pool, stripe, servers } = pooled;
    if !pool.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
        return Err(format!("{pool:?} cannot be the name of a pool of CephFS"));
    }
    let object = CEPH_OBJECT.max(stripe).next_multiple_of(stripe);
    let path = word(path)?;
    lines.push(format!("touch {path}"));
    lines.push(format!(
        "setfattr -n ceph.file.layout -v 'stripe_unit={stripe} stripe_count={servers} object_size={object} pool={pool}' {path}"
    ));
    Ok(Made { lines, parts })
}

pub(super) fn beegfs(plan: &Plan, path: &[u8], parts: &[Part]) -> Result<Made, String> {
    let mut pooled = Pooled::of("BeeGFS", plan, parts)?;
    let made = pooled.stripe.next_power_of_two().max(UNIT);
    let mut lines = vec![
        "# the targets are chosen by BeeGFS, in the pool; files that are made in the directory later have this pattern, too"
            .to_owned(),
    ];
    lines.extend(pooled.rounded(made, STRIPE_MAX)?);
    let parts = pooled.parts(parts);
    let Pooled { pool, stripe, servers } = pooled;
    if pool.parse::<u16>().is_err() {
        return Err(format!("{pool:?} is not the number of a storage pool of BeeGFS"));
    }
    let directory = word(directory_of(path))?;
    lines.push(format!(
        "beegfs-ctl --setpattern --storagepoolid={pool} --numtargets={servers} --chunksize={stripe} {directory}"
    ));
    lines.push(format!("touch {}", word(path)?));
    Ok(Made { lines, parts })
}
