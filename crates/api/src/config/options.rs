//! The table of options: everything that a configuration file or a flag can set.
//!
//! A new option is one field of [`Config`], one row in the file of its scope below and one line in the default; help,
//! man pages and `docs/CONFIG.md` follow. Keys are written `with_underscores` in the file and `--with-hyphens` as
//! flags.

mod cache;
mod emulation;
mod mount;
mod rebuilder;
mod tier;
mod volumes;

use super::Config;
use super::scope::Scope;
use super::units::Kind;

/// One option. `set` gets the text that a flag would give, with the values of a repeated flag one per line; `get`
/// returns the text that sets the current value.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Key in the configuration file.
    pub key: &'static str,
    /// What a value looks like.
    pub kind: Kind,
    /// What the option is about.
    pub scope: Scope,
    /// What it does, in full sentences; the first is the short help.
    pub doc: &'static str,
    /// Writes a configuration's value.
    pub get: fn(&Config) -> String,
    /// Sets the value; `None` if the text is not a valid value.
    pub set: fn(&mut Config, &str) -> Option<()>,
}

impl OptionSpec {
    /// The flag, without its two hyphens.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The default as text.
    pub fn default_value(&self) -> String {
        (self.get)(&Config::default())
    }

    /// The option with this key.
    pub fn find(key: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.key == key)
    }

    /// Whether the option has an effect on a file tier (if `tier`), or on a cache in front of an origin.
    pub fn has_effect_on(&self, tier: bool) -> bool {
        /// Options of the other scopes that apply to any mount.
        const COMMON: [&str; 11] = [
            "policy",
            "pin",
            "exclude",
            "direct",
            "allow_other",
            "allow_suid",
            "allow_dev",
            "threads",
            "io_uring",
            "busy_poll",
            "single_thread",
        ];
        let own = self.scope == Scope::Tier;
        if tier { own || COMMON.contains(&self.key) } else { !own }
    }

    /// The first sentence of the documentation.
    pub fn short_doc(&self) -> &'static str {
        self.doc.split_inclusive(". ").next().unwrap_or(self.doc).trim_end()
    }
}

/// Makes one row of the table. `$get` and `$set` are closures over one value of the field.
macro_rules! option {
    ($key:literal, $scope:ident, $kind:expr, $get:expr, $set:expr, $doc:expr) => {
        OptionSpec { key: $key, kind: $kind, scope: Scope::$scope, doc: $doc, get: $get, set: $set }
    };
}
use option;

/// The rows of each scope, in the order of [`Scope::ALL`].
const SCOPES: [&[OptionSpec]; 6] =
    [cache::ROWS, mount::ROWS, volumes::ROWS, rebuilder::ROWS, tier::ROWS, emulation::ROWS];

/// All options, in the order of the documentation.
pub static OPTIONS: &[OptionSpec] = &all::<{ count() }>();

const fn count() -> usize {
    let (mut scope, mut count) = (0, 0);
    while scope < SCOPES.len() {
        count += SCOPES[scope].len();
        scope += 1;
    }
    count
}

const fn all<const COUNT: usize>() -> [OptionSpec; COUNT] {
    let mut all = [SCOPES[0][0]; COUNT];
    let (mut scope, mut at) = (0, 0);
    while scope < SCOPES.len() {
        let mut row = 0;
        while row < SCOPES[scope].len() {
            all[at] = SCOPES[scope][row];
            at += 1;
            row += 1;
        }
        scope += 1;
    }
    all
}
