//! `halocline status`: the state of a mount at a glance.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use clap::Args;
use halocline_api::control::{AnyStatus, Health, Rebuilder, ServerStatus, Side, Status, mount};
use halocline_os::counted::counted;
use halocline_os::error::Error;

use super::print_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::print::{self, say, tell};
use crate::text;

/// Show the state of a mount: space, dirty data, health, traffic
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// A path on the mount, its cache directory, or the root of its tiers; all mounts when left out
    path: Option<PathBuf>,
    /// Answer in JSON: one status, or a list of them without PATH
    #[arg(long)]
    json: bool,
}

/// Executes the command.
pub(crate) fn execute(args: &StatusArgs) -> Outcome {
    if let Some(path) = &args.path {
        let status = mount_lookup::status(&mount_lookup::named(path)?)?;
        if args.json {
            return print_json(&status);
        }
        print::lines(&describe(&status));
        return Ok(ExitCode::SUCCESS);
    }
    // In parallel: a mount that does not answer keeps nobody from learning about the others.
    let asked = thread::scope(|scope| {
        let ask = |mountpoint: &PathBuf| {
            mount_lookup::find(mountpoint)
                .map_err(Failure::from)
                .and_then(|place| mount_lookup::status(&place))
        };
        let asking: Vec<_> = mount::mountpoints()?
            .into_iter()
            .map(|mountpoint| scope.spawn(move || (ask(&mountpoint), mountpoint)))
            .collect();
        Ok::<_, Error>(
            asking.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>(),
        )
    })?;
    let mut all = Vec::new();
    for (answer, mountpoint) in asked {
        match answer {
            Ok(status) => all.push((mountpoint, status)),
            Err(failure) => tell!("{}: {}", text::path(&mountpoint), failure.message()),
        }
    }
    if args.json {
        return print_json(&all.iter().map(|(_, status)| status).collect::<Vec<_>>());
    }
    if all.is_empty() {
        say!("no halocline mount answers; a private one (run) is asked by its cache directory");
    }
    for (mountpoint, status) in &all {
        say!("{}", text::path(mountpoint));
        print::lines(&describe(status));
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(any: &AnyStatus) -> String {
    let status = &any.status;
    if let Some(tier) = &any.tier {
        return super::tier_text::status(status, tier);
    }
    extents(status)
}

fn extents(status: &Status) -> String {
    let health = match &status.health {
        Health::Ok => "ok".into(),
        Health::Degraded { reason } => format!("DEGRADED, nothing new is cached: {reason}"),
        Health::Full { reason } => format!("FULL: {reason}"),
        Health::Silent { reason } => format!("NO ANSWER: {reason}"),
    };
    let rebuilder = match status.rebuilder {
        Rebuilder::Idle => "idle",
        Rebuilder::Waiting => "waiting",
        Rebuilder::Flushing => "flushing",
        Rebuilder::Fetching => "fetching",
    };
    let age = status.oldest_dirty_age_ms.map_or_else(String::new, |age| {
        format!(
            ", the oldest for {}",
            text::seconds(std::time::Duration::from_millis(age).as_secs_f64())
        )
    });
    let mode = serde_json::to_value(status.mode).ok();
    let mode = mode.as_ref().and_then(|mode| mode.as_str()).unwrap_or("?");
    let mut lines = vec![
        ("origin", text::path(&status.origin)),
        ("cache", text::path(&status.cache)),
        ("mode", format!("{mode}, policy {}, eviction {}", status.policy, status.eviction)),
        ("requests", format!("through {}", status.transport)),
        ("health", health),
        (
            "space",
            format!(
                "{} of {} ({}), {}, {} of records{}",
                text::bytes(status.used_bytes),
                text::bytes(status.limit_bytes),
                text::share(status.used_bytes, status.limit_bytes),
                counted(status.extents, "extent"),
                text::bytes(status.records_bytes),
                free_on_file_system(status)
            ),
        ),
        (
            "dirty",
            format!(
                "{} in {}{age}",
                text::bytes(status.dirty_bytes),
                counted(status.dirty_extents, "extent")
            ),
        ),
        ("rebuilder", format!("{rebuilder}, {} wanted", counted(status.wanted_ranges, "range"))),
    ];
    lines.extend(super::rules::lines(&status.rules));
    let mut out = String::new();
    for (name, value) in lines {
        let _ = writeln!(out, "  {name:<10} {}", text::line(&value));
    }
    servers(&mut out, &status.servers);
    for line in text::served(&status.report, None).lines() {
        let _ = writeln!(out, "  {line}");
    }
    for note in &status.notes {
        let _ = writeln!(out, "  note: {}", text::line(note));
    }
    out
}

/// The free space of the cache's file system, which may be less than the cache may take; nothing for several servers,
/// which may be on several file systems, or if nobody answers.
fn free_on_file_system(status: &Status) -> String {
    let servers = status.servers.iter().filter(|server| server.side == Side::Cache).count();
    let found = mount_lookup::check_answers(&status.cache)
        .ok()
        .filter(|()| servers <= 1)
        .and_then(|()| rustix::fs::statvfs(&status.cache).ok());
    found.map_or_else(String::new, |found| {
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        format!(" ({} free on its file system)", text::bytes(free))
    })
}

fn servers(out: &mut String, servers: &[ServerStatus]) {
    for server in servers {
        let side = if server.side == Side::Cache { "cache dev" } else { "origin dev" };
        let _ = writeln!(
            out,
            "  {:<10} {} ({}): {} read, {} written, {}, {} queued",
            side,
            text::path(&server.path),
            text::line(&server.profile),
            text::bytes(server.read_bytes),
            text::bytes(server.written_bytes),
            counted(server.errors, "error"),
            server.queued
        );
        if let Some(ratio) = server.slower {
            let _ = writeln!(
                out,
                "             it takes {ratio:.1} times as long as calibrated: see what is wrong with it, or calibrate it again"
            );
        }
    }
}
