//! Writes plans as commands for existing parallel file systems. Anything that a target cannot express is refused;
//! anything that it can express only approximately is written with the error.

mod lustre;
mod orangefs;
mod pooled;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::layout::Part;
use crate::plan_file::Plan;
use crate::planner::Name;

/// The unit of the stripes of Lustre, `CephFS` and `BeeGFS`, in bytes.
const UNIT: u64 = 64 << 10;

/// Longest stripe of Lustre and `BeeGFS`, which keep it in 32 bits.
const STRIPE_MAX: u64 = (1 << 32) - UNIT;

/// What a script begins with: it makes all files or none. A file that is there may have a layout already, which only some
/// of the commands say: `touch` and `BeeGFS` leave it as it is without a word.
const NEW: [&str; 12] = [
    "#!/bin/sh",
    "set -e",
    "# Nothing is made unless all files are new and their directories are there.",
    "refuse() { printf '%s: %s\\n' \"$1\" \"$2\" | LC_ALL=C tr -c '[:print:]\\n' '?' >&2; exit 2; }",
    "new() {",
    "    if [ -e \"$1\" ] || [ -L \"$1\" ]; then",
    "        refuse \"$1\" 'it is there, and only a new file gets a layout: rename it, and copy its bytes back'",
    "    fi",
    "    case $1 in */*) directory=${1%/*}/ ;; *) directory=. ;; esac",
    "    [ -d \"$directory\" ] || refuse \"$1\" 'its directory is not there: make it first'",
    "}",
    "",
];

/// A parallel file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Composite layouts; unequal stripes by overstriping.
    Lustre,
    /// The distribution `varstrip_dist`.
    OrangeFs,
    /// Layouts of empty files, by pool.
    CephFs,
    /// Stripe patterns of directories, by storage pool.
    BeeGfs,
}

/// A shell script that creates the files of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Its lines.
    pub lines: Vec<String>,
    /// What each file of the plan gets, in their order, where that is not for all of them what the plan has: the file system
    /// has no such stripes, or ends. Where its stripes begin elsewhere than the plan's, this is as near as a plan gets.
    pub others: Option<Vec<Vec<Part>>>,
}

impl Script {
    /// Says in a comment what `line` does.
    pub fn tell(&mut self, line: &str) {
        self.lines.insert(1, format!("# {line}"));
    }
}

/// The commands for one file, and the layout that they give it.
struct Made {
    lines: Vec<String>,
    parts: Vec<Part>,
}

/// A shell script that creates empty files of `plan` with their layouts, or does nothing if the plan is to leave
/// files as they are. Servers are the targets of the file system in the order of the plan. The error says which file
/// cannot be expressed, and why.
pub fn script(target: Target, plan: &Plan) -> Result<Script, String> {
    if plan.chosen == Name::Def.text() {
        let why = "# Nothing is to be gained: leave the layout of the files as it is.";
        return Ok(Script { lines: vec![NEW[0].into(), why.into()], others: None });
    }
    let mut lines: Vec<String> = NEW.map(str::to_owned).into();
    let (mut made, mut known) = (Vec::new(), HashMap::new());
    let (mut others, mut is_other) = (Vec::new(), false);
    let mut spare = lustre::Spare::new(plan)?;
    for file in &plan.file {
        let named = file.path_bytes().ok_or("a file of the plan has no path")?;
        let shown = String::from_utf8_lossy(&named).into_owned();
        let refused = |why: String| format!("{shown}: {why}");
        let mut path = normal(&named).map_err(refused)?;
        if let Some(other) = known.insert(path.clone(), shown.clone()) {
            return Err(refused(format!("the plan has this file twice, also as {other}")));
        }
        // Commands must not take it for an option.
        if path.starts_with(b"-") {
            path.splice(0..0, *b"./");
        }
        lines.push(format!("new {}", word(&path).map_err(refused)?));
        let parts: Vec<Part> = file.part.iter().cloned().map(alone).collect();
        let of_file = match target {
            Target::Lustre => lustre::commands(plan, (&path, file.bytes), &parts, &mut spare),
            Target::OrangeFs => orangefs::commands(plan, &path, &parts),
            Target::CephFs => pooled::cephfs(plan, &path, &parts),
            Target::BeeGfs => pooled::beegfs(plan, &path, &parts),
        };
        let of_file = of_file.map_err(refused)?;
        made.extend(of_file.lines);
        is_other |= of_file.parts != parts;
        others.push(of_file.parts);
    }
    lines.extend(made);
    Ok(Script { lines, others: is_other.then_some(others) })
}

/// The path of a file, spelt as each other path of it: a script that looked for each file before it makes any would else find
/// itself in the way.
fn normal(path: &[u8]) -> Result<Vec<u8>, String> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    if matches!(parts.last(), None | Some(&(b"" | b"." | b".."))) {
        return Err(
            "it is the path of a directory, and none of a file: take it out of the trace".into()
        );
    }
    if parts.contains(&&b".."[..]) {
        return Err("it has .. in it, which may lead elsewhere by the time of the script: record the trace with whole paths".into());
    }
    let root: &[u8] = if path.starts_with(b"/") { b"/" } else { b"" };
    let named = parts.into_iter().filter(|part| !part.is_empty() && *part != b".");
    Ok([root, &named.collect::<Vec<_>>().join(&b'/')].concat())
}

/// On one server alone, stripes of any width are the same layout: such as each file system has.
fn alone(mut part: Part) -> Part {
    let mut used = part.widths.iter_mut().filter(|width| **width > 0);
    if let (Some(width), None) = (used.next(), used.next()) {
        *width = UNIT;
    }
    part
}

/// A word of a shell that stands for these bytes. A script is read by people on a terminal, too: of what that would obey
/// or cannot show, and of what is no text, the octal codes are written, which the `printf` of every shell knows.
fn word(bytes: &[u8]) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:,".contains(c);
    // Of what is escaped for debugging, only these are harmless.
    let is_shown = |c: char| "'\"\\".contains(c) || c.escape_debug().len() == 1;
    match str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && text.chars().all(is_plain) => Ok(text.to_owned()),
        Ok(text) if text.chars().all(is_shown) => Ok(format!("'{}'", text.replace('\'', "'\\''"))),
        _ if bytes.contains(&0) => Err("it has a byte 0 in it".into()),
        // A shell takes line ends off what a command prints.
        _ if bytes.ends_with(b"\n") => Err("it ends with a line break".into()),
        _ => {
            let mut octal = String::new();
            for byte in bytes {
                let _ = write!(octal, "\\{byte:03o}");
            }
            Ok(format!("\"$(printf '{octal}')\""))
        }
    }
}

/// Refuses a stripe that cannot be stored.
fn check_stripe(stripe: u64, longest: u64) -> Result<(), String> {
    if stripe > longest {
        return Err(format!("its stripe of {stripe} bytes is longer than {longest}"));
    }
    Ok(())
}

/// The only part of a layout, if it has just one.
fn only<'p>(system: &str, parts: &'p [Part]) -> Result<&'p Part, String> {
    let [part] = parts else {
        let count = parts.len();
        return Err(format!("its layout has {count} parts; {system} has one for a whole file"));
    };
    Ok(part)
}

/// The directory of a file.
fn directory_of(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        None => b".",
        Some(0) => b"/",
        Some(end) => &path[..end],
    }
}
