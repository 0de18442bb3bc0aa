//! Whether a file of another node's SSD is worth its way to the one on which it is used.
//!
//! There is one copy: it is moved, and the node that has it may use it, too. Reading it where it is costs one transfer
//! a use, and moving it about two: it is read there, and written here, and it may be moved back. So it is moved once the
//! uses that were seen here, and those that are announced, cost as much as the move: renting before buying, which never
//! costs more than twice what the best choice would have cost, and does not let two nodes pull a file to and fro with
//! every use.

use std::collections::HashMap;

use super::FileId;

/// So many uses cost as much as the move.
const USES: u64 = 2;
/// The most files that are remembered.
const REMEMBERED_MAX: usize = 1 << 16;

/// The uses of files on other nodes' SSDs.
#[derive(Debug, Default)]
pub struct Transfers {
    used: HashMap<FileId, u64>,
}

impl Transfers {
    /// A file that is on another node's SSD is used here once more, and as many more uses are announced; whether these
    /// are worth the move.
    pub fn used(&mut self, file: FileId, announced: u64) -> bool {
        if self.used.len() >= REMEMBERED_MAX && !self.used.contains_key(&file) {
            self.used.clear();
        }
        let used = self.used.entry(file).or_default();
        *used = used.saturating_add(1);
        used.saturating_add(announced) >= USES
    }

    /// A file was moved, or exists no more: its next uses are its first ones.
    pub fn forget(&mut self, file: FileId) {
        self.used.remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_moved_once_its_uses_have_cost_as_much() {
        let mut transfers = Transfers::default();
        assert!(!transfers.used(1, 0) && !transfers.used(2, 0));
        assert!(transfers.used(1, 0));
        assert!(transfers.used(3, 1), "announced");
        transfers.forget(1);
        assert!(!transfers.used(1, 0));
        (10..10 + 2 * REMEMBERED_MAX as u64).for_each(|file| {
            let _ = transfers.used(file, 0);
        });
        assert!(transfers.used.len() <= REMEMBERED_MAX);
    }

    /// Two nodes that use a file by turns: the moves cost no more than the uses in place between them.
    #[test]
    fn two_nodes_do_not_pull_a_file_to_and_fro_with_every_use() {
        let mut nodes = [Transfers::default(), Transfers::default()];
        let (mut at, mut moves, mut in_place) = (0, 0, 0);
        for turn in 0..1000 {
            let node = turn % 2;
            if node == at {
                continue;
            }
            if nodes[node].used(7, 0) {
                (at, moves) = (node, moves + 1);
                nodes[node].forget(7);
            } else {
                in_place += 1;
            }
        }
        assert!(moves <= in_place, "{moves} {in_place}");
    }
}
