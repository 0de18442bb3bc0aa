//! Reports the contents of the store of tokens, for people and scripts. Nothing is changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_cache::coherence::SharedFile;
use halocline_cluster::overview::{Overview, Problem, overview};
use halocline_cluster::sessions;
use halocline_model::token::Mode;
use halocline_os::birth_time::born_ns;
use halocline_os::counted::counted;
use serde::Serialize;

use super::{AskArgs, print_json, state};
use crate::cluster::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::print::say;
use crate::text;

/// Which file of which origin.
#[derive(Debug, Args)]
pub(super) struct TokensArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The file: its path on the origin, or below it
    file: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// One token, or one place in the queue.
#[derive(Debug, Serialize)]
struct TokenJson {
    node: String,
    mode: Mode,
    offset: u64,
    /// Behind its last byte; null where it reaches to whatever end the file will have.
    end: Option<u64>,
}

/// Bytes that a node could not read from its cache when others wanted them.
#[derive(Debug, Serialize)]
struct UnreadableJson {
    node: String,
    offset: u64,
    end: u64,
}

/// The tokens of one file.
#[derive(Debug, Serialize)]
struct TokensJson {
    inode: u64,
    tokens: Vec<TokenJson>,
    unreadable: Vec<UnreadableJson>,
    /// Names of the waiting nodes, in order of arrival.
    waiting: Vec<String>,
}

