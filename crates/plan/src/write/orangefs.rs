//! The distribution `varstrip_dist` of `OrangeFS`, which has a strip of any width for each server.

use super::{Made, directory_of, only, word};
use crate::layout::Part;
use crate::plan_file::Plan;

/// How many characters `varstrip_dist` keeps of its strips.
const STRIPS_MAX: usize = 1024;

pub(super) fn commands(plan: &Plan, path: &[u8], parts: &[Part]) -> Result<Made, String> {
    let part = only("OrangeFS", parts)?;
    let used = || part.widths.iter().enumerate().filter(|(_, width)| **width > 0);
    let strips = used().enumerate().map(|(place, (_, width))| format!("{place}:{width}"));
    let strips = strips.collect::<Vec<_>>().join(";");
    if strips.len() > STRIPS_MAX {
        return Err(format!("its strips take more than {STRIPS_MAX} characters"));
    }
    let servers: Vec<&str> = used().map(|(server, _)| plan.server[server].name.as_str()).collect();
    if let Some(name) = servers.iter().find(|name| name.contains(',')) {
        return Err(format!("the server {name:?} has a comma in its name"));
    }
    let directory = word(directory_of(path))?;
    let lines = vec![
        "# files that are made in the directory later have these strips, too".into(),
        format!("setfattr -n user.pvfs2.dist_name -v varstrip_dist {directory}"),
        format!("setfattr -n user.pvfs2.dist_params -v 'strips:{strips}' {directory}"),
        format!("pvfs2-touch -l {} {}", word(servers.join(",").as_bytes())?, word(path)?),
    ];
    Ok(Made { lines, parts: parts.to_vec() })
}
