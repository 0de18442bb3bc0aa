//! Which changes of names need room in the store. The others are made although a server's memory is used up: nobody
//! could read, close or remove anything otherwise.

use halocline_model::namespace::{Change, Entry, Opaque, Script};

use crate::names::coding::len_without_opens;

/// What a name costs besides its own bytes and those of its entry, at least.
const NAME_BYTES: usize = 64;

/// Whether a script may make the content of its shard larger, apart from notes of who has a file open: there is at most
/// one for each node and open file.
pub(super) fn needs_room(script: &Script) -> bool {
    match script {
        Script::Make(_) | Script::Fill(_) => true,
        Script::Alone(changes) | Script::Decide(_, _, changes) => grow(changes),
        Script::Prepare(_, change) => grow(std::slice::from_ref(change)),
        Script::Read(_)
        | Script::List(..)
        | Script::Settle(_)
        | Script::Finish(..)
        | Script::Finished(_)
        | Script::Forget(_)
        | Script::Discard(_)
        | Script::Touch => false,
    }
}

/// Whether there are more bytes after some changes than before. What is not understood may be anything.
fn grow(changes: &[Change]) -> bool {
    let sizes = changes.iter().map(sizes).collect::<Option<Vec<_>>>();
    let total = |sizes: Vec<(usize, usize)>| {
        sizes.iter().fold((0, 0), |(from, to), one| (from + one.0, to + one.1))
    };
    sizes.map(total).is_none_or(|(from, to)| to > from)
}

fn sizes(change: &Change) -> Option<(usize, usize)> {
    Some(match change {
        Change::Name(name, from, to) => {
            let size = |entry: &Option<Entry>| match entry {
                None => Some(0),
                Some(entry) => Some(NAME_BYTES + name.as_bytes().len() + entry_size(entry)?),
            };
            (size(from)?, size(to)?)
        }
        Change::Attributes { from, to, .. } => both(from, to)?,
        Change::Links(from, to) => both(&from.attributes, &to.attributes)?,
        Change::Parent(..) | Change::End(_) | Change::Split { .. } => (0, 0),
    })
}

fn both(from: &Opaque, to: &Opaque) -> Option<(usize, usize)> {
    Some((len_without_opens(from)?, len_without_opens(to)?))
}

fn entry_size(entry: &Entry) -> Option<usize> {
    match entry {
        Entry::Single(_, attributes) => len_without_opens(attributes),
        Entry::Linked(..) => Some(16),
        Entry::Directory(_) => Some(8),
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::namespace::{Buckets, InodeNumber, Links, Name};
    use halocline_model::token::Session;

    use super::*;
    use crate::names::attributes::{Attributes, Kind};
    use crate::names::coding::encode_attributes;

    fn encoded(change: impl Fn(&mut Attributes)) -> Opaque {
        let mut attributes = Attributes::new(Kind::File, 0o644, 7);
        change(&mut attributes);
        encode_attributes(&attributes).unwrap()
    }

    #[test]
    fn opens_closes_and_removals_need_no_room() {
        let single = |attributes: &Opaque| Some(Entry::Single(InodeNumber(9), attributes.clone()));
        let name = |from, to| Script::Alone(vec![Change::Name(Name::from("f"), from, to)]);
        let plain = encoded(|_| {});
        let open = encoded(|all| (1..9).for_each(|session| all.note_open(Session(session), true)));
        let larger = encoded(|all| drop(all.xattrs.insert(b"user.a".to_vec(), Vec::new())));
        for (from, to, needs) in [
            (None, single(&plain), true),
            (single(&plain), None, false),
            (single(&plain), single(&open), false),
            (single(&open), single(&plain), false),
            (single(&plain), single(&larger), true),
            (single(&larger), single(&open), false),
            (single(&plain), Some(Entry::Linked(InodeNumber(9), InodeNumber(1))), false),
            (single(&plain), single(&Opaque::from(vec![1])), true),
        ] {
            assert_eq!(needs_room(&name(from.clone(), to.clone())), needs, "{from:?} {to:?}");
        }
        let links = |count, attributes: &Opaque| Links { count, attributes: attributes.clone() };
        let links = |to: &Opaque| Change::Links(links(2, &plain), links(1, to));
        assert!(!needs_room(&Script::Alone(vec![links(&open)])));
        assert!(needs_room(&Script::Alone(vec![links(&larger)])));
        let set = |to: &Opaque| {
            let (from, to) = (plain.clone(), to.clone());
            Script::Alone(vec![Change::Attributes { from, to, sets_changed: false }])
        };
        assert!(!needs_room(&set(&plain)));
        assert!(needs_room(&set(&larger)));
        assert!(!needs_room(&Script::Alone(vec![Change::End(Buckets::default())])));
        let renamed = |to: &str| {
            let from = Change::Name(Name::from("old"), single(&plain), None);
            Script::Alone(vec![from, Change::Name(Name::from(to), None, single(&plain))])
        };
        assert!(!needs_room(&renamed("new")));
        assert!(needs_room(&renamed("longer")));
    }
}
