//! The messages that nodes exchange about their caches, and the checks that these must pass.

use halocline_api::config::{SERVERS_MAX, STRIPE_BYTES_MAX};
use halocline_cache::coherence::{BLOCK, Blocks, Cached};
use halocline_model::layout::{CacheGeometry, Layout, Placement};
use halocline_model::request::ByteRange;
use halocline_model::token::Session;
use serde::{Deserialize, Serialize};

/// The most bytes of a message: a whole region in single blocks.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A message between nodes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Message {
    /// Which bytes of a file are clean in your cache?
    Question { number: u64, from: Session, inode: u64, born_ns: i64, range: ByteRange },
    /// These; unless `is_all` is set, there may be more that I cannot state right now.
    Answer { number: u64, cached: CachedText, is_all: bool },
}

/// The form in which [`Cached`] is sent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CachedText {
    servers: u32,
    stripe: u64,
    groups: u32,
    blocks: Vec<BlocksText>,
}

/// The form in which [`Blocks`] are sent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlocksText {
    file: u64,
    layout: Layout,
    group: u16,
    first: u64,
    sums: Vec<u32>,
}

pub(super) fn read(bytes: &[u8]) -> Option<Message> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}

impl CachedText {
    pub(super) fn nothing() -> Self {
        Self { servers: 1, stripe: 1, groups: 0, blocks: Vec::new() }
    }

    pub(super) fn of(cached: &Cached) -> Self {
        let Cached { geometry, blocks } = cached;
        let text = |blocks: &Blocks| {
            let Blocks { file, placement: Placement { layout, group }, first, sums } = blocks;
            let (file, layout, group, first) = (*file, *layout, *group, *first);
            BlocksText { file, layout, group, first, sums: sums.clone() }
        };
        Self {
            servers: geometry.servers(),
            stripe: geometry.stripe(),
            groups: geometry.groups().unwrap_or(0),
            blocks: blocks.iter().map(text).collect(),
        }
    }

    /// The statement, if it has a form that a cache can have.
    pub(super) fn checked(self) -> Option<Cached> {
        let Self { servers, stripe, groups, blocks } = self;
        if !(1..=SERVERS_MAX).contains(&servers) || !(1..=STRIPE_BYTES_MAX).contains(&stripe) {
            return None;
        }
        let geometry = CacheGeometry::new(servers, stripe, groups);
        let mut end = 0;
        let mut all = Vec::with_capacity(blocks.len());
        for BlocksText { file, layout, group, first, sums } in blocks {
            let placement = Placement { layout, group };
            let blocks_end = first.checked_add(sums.len() as u64)?;
            let is_sound = first >= end
                && !sums.is_empty()
                && blocks_end <= u64::MAX / BLOCK
                && geometry.has(placement);
            if !is_sound {
                return None;
            }
            end = blocks_end;
            all.push(Blocks { file, placement, first, sums });
        }
        Some(Cached { geometry, blocks: all })
    }
}

/// Part of a fuzz target (`crate::fuzzing`): a message by someone who can reach the store. What is accepted is in
/// order, on servers that exist, and unchanged when it is encoded again.
#[cfg(any(test, fuzzing))]
pub(crate) fn hostile(bytes: &[u8]) {
    let Some(message) = read(bytes) else { return };
    let again = serde_json::to_vec(&message).expect("what was read is written");
    match message {
        Message::Question { range, .. } => assert!(range.start <= range.end),
        Message::Answer { cached, .. } => {
            let Some(cached) = cached.checked() else { return };
            for pair in cached.blocks.windows(2) {
                assert!(pair[0].first + pair[0].sums.len() as u64 <= pair[1].first);
            }
            assert!(cached.blocks.iter().all(|blocks| cached.geometry.has(blocks.placement)));
            let Some(Message::Answer { cached: text, .. }) = read(&again) else {
                panic!("an answer is read as something else when it is written again");
            };
            assert_eq!(text.checked(), Some(cached));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Messages as nodes write them.
    pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let range = ByteRange::new(4096, 1 << 20);
        let question =
            Message::Question { number: 7, from: Session(9), inode: 5, born_ns: 1, range };
        let placement = Placement { layout: Layout::OneDv, group: 1 };
        let blocks = |first| Blocks { file: 7, placement, first, sums: vec![1, u32::MAX] };
        let geometry = CacheGeometry::new(4, 65_536, 2);
        let cached = CachedText::of(&Cached { geometry, blocks: vec![blocks(0), blocks(40)] });
        let answer = Message::Answer { number: 7, cached, is_all: true };
        let text = |message| serde_json::to_vec(message).unwrap();
        vec![("question", text(&question)), ("answer", text(&answer))]
    }

    #[test]
    fn messages_that_cannot_be_right_are_not_believed() {
        let placement = Placement { layout: Layout::OneDh, group: 0 };
        let blocks =
            |first, count: usize| Blocks { file: 7, placement, first, sums: vec![1; count] };
        let geometry = CacheGeometry::new(4, 65_536, 2);
        let cached = Cached { geometry, blocks: vec![blocks(0, 3), blocks(3, 1)] };
        assert_eq!(CachedText::of(&cached).checked(), Some(cached.clone()));
        let with = |change: &dyn Fn(&mut CachedText)| {
            let mut text = CachedText::of(&cached);
            change(&mut text);
            text.checked()
        };
        assert_eq!(with(&|text| text.servers = 0), None);
        assert_eq!(with(&|text| text.servers = u32::MAX), None);
        assert_eq!(with(&|text| text.stripe = 0), None);
        assert_eq!(with(&|text| text.blocks[1].first = 2), None, "they overlap");
        assert_eq!(with(&|text| text.blocks[1].first = u64::MAX), None);
        assert_eq!(with(&|text| text.blocks[0].sums.clear()), None);
        assert_eq!(
            with(&|text| {
                text.blocks[0].layout = Layout::OneDv;
                text.blocks[0].group = 4;
            }),
            None,
            "a server that it has not"
        );
        assert!(read(b"{\"Answer\":{}}").is_none());
        assert!(read(&vec![b' '; MESSAGE_BYTES_MAX + 1]).is_none());
    }
}
