//! Scopes of options.

/// What an option is about; the headings of help and documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The cache as a whole.
    Cache,
    /// The mount and its programs.
    Mount,
    /// Servers and layouts.
    Volumes,
    /// Moving data in the background.
    Rebuilder,
    /// Whole files between SSD and HDD.
    Tier,
    /// Emulated devices.
    Emulation,
}

impl Scope {
    /// All scopes in the order of the documentation.
    pub const ALL: [Self; 6] =
        [Self::Cache, Self::Mount, Self::Volumes, Self::Rebuilder, Self::Tier, Self::Emulation];

    /// The heading.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Cache => "Cache",
            Self::Mount => "Mount",
            Self::Volumes => "Servers and layouts",
            Self::Rebuilder => "Rebuilder",
            Self::Tier => "File tier (mount --tier)",
            Self::Emulation => "Emulation",
        }
    }
}
