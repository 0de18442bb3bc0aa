//! Where files lie on the disks: a matter of chance of which nobody knows, so that layouts and uses are judged by several
//! placements (docs/decisions/0101-a-gain-in-several-placements.md).

use halocline_model::emulated::EmulatedDevice;

use crate::servers::{Profile, ServerSet};

/// Seeds of the placements by which layouts and uses are judged. A search replays in the first one alone; the others say
/// whether what it found suits that one alone.
pub const PLACEMENTS: [u64; 5] = [0, 1, 2, 3, 4];

/// What is added to seeds. With it, the first files of a trace are about as far apart with seed 0 as files are on average,
/// and each two of them are near each other with some of [`PLACEMENTS`] and far apart with others: of 400 million numbers
/// the one that does that best for up to eight files.
const TYPICAL: u64 = 7_578_206;

/// The inode number of file `number`, which determines its position on each disk.
#[must_use]
pub fn inode_of(seed: u64, number: u32) -> u64 {
    seed.wrapping_add(TYPICAL).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(number)
}

/// Seeds of the placements by which something is judged on `servers` with so many files: one where nothing depends on it,
/// because there is one file, or no disk of which it is known how far its head goes.
#[must_use]
pub fn placements(servers: &ServerSet, files: usize) -> &'static [u64] {
    let is_disk = |profile| matches!(profile, Profile::Emulated(EmulatedDevice::Hdd(_)));
    let has_disks = servers.servers().iter().any(|server| is_disk(server.profile));
    if has_disks && files > 1 { &PLACEMENTS } else { &PLACEMENTS[..1] }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use halocline_trace::{Op, Request};

    use super::*;
    use crate::{FileLayout, Options, replay};

    fn servers(profile: &str) -> ServerSet {
        let text =
            format!("[[server]]\nname = \"a\"\nprofile = \"{profile}\"\ncapacity = \"1T\"\n");
        ServerSet::parse(&text, Path::new("servers.toml")).expect("servers")
    }

    /// Seconds of a process that goes from each of so many files to each other one.
    fn seconds(set: &ServerSet, files: u32, seed: u64) -> f64 {
        let each = (0..files).flat_map(|one| (0..one).flat_map(move |other| [one, other]));
        let request = |(start_ns, file)| Request {
            start_ns,
            duration_ns: None,
            process: 0,
            file,
            op: Op::Read,
            offset: 1 << 20,
            length: 4096,
        };
        let layout = FileLayout::uniform(vec![1 << 20]).expect("a layout");
        let options = Options { seed, ..Options::default() };
        let done = replay((0..).zip(each).map(request), set, |_| &layout, &options);
        done.expect("a replay").seconds
    }

    /// The share of other placements in which they take less.
    fn rank(set: &ServerSet, files: u32, seed: u64) -> f64 {
        let it = seconds(set, files, seed);
        let others = (1000..1500).filter(|other| seconds(set, files, *other) < it).count();
        f64::from(u32::try_from(others).expect("few")) / 500.0
    }

    /// Regression: with the usual seed the first two files of a trace were farther apart than in 88 of 100 placements, and a plan
    /// was praised for keeping them apart.
    #[test]
    fn the_usual_placement_is_a_usual_one() {
        for set in [servers("hdd"), large()] {
            for files in 2..=8 {
                let rank = rank(&set, files, PLACEMENTS[0]);
                assert!((0.25..=0.75).contains(&rank), "{files} files: {rank}");
            }
        }
    }

    /// A disk of another capacity.
    fn large() -> ServerSet {
        let text = "[profile.large]\nkind = \"hdd\"\ncapacity_gb = 4000.0\n[[server]]\nname = \"a\"\nprofile = \"large\"\ncapacity = \"4T\"\n";
        ServerSet::parse(text, Path::new("servers.toml")).expect("servers")
    }

    #[test]
    fn with_the_others_few_files_are_near_each_other_and_far_apart() {
        let set = servers("hdd");
        for files in 2..=4 {
            let mut ranks = PLACEMENTS.map(|seed| rank(&set, files, seed));
            ranks.sort_by(f64::total_cmp);
            let (least, middle, most) =
                (ranks[0], ranks[PLACEMENTS.len() / 2], ranks[PLACEMENTS.len() - 1]);
            assert!(
                least < 0.25 && most > 0.75 && (0.3..0.7).contains(&middle),
                "{files}: {ranks:?}"
            );
        }
    }

    #[test]
    fn where_nothing_depends_on_the_placement_there_is_one() {
        assert_eq!(placements(&servers("hdd"), 2).len(), PLACEMENTS.len());
        assert_eq!(placements(&servers("hdd"), 1), [0]);
        assert_eq!(placements(&servers("ssd"), 2), [0]);
        assert_eq!(placements(&servers("hdd-7200"), 2), [0], "calibrated");
    }
}
