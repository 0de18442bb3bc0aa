//! Which node and tier a directory belongs to, and how the SSDs of other nodes are reached.

mod reached;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use halocline_api::control::tier::PRIVATE;
use halocline_api::file_tier::LABEL;
use halocline_api::file_tier::shared_disk::{CHECK, NODES, TIER};
use halocline_os::beneath;
use halocline_os::bounded;
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use, check_above};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, unlinkat};
use rustix::io::Errno;

use super::adoption_mark;
use super::steps::Steps;
use super::tree::{Tree, fresh};
use crate::remedies::{ADOPT, FINISH_ADOPTION};

pub(crate) use reached::reached;

/// The file on a node's SSD that identifies it: two lines, the node's name and the tier's id.
const NODE: &str = "node";
/// In the directory of checks of the shared disk: nodes whose SSDs the last rebuild has not read.
pub(crate) const MISSING: &str = "missing";
/// The most bytes of each of these files.
const BYTES_MAX: u64 = 1024;
/// The longest node name: names of files have a prefix before it.
const NODE_BYTES_MAX: usize = 200;
/// The place of the node's name in a pattern.
const PATTERN: &str = "{node}";

/// The node and the tier to which an SSD belongs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Whose {
    pub(crate) node: String,
    pub(crate) tier: String,
}

/// Where other nodes' SSDs are.
#[derive(Debug)]
pub(crate) struct Peers {
    pattern: Option<String>,
    tier: String,
    steps: Steps,
}

/// Checks that a text can be a node's name: it must be usable in a path.
pub(crate) fn check_node(node: &str) -> Result<()> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = node.bytes().all(is_good) && !node.starts_with('.') && !node.is_empty();
    if is_name && node.len() <= NODE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{node:?} can be no node's name"),
        "use letters, digits, '-', '_' and '.', and begin with none of the last",
    ))
}

