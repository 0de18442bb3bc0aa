//! Answers of a server of tokens: bodies of fuzz targets (`crate::fuzzing`).

use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Answer, Demand, Epoch, Held, Members, Mode, Session, Tokens};

use super::cluster::partition_states::PartitionStates;
use super::slots::{Address, SlotMap};
use super::{FORGOTTEN, file_of, named, reading, roll_of};
use crate::store::coding;

/// The value of a file: it is refused, or it is tokens on which any request can be computed, with a result that the
/// store accepts again.
pub fn tokens(bytes: &[u8]) {
    let version = match serde_json::from_slice::<Tokens>(bytes) {
        Ok(tokens) => tokens.version.to_string(),
        Err(_) => "3".to_owned(),
    };
    let Ok(reading) = reading(("7".to_owned(), version, bytes.to_vec())) else { return };
    let tokens = reading.tokens;
    assert!(tokens.is_sound());
    let again = coding::encode(&tokens).expect("no longer than it was");
    assert_eq!(coding::tokens(&again, tokens.version).expect("our own"), tokens);
    let mut members = Members::default();
    for held in tokens.all() {
        members.join(held.session, tokens.epoch());
    }
    let (session, epoch) = (Session(1), tokens.epoch());
    members.join(session, epoch);
    let whole = ByteRange::new(0, i64::MAX.cast_unsigned());
    for (direction, alone) in
        [(Direction::Read, false), (Direction::Write, false), (Direction::Write, true)]
    {
        for required in [ByteRange::new(0, 4096), ByteRange::new(4096, 1 << 30), whole] {
            let mut now = tokens.clone();
            let demand = Demand { direction, required, desired: whole, alone };
            let _ = now.is_contended(required, 5);
            match now.ask(session, demand, (epoch, &members), 5) {
                Answer::Granted(held) => {
                    let has = held.iter().map(|held| held.range.intersect(required));
                    let bytes: u64 = has.flatten().map(ByteRange::len).sum();
                    assert_eq!(bytes, required.len(), "all that it requires is granted");
                }
                Answer::Waits(others) => assert!(others.iter().all(|held| held.session != session)),
                Answer::Lost(held) | Answer::Unreadable(held) => assert_ne!(held.session, session),
            }
            let _ = (now.wanted_from(Session(2)), now.waiters().count());
            assert!(now.is_sound(), "{now:?}");
            now.give_up(session, required, Some(Mode::Shared), epoch);
            now.assert(session, &[Held { session, mode: Mode::Shared, range: required }], Epoch(9));
            assert!(now.is_sound(), "{now:?}");
        }
    }
}

/// An answer of a script, as it arrives over the connection, and the key of a file.
pub fn answer(bytes: &[u8]) {
    if let Ok(name) = std::str::from_utf8(bytes)
        && let Some(file) = file_of(name)
    {
        assert_eq!(file_of(&named(file)), Some(file));
    }
    let Ok(value) = redis::parse_redis_value(bytes) else { return };
    if let Ok(answer) = redis::from_redis_value::<(String, String, Vec<u8>)>(value.clone())
        && let Ok(reading) = reading(answer)
    {
        assert!(reading.tokens.is_sound());
    }
    let asked = Address { host: "10.0.0.1".to_owned(), port: 6379 };
    if let Some(map) = SlotMap::parse(&value, &asked) {
        let owners = (0..u16::MAX).filter_map(|slot| map.owner(slot));
        assert!(owners.count() <= 16384, "no slot beyond the last one");
    }
    if let Ok(answer) = redis::from_redis_value(value)
        && let Ok((roll, partitions)) = roll_of(answer, FORGOTTEN)
    {
        let _ = roll.members.sessions().count();
        if let Ok(partitions) = PartitionStates::parse(&partitions) {
            assert_eq!(PartitionStates::parse(&partitions.to_string()), Ok(partitions));
        }
    }
}

/// Seeds of [`tokens`] and of [`answer`].
#[cfg(test)]
pub(crate) mod seeds {
    use super::*;

    fn made() -> (Tokens, Members) {
        let (mut tokens, mut members, epoch) =
            (Tokens::new(Epoch(7)), Members::default(), Epoch(7));
        for session in [Session(1), Session(2), Session(3)] {
            members.join(session, epoch);
        }
        members.confirm(epoch, &[Session(1), Session(2), Session(3)]).unwrap();
        for (session, direction, start) in [
            (1, Direction::Write, 0),
            (2, Direction::Read, 1 << 20),
            (3, Direction::Read, 1 << 20),
            (3, Direction::Write, 0),
        ] {
            let required = ByteRange::at(start, 4096);
            let demand = Demand { direction, required, desired: required, alone: false };
            tokens.ask(Session(session), demand, (epoch, &members), 1000);
        }
        (tokens, members)
    }

    pub(crate) fn tokens() -> Vec<(&'static str, Vec<u8>)> {
        let empty = Tokens::new(Epoch(7));
        vec![
            ("three-sessions", coding::encode(&made().0).unwrap()),
            ("empty", coding::encode(&empty).unwrap()),
        ]
    }

    fn bulk(bytes: &[u8]) -> Vec<u8> {
        [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
    }

    pub(crate) fn answers() -> Vec<(&'static str, Vec<u8>)> {
        let (tokens, members) = made();
        let version = tokens.version.to_string();
        let (tokens, members) =
            (coding::encode(&tokens).unwrap(), coding::encode(&members).unwrap());
        let value =
            [b"*3\r\n", &bulk(b"7")[..], &bulk(version.as_bytes()), &bulk(&tokens)].concat();
        let leases = [b"*2\r\n", &bulk(b"1")[..], &bulk(b"12000")].concat();
        let roll =
            [b"*7\r\n", &bulk(b"7")[..], &bulk(b"3"), &bulk(&members), b":1000\r\n", &leases];
        let partitions = PartitionStates::default().to_string();
        let roll = [roll.concat(), bulk(b"500"), bulk(partitions.as_bytes())].concat();
        let master = [b"*2\r\n", &bulk(b"10.0.0.1")[..], b":7001\r\n"].concat();
        let slots = [b"*1\r\n*3\r\n:0\r\n:16383\r\n", &master[..]].concat();
        let name = b"1f:ffffffffffffffff".to_vec();
        vec![("value", value), ("roll", roll), ("slots", slots), ("name", name)]
    }
}
