//! What a check tells, and what a repair has done.

/// What was found, and what was or would be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether the store's names are not used: it is empty, may have forgotten some, or a rebuild was not finished.
    pub is_rebuilt: bool,
    /// How many directories, files and other things get names.
    pub named: [u64; 3],
    /// Nodes whose SSDs are not reached, and why; their files keep their names in a sound store.
    pub missing: Vec<(String, String)>,
    /// Nodes whose SSDs were read.
    pub read: Vec<String>,
    /// Files in the store on nodes that are not reached.
    pub unreached_files: u64,
    /// Files in the store whose bytes are not where they should be.
    pub lost: Vec<String>,
    /// Directories, links, pipes and devices of the store that are missing or misplaced on the shared disk, or names of one
    /// there that are names of two in the store, or the reverse; they are made or renamed.
    pub remade: Vec<String>,
    /// Copies left by moves, second places left by renames, and further paths of files whose names are listed; they are
    /// removed.
    pub left_copies: Vec<String>,
    /// Directories on the shared disk that the store does not know, with nothing left in them; they are removed.
    pub left_directories: Vec<String>,
    /// Files whose recorded names differ from the store, and directories on SSDs without their numbers in the store; both are
    /// recorded anew.
    pub relisted: Vec<String>,
    /// Files and directories whose attributes in the store are not those of the disks, and how they differ; the store gets
    /// those of the disks.
    pub attributes: Vec<String>,
    /// Files of which the disk has an older version than the store knows, and how they differ; the newer one is gone, and the store
    /// gets the older one.
    pub older: Vec<String>,
    /// Files and links without a name; they are set aside.
    pub set_aside: Vec<String>,
    /// Files and directories that have got another name than the disks say, because something else has that.
    pub conflicts: Vec<String>,
    /// Names of files, and attributes of files and directories, that a rebuild does not give back. In a sound store they are
    /// right, and stay.
    pub not_rebuilt: Vec<String>,
    /// Inconsistent or unreadable things, which are left alone.
    pub told: Vec<String>,
    /// Whether the store may have lost its last changes, and says that it has not.
    pub may_be_older: bool,
    /// What nodes that live have yet to complete. It is no difference.
    pub under_way: u64,
    /// What differed when a check looked, and no longer, or otherwise, when it looked again: nodes were changing it.
    pub changed_meanwhile: u64,
}

impl Report {
    /// Whether there is nothing to do and nothing to say.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let Self { missing, read, not_rebuilt, under_way, changed_meanwhile, .. } = self;
        let clean = Self {
            missing: missing.clone(),
            read: read.clone(),
            not_rebuilt: not_rebuilt.clone(),
            under_way: *under_way,
            changed_meanwhile: *changed_meanwhile,
            ..Self::default()
        };
        *self == clean && missing.is_empty()
    }
}