/// The id of a tier, read from its shared disk; made there if missing. All nodes get the same one.
pub(crate) fn tier_id(shared: &PrivateDir) -> Result<String> {
    loop {
        if let Some(id) = shared.read(TIER, BYTES_MAX)? {
            return text(&id, shared.path(), TIER);
        }
        let random = || RandomState::new().hash_one(std::process::id());
        let id = format!("{:016x}{:016x}\n", random(), random());
        let name = fresh(TIER, 0);
        let mut file = shared.file(&name, Use::New)?;
        let at = |error: io::Error| Error::at(shared.path().join(TIER), "write")(error);
        io::Write::write_all(&mut file, id.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(at)?;
        // If several nodes make one, the first wins.
        let linked = linkat(shared, &name, shared, TIER, AtFlags::empty());
        unlinkat(shared, &name, AtFlags::empty()).map_err(|errno| at(errno.into()))?;
        match linked {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(at(errno.into())),
        }
    }
}

fn text(bytes: &[u8], dir: &Path, name: &str) -> Result<String> {
    let is_ours = !bytes.is_empty() && bytes.iter().all(|byte| matches!(byte, b'\n' | b' '..=b'~'));
    match std::str::from_utf8(bytes) {
        Ok(text) if is_ours => Ok(text.trim_end().to_owned()),
        _ => Err(Error::invalid(
            format!("{}: Halocline did not write this", dir.join(name).display()),
            "find out who did; it is made again if it is missing",
        )),
    }
}

/// The nodes that have ever mounted the tier, according to the shared disk.
pub(crate) fn nodes(shared: &PrivateDir) -> Result<Vec<String>> {
    let names = shared.sub(NODES)?.names()?;
    let mut nodes: Vec<String> =
        names.iter().filter_map(|name| name.to_str()).map(str::to_owned).collect();
    nodes.retain(|node| check_node(node).is_ok());
    nodes.sort();
    Ok(nodes)
}

/// Records a node on the shared disk.
pub(crate) fn note(shared: &PrivateDir, node: &str) -> Result<()> {
    shared.sub(NODES)?.file(node, Use::Write).map(drop)
}

/// Records that a node mounts with its SSD. If that was a node's before, and the shared disk does not know the node, a
/// rebuild on this disk may not have read the SSD: what has no name there is not what somebody has removed, and a repair
/// names it.
pub(crate) fn note_mounted(shared: &PrivateDir, node: &str, was_claimed: bool) -> Result<()> {
    if was_claimed && !nodes(shared)?.iter().any(|known| known == node) {
        shared.sub(CHECK)?.sub(MISSING)?.overwrite(node, b"")?;
    }
    note(shared, node)
}

/// The name of the node whose SSD of this tier is at a path, if there is one.
pub(crate) fn node_of(path: &Path, tier: &str) -> Option<String> {
    of_ssd(path).filter(|found| found.tier == tier).map(|found| found.node)
}

/// The node and the tier whose SSD is at a path, if there is one.
pub(crate) fn of_ssd(path: &Path) -> Option<Whose> {
    node_and_tier(&whose(path).ok()?)
}

/// Whether the directory is the SSD of a tier of one node, which nobody has adopted.
pub(crate) fn is_of_one_node(ssd: &Path) -> bool {
    has_private(ssd, LABEL) && !is_of_a_node(ssd)
}

/// Whether the directory is the SSD of a node of whatever tier.
pub(crate) fn is_of_a_node(ssd: &Path) -> bool {
    has_private(ssd, NODE)
}

/// The id of the tier whose shared disk is at a path.
pub(crate) fn id_of_disk(shared: &Path) -> io::Result<String> {
    marked(shared, TIER)
}

/// Whether a shared disk has the id of its tier.
pub(crate) fn has_tier_id(shared: &Path) -> bool {
    has_private(shared, TIER)
}

/// Whether something of this name is among what a disk of a tier keeps beside its files.
fn has_private(disk: &Path, name: &str) -> bool {
    disk.join(PRIVATE).join(name).symlink_metadata().is_ok()
}

/// The first name in the directory that is not one of `ours`.
///
/// # Errors
/// If it cannot be listed.
pub(crate) fn foreign_name(dir: &Path, ours: &[&str]) -> Result<Option<PathBuf>> {
    for name in std::fs::read_dir(dir).map_err(Error::at(dir, "list"))? {
        let name = name.map_err(Error::at(dir, "list"))?.file_name();
        if !ours.iter().any(|own| name == *own) && name != "lost+found" {
            return Ok(Some(dir.join(name)));
        }
    }
    Ok(None)
}

/// Refuses the directory of an SSD that has files and is not that of a node of the tier. A check would not look at them,
/// so a rebuild would give them no names.
///
/// # Errors
/// [`Error::Invalid`] with the way to adopt it, if it is a tier of one node.
pub(crate) fn refuse_files_of_others(ssd: &Path, tier: &str) -> Result<()> {
    if ssd.symlink_metadata().is_err() || node_of(ssd, tier).is_some() {
        return Ok(());
    }
    // Also where no file is left on the SSD: what has no name yet waits in private directories.
    if adoption_mark::is_on(ssd) && !is_of_a_node(ssd) {
        let what = format!("{}: this tier is being made one that nodes share", ssd.display());
        return Err(Error::invalid(what, FINISH_ADOPTION));
    }
    let Some(path) = foreign_name(ssd, &[PRIVATE])? else { return Ok(()) };
    let what = |of: &str| format!("{}: it is {of}, and would get no name", path.display());
    Err(if is_of_one_node(ssd) {
        Error::invalid(what("in a tier of one node"), ADOPT)
    } else if whose(ssd).is_ok() {
        Error::invalid(
            what("on the SSD of another tier's node"),
            "give the right ROOT, and mount the shared disk of that tier at its hdd",
        )
    } else {
        let remedy = "move it away, or to the shared directory (hdd)";
        Error::invalid(what("on the SSD of no node"), remedy)
    })
}

fn node_and_tier(found: &str) -> Option<Whose> {
    let (node, tier) = found.split_once('\n')?;
    let is_name = check_node(node).is_ok();
    is_name.then(|| Whose { node: node.to_owned(), tier: tier.to_owned() })
}

/// Makes an SSD that of a node of a tier, or checks that it already is.
///
/// # Errors
/// [`Error::Invalid`] if it belongs to another node or tier.
pub(crate) fn claim(ssd: &Tree, node: &str, tier: &str) -> Result<()> {
    if is_claimed((&ssd.private, &ssd.path), node, tier)? {
        return Ok(());
    }
    ssd.private.replace(NODE, format!("{node}\n{tier}\n").as_bytes())
}

/// Whether an SSD, at a path, is that of a node of a tier already; `false` if it is nobody's.
///
/// # Errors
/// As [`claim`].
pub(crate) fn is_claimed(
    (own, path): (&PrivateDir, &Path),
    node: &str,
    tier: &str,
) -> Result<bool> {
    let Some(found) = own.read(NODE, BYTES_MAX)? else { return Ok(false) };
    let found = text(&found, own.path(), NODE)?;
    if found == format!("{node}\n{tier}") { Ok(true) } else { Err(other(path, &found, node)) }
}

fn other(path: &Path, found: &str, node: &str) -> Error {
    let whose = found.lines().next().unwrap_or_default().escape_default();
    let right = "give the right --node, --peers or ROOT";
    if whose.to_string() != node {
        return Error::Unreached {
            what: format!("{}: this SSD is that of node {whose}, not of {node}", path.display()),
            remedy: right.to_owned(),
        };
    }
    Error::Unreached {
        what: format!("{}: this SSD belongs to another tier's node {node}", path.display()),
        remedy: format!("{right}, and mount the shared disk of that tier at its hdd"),
    }
}

/// Where the SSD of a node is by a pattern.
pub(crate) fn of_node(pattern: &str, node: &str) -> PathBuf {
    PathBuf::from(pattern.replace(PATTERN, node))
}

/// Refuses a path of the SSDs of other nodes that is the same for all of them, or that others could replace while root
/// uses it.
///
/// # Errors
/// [`Error::Invalid`] tells which directory above belongs to others.
pub fn check_pattern(pattern: &str) -> Result<()> {
    let Some((fixed, _)) = pattern.split_once(PATTERN) else {
        return Err(Error::invalid(
            format!("--peers {pattern:?}: it is one path for the SSDs of all nodes"),
            "give one with {node} in it: --peers '/cluster/{node}/ssd'",
        ));
    };
    // What is above all of them. The rest is checked where a node's name is known.
    let (above, _) = fixed.rsplit_once('/').unwrap_or(("", fixed));
    check_above(&Path::new("/").join(above).join(PATTERN))
}

impl Peers {
    /// `pattern` has `{node}` in place of a node's name.
    ///
    /// # Errors
    /// As [`check_pattern`].
    pub(crate) fn new(pattern: Option<&str>, tier: String, steps: Steps) -> Result<Self> {
        pattern.map_or(Ok(()), check_pattern)?;
        Ok(Self { pattern: pattern.map(str::to_owned), tier, steps })
    }

    /// The SSD of a node.
    ///
    /// # Errors
    /// [`Error::Unreached`] if it is not reached, or belongs to another node or tier.
    pub(crate) fn tree(&self, node: &str) -> Result<Tree> {
        check_node(node)?;
        let Some(pattern) = &self.pattern else {
            return Err(Error::Unreached {
                what: format!("nothing says where the SSD of node {node} is reached here"),
                remedy: "give --peers '/cluster/{node}/ssd'".to_owned(),
            });
        };
        let path = of_node(pattern, node);
        let unreached = |why: String| Error::Unreached {
            what: format!("the SSD of node {node} is not reached at {}: {why}", path.display()),
            remedy: "start that node, or mount its SSD there; other nodes' files are not concerned"
                .to_owned(),
        };
        check_above(&path).map_err(|error| unreached(error.to_string()))?;
        // Checked before anything is made there: an empty directory where nothing is mounted is not its SSD.
        let found = whose(&path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) if path.is_dir() => Error::Unreached {
                what: format!("{} is there, but is not the SSD of node {node}", path.display()),
                remedy: "mount that SSD there, or give the right --peers; other nodes' files are not concerned".to_owned(),
            },
            _ => unreached(error.to_string()),
        })?;
        if found != format!("{node}\n{}", self.tier) {
            return Err(other(&path, &found, node));
        }
        Tree::open(&path, self.steps.clone()).map_err(|error| unreached(error.to_string()))
    }
}