/// `halocline cluster status`.
pub(super) fn status(args: &AskArgs) -> Outcome {
    let found = look(args)?;
    if args.json {
        print_json(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    let grants =
        if found.grants { "" } else { "; grants nothing until all have said what they hold" };
    say!("store: epoch {:016x}{grants}", found.epoch);
    let least = if found.all_files { "" } else { "at least " };
    say!("files: {least}{} with tokens, {} of them contended", found.files, found.contended_files);
    if let (Some(working), Some(serving)) = (found.working, found.serving) {
        let part = if working > 1 { format!(" (each takes 1/{working})") } else { String::new() };
        say!(
            "origin: background work of {}{part}, programs of {}",
            counted(working, "node"),
            counted(serving, "node")
        );
    }
    for holder in &found.nodes {
        let name = holder.node.node.as_deref().unwrap_or("?");
        let held = &holder.tokens;
        say!(
            "{:16} {:10} {}: {} exclusive, {} shared, {} direct; waits for {}",
            text::line(name),
            state(&holder.node),
            counted(held.files, "file"),
            held.exclusive,
            held.shared,
            held.direct,
            counted(held.waits, "file")
        );
    }
    for problem in &found.problems {
        say!("note: {}", told(problem));
    }
    Ok(ExitCode::SUCCESS)
}

/// `halocline cluster fsck`: exits with 1 if a problem does not resolve by itself.
pub(super) fn fsck(args: &AskArgs) -> Outcome {
    let found = look(args)?;
    if args.json {
        print_json(&found.problems)?;
    } else if found.problems.is_empty() {
        say!(
            "{} and {}: no inconsistencies",
            counted(found.nodes.len(), "node"),
            counted(found.files, "file")
        );
    } else {
        for problem in &found.problems {
            say!("{}", told(problem));
        }
    }
    let clean = found.problems.iter().all(Problem::ends_by_itself);
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn look(args: &AskArgs) -> Result<Overview, Failure> {
    let (store, registry) = args.store.open().map_err(Failure::refused)?;
    overview(&*store, &registry).map_err(Failure::refused)
}

fn told(problem: &Problem) -> String {
    match problem {
        Problem::Gone { node, files } => format!(
            "{} is gone and holds {} alone: mount its cache again, or `halocline cluster recover` it, or `forget` it",
            text::line(node),
            counted(*files, "file")
        ),
        Problem::Unlisted { session } => format!(
            "session {:016x} has tokens and is not in the list on the origin: somebody removed its entry; unmount that node",
            session.0
        ),
        Problem::Stray { inode, session } => {
            format!(
                "inode {inode}: tokens of session {:016x}, which has ended; they block nobody",
                session.0
            )
        }
        Problem::Conflict { inode, one, other } => format!(
            "inode {inode}: sessions {:016x} and {:016x} hold tokens that exclude each other: unmount both nodes, and report this",
            one.0, other.0
        ),
        Problem::Unreadable { inode, node, bytes } => format!(
            "inode {inode}: {} has {} that it could not read from its cache when others wanted them: see `halocline status` \
             there; if that cache is lost, end its mount (halocline umount --force), and `halocline cluster forget` it",
            text::line(node),
            text::bytes(*bytes)
        ),
        Problem::Unsound { inode, what } => format!(
            "inode {inode}: {}: somebody else writes to the store; remove the key, after all nodes are unmounted",
            text::line(what)
        ),
        Problem::Silent { what } => format!(
            "a partition of the store does not answer, so not all was checked: {}: see that it runs",
            text::line(what)
        ),
    }
}

/// `halocline cluster tokens`.
pub(super) fn tokens(args: &TokensArgs) -> Outcome {
    let (store, registry) = args.store.open().map_err(Failure::refused)?;
    let path = on_the_origin(&args.store.origin, &args.file)?;
    let found =
        std::fs::symlink_metadata(&path).map_err(|error| Failure::unreadable(&path, &error))?;
    if !found.is_file() {
        let path = text::path(&path);
        return Err(Failure::refused(format!("{path}: only regular files have tokens; name one")));
    }
    let file = SharedFile { inode: found.ino(), born_ns: born_ns(&found).cast_signed() };
    let tokens = sessions::tokens(&*store, file).map_err(Failure::refused)?;
    let token = |held: &halocline_model::token::Held| TokenJson {
        node: registry.node(held.session),
        mode: held.mode,
        offset: held.range.start,
        end: (held.range.end < u64::MAX).then_some(held.range.end),
    };
    let unreadable = |mark: &halocline_model::token::Unreadable| UnreadableJson {
        node: registry.node(mark.session),
        offset: mark.range.start,
        end: mark.range.end,
    };
    let answer = TokensJson {
        inode: file.inode,
        tokens: tokens.all().iter().map(token).collect(),
        unreadable: tokens.unreadable().iter().map(unreadable).collect(),
        waiting: tokens.waiters().map(|session| registry.node(session)).collect(),
    };
    if args.json {
        print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    if answer.tokens.is_empty() {
        say!("nobody holds anything of {}", text::path(&path));
    }
    for token in &answer.tokens {
        let end = token.end.map_or_else(|| "end".to_owned(), |end| end.to_string());
        let mode = match token.mode {
            Mode::Shared => "shared",
            Mode::Direct => "direct",
            Mode::Exclusive => "exclusive",
        };
        say!("{:16} {mode:9} {} to {end}", text::line(&token.node), token.offset);
    }
    for part in &answer.unreadable {
        let UnreadableJson { node, offset, end } = part;
        say!("{:16} cannot read {offset} to {end} from its cache", text::line(node));
    }
    for node in &answer.waiting {
        say!("{:16} waits", text::line(node));
    }
    Ok(ExitCode::SUCCESS)
}

/// The path of a file on the origin, from a path there or below it.
fn on_the_origin(origin: &Path, file: &Path) -> Result<PathBuf, Failure> {
    let below = origin.join(file);
    let path = if file.is_absolute() || below.symlink_metadata().is_err() { file } else { &below };
    let shown = text::path(path);
    let whole = |path: &Path| {
        std::fs::canonicalize(path).map_err(|error| Failure::unreadable(path, &error))
    };
    let (path, origin) = (whole(path)?, whole(origin)?);
    if !path.starts_with(&origin) {
        let origin = text::path(&origin);
        return Err(Failure::refused(format!(
            "{shown} is not below {origin}: name the file as the origin has it"
        )));
    }
    Ok(path)
}
