//! A close that is retried.

use std::io::Write;

use halocline_model::token::Session;

use super::*;
use crate::closes::closing;
use crate::repair::tests::{Node, World};

/// A node read the file's size, and before it noted its close another node wrote more and noted that.
#[test]
fn a_close_that_is_tried_again_notes_the_size_of_then() {
    let world = World::new();
    let (one, two) = (world.node("n1"), world.node_until("n2", 2, i64::MAX));
    let number = InodeNumber(one.create(1, "f", "short").unwrap());
    let at = Node::entry(1, "f");
    let open = |node: &Node, own: Session| {
        let open = |attributes: &mut Attributes| {
            attributes.note_open(own, true);
            Ok(())
        };
        node.names.attributes().update_of((&at, number), open).unwrap().attributes
    };
    let known = open(&one, Session(1));
    let place = place_of(&known).unwrap();
    let file =
        File::from(two.places.open_file(place, number.0, OFlags::APPEND | OFlags::RDWR).unwrap());
    let tries = std::cell::Cell::new(0);
    let close = closing(Session(1), Some(&file));
    let close = |attributes: &mut Attributes| {
        close(attributes)?;
        if tries.replace(tries.get() + 1) == 0 {
            open(&two, Session(2));
            (&file).write_all(b", and longer").unwrap();
            two.names
                .attributes()
                .update_of((&at, number), closing(Session(2), Some(&file)))
                .unwrap();
        }
        Ok(())
    };
    one.names.attributes().update_known((&at, number), &known, close).unwrap();
    assert_eq!(tries.get(), 2);
    let noted = two.names.lookup(&at).unwrap().attributes;
    assert_eq!(noted.size, "short, and longer".len() as u64);
    assert_eq!(noted.opens, []);
}
