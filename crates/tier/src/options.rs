//! What a file tier consists of and how it behaves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use halocline_api::config::{CacheSize, Copies};
use halocline_api::control::tier::PRIVATE;
use halocline_api::file_tier::{LABEL, Label};
use halocline_meta::identity::{CacheIdentity, identity_of};
use halocline_os::bounded;
use halocline_os::error::{Error, Result};
use halocline_os::private::{self, PrivateDir};

/// How a file tier behaves.
#[derive(Debug, Clone)]
pub struct TierOptions {
    /// The most bytes of files on the SSD.
    pub limit: CacheSize,
    /// Share of the limit, in percent, above which files are demoted in the background.
    pub high: f64,
    /// Share of the limit, in percent, down to which they are demoted.
    pub low: f64,
    /// Which files are kept: a row of the model's table of tier policies.
    pub policy: String,
    /// Whether the kernel serves files on the SSD by itself where it can.
    pub passthrough: bool,
    /// Whether it also serves handles that may write, which may make files grow unseen.
    pub passthrough_writes: bool,
    /// Globs of files that stay on the SSD.
    pub pin: Vec<String>,
    /// Globs of files that are never brought to the SSD.
    pub exclude: Vec<String>,
    /// Which copies of files on the SSD are kept below.
    pub copies: Copies,
    /// How long a file must have been unwritten before it is archived.
    pub archive_after: Duration,
}

impl Default for TierOptions {
    fn default() -> Self {
        Self {
            limit: CacheSize::Percent(90.0),
            high: 95.0,
            low: 90.0,
            policy: halocline_model::tier::POLICIES[0].name.to_owned(),
            passthrough: true,
            passthrough_writes: false,
            pin: Vec::new(),
            exclude: Vec::new(),
            copies: Copies::None,
            archive_after: Duration::from_secs(30),
        }
    }
}

/// The directories of a file tier, fastest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierSet {
    /// Absolute paths without symbolic links.
    pub roots: Vec<PathBuf>,
}