/// Reads the node name and tier id recorded on an SSD.
fn whose(path: &Path) -> io::Result<String> {
    marked(path, NODE)
}

/// Reads a file that identifies a disk, and changes nothing.
fn marked(path: &Path, name: &str) -> io::Result<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let below = Path::new(PRIVATE).join(name);
    let file = std::fs::File::from(beneath::open(root.as_fd(), &below, flags, Mode::empty())?);
    let bytes = bounded::read_from(&file, BYTES_MAX)?;
    text(&bytes, path, name).map_err(|error| io::Error::other(error.to_string()))
}

/// What anyone who can write to an SSD, or to the shared disk, has put into the files that identify them: body of a fuzz
/// target (`crate::fuzzing`).
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::{BYTES_MAX, NODE, NODE_BYTES_MAX, Path, Whose};
    use super::{check_node, node_and_tier, other, text};

    /// The file of an SSD or of the shared disk: a node that is found can be a part of a path, and whatever is said of it is
    /// one line.
    pub(crate) fn identifying(bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(usize::try_from(BYTES_MAX).expect("small"))];
        let path = Path::new("/mnt/ssd");
        let found = match text(bytes, path, NODE) {
            Ok(found) => found,
            Err(error) => return assert!(!error.to_string().contains(char::is_control)),
        };
        assert!(!found.is_empty() || bytes.iter().all(u8::is_ascii_whitespace));
        for tier in ["", "00112233445566778899aabbccddeeff", "t"] {
            let Some(Whose { node, .. }) = node_and_tier(&found) else { continue };
            check_node(&node).expect("it was checked");
            assert!(node.len() <= NODE_BYTES_MAX && !node.contains(['/', '\0']) && node != "..");
            let again = Whose { node: node.clone(), tier: tier.to_owned() };
            assert_eq!(node_and_tier(&format!("{node}\n{tier}")), Some(again));
        }
        for node in ["n1", ""] {
            assert!(!other(path, &found, node).to_string().contains(char::is_control));
        }
    }

    /// Seeds of [`identifying`].
    #[cfg(test)]
    pub(crate) fn seeds() -> [(&'static str, Vec<u8>); 2] {
        let node = b"n1.rack-2_a\n00112233445566778899aabbccddeeff\n".to_vec();
        [("node", node), ("tier", b"00112233445566778899aabbccddeeff\n".to_vec())]
    }
}