/// Whether a path leads nowhere.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl TierSet {
    /// The directories `names` below `root`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one is missing or is inside another, or if there are fewer than two.
    pub fn below(root: &Path, names: &[&str]) -> Result<Self> {
        let mut roots: Vec<PathBuf> = Vec::new();
        for name in names {
            let path = root.join(name);
            let real = fs::canonicalize(&path).and_then(|real| Ok((fs::metadata(&real)?, real)));
            let real = match real {
                Ok((found, real)) if found.is_dir() => real,
                // Its server may have ended, or its device have failed: it is not missing.
                Err(error) if !is_missing(&error) => {
                    return Err(Error::at(&path, "look at")(error));
                }
                _ => {
                    return Err(Error::invalid(
                        format!("{}: the tier {name:?} is not a directory", path.display()),
                        format!(
                            "create it or mount its device there; {} holds one directory for each tier",
                            root.display()
                        ),
                    ));
                }
            };
            if let Some(other) = roots.iter().find(|o| o.starts_with(&real) || real.starts_with(o))
            {
                return Err(Error::invalid(
                    format!("tiers {} and {} overlap", other.display(), real.display()),
                    "give each tier a directory of its own",
                ));
            }
            roots.push(real);
        }
        if roots.len() < 2 {
            return Err(Error::invalid("a file tier needs two directories", "name ssd and hdd"));
        }
        Ok(Self { roots })
    }

    /// The names of the tiers below `root` in their order, as given to the first mount; `None` if there was no mount,
    /// or if they do not form one complete set.
    pub fn names_below(root: &Path) -> Option<Vec<String>> {
        let name_and_label = |entry: fs::DirEntry| {
            let label = Self::read_label(&entry.path()).ok()??;
            Some((label, entry.file_name().into_string().ok()?))
        };
        let entries = fs::read_dir(root).ok()?;
        let mut found: Vec<_> = entries.filter_map(|entry| name_and_label(entry.ok()?)).collect();
        found.sort_by_key(|(label, _)| label.tier);
        let set = &found.first()?.0.set;
        let is_whole = found.len() > 1
            && found
                .iter()
                .enumerate()
                .all(|(at, (label, _))| label.tier == at && label.set == *set);
        is_whole.then(|| found.into_iter().map(|(_, name)| name).collect())
    }

    fn label_path(root: &Path) -> PathBuf {
        root.join(PRIVATE).join(LABEL)
    }

    fn read_label(root: &Path) -> Result<Option<Label>> {
        let path = Self::label_path(root);
        let Some(json) = private::read(&root.join(PRIVATE), LABEL)? else { return Ok(None) };
        serde_json::from_slice(&json).map(Some).map_err(|error| {
            let what = format!("{}: {error}", path.display());
            Error::invalid(what, "restore the file, or remove it if no mount needs it")
        })
    }

    fn labels(&self) -> Result<Vec<Option<Label>>> {
        self.roots.iter().map(|root| Self::read_label(root)).collect()
    }

    /// Whether no tier has been mounted before.
    pub(super) fn is_new(&self) -> Result<bool> {
        Ok(self.labels()?.iter().all(Option::is_none))
    }

    /// Refuses tiers that do not belong together: a device that is not mounted looks like an empty tier, and adopting
    /// that would hide its files. The first tier is labelled last: as long as it contains only the set's identity, the
    /// first mount was interrupted.
    pub(super) fn check(&self) -> Result<()> {
        let labels = self.labels()?;
        let known = labels.iter().flatten().next().map(|label| label.set.clone());
        let Some(known) = known else { return Ok(()) };
        self.check_whole(&labels)?;
        let labelled = labels[0].is_some();
        let own = if labelled { None } else { identity_of(&self.roots[0].join(PRIVATE))? };
        let interrupted = own.is_some_and(|own| own.cache_id == known);
        for (tier, (root, label)) in self.roots.iter().zip(&labels).enumerate() {
            let root = root.display();
            let (what, remedy) = match label {
                Some(label) if label.set == known && label.tier == tier => continue,
                None if interrupted => continue,
                Some(label) if label.set == known => (
                    format!("{root} is tier {} of its set, not {tier}", label.tier),
                    "name the tiers in the order of the first mount".to_owned(),
                ),
                Some(_) => (
                    format!("{root} belongs to another set of tiers"),
                    format!(
                        "mount it with its own tiers, or remove {root}/{PRIVATE}/{LABEL} to \
                             adopt its files"
                    ),
                ),
                None => (
                    format!("{root} has no label, the other tiers have one"),
                    format!(
                        "mount its device first; if it is lost, remove {PRIVATE}/{LABEL} in the \
                             other tiers: their files are then adopted (files that a tier holds \
                             are ordinary files there)"
                    ),
                ),
            };
            return Err(Error::invalid(what, remedy));
        }
        Ok(())
    }

    /// Refuses a set if not all of its tiers are named, because links lead to the missing ones.
    fn check_whole(&self, labels: &[Option<Label>]) -> Result<()> {
        let roots = labels.iter().flatten().flat_map(|label| &label.roots);
        let Some((path, tier)) = roots.into_iter().find(|(_, tier)| *tier >= self.roots.len())
        else {
            return Ok(());
        };
        Err(Error::invalid(
            format!("{} is tier {tier} of the set, and is not named", path.display()),
            "name all its tiers in the order of the first mount: --tiers NAME for each of them",
        ))
    }

    /// The roots that the tiers had at earlier mounts.
    pub(super) fn former(&self) -> Result<Vec<(PathBuf, usize)>> {
        let label = self.labels()?.into_iter().flatten().next();
        Ok(label.map_or_else(Vec::new, |label| label.roots))
    }

    /// Labels the tiers and returns the roots of earlier mounts. The caller holds the set's lock.
    pub(super) fn write_labels(&self, identity: &CacheIdentity) -> Result<Vec<(PathBuf, usize)>> {
        let mut former = self.former()?;
        let now = self.roots.iter().cloned().enumerate().skip(1);
        let mut all = former.clone();
        for (tier, root) in now {
            former.retain(|(path, _)| *path != root);
            if !all.contains(&(root.clone(), tier)) {
                all.retain(|(path, _)| *path != root);
                all.push((root, tier));
            }
        }
        for (tier, root) in self.roots.iter().enumerate().rev() {
            let roots = if tier == 0 { all.clone() } else { Vec::new() };
            let label = Label { set: identity.cache_id.clone(), tier, roots };
            let json = serde_json::to_vec_pretty(&label).expect("plain data");
            let dir = PrivateDir::make(&root.join(PRIVATE))?;
            let present = dir.read(LABEL, bounded::SMALL_FILE_BYTES_MAX)?;
            if present.is_none_or(|present| present != json) {
                dir.replace(LABEL, &json)?;
            }
        }
        Ok(former)
    }
}
