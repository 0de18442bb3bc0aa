//! The location of keys on a Redis Cluster: hash slots, the tags of the partitions, and the masters of slots as a
//! server reports them.

use redis::Value;

/// Slots of a Redis Cluster.
pub(super) const SLOTS: u16 = 16384;
/// Partitions of a store on a cluster. Each is in one slot, so that a script can compare a file's tokens and the
/// partition's epoch atomically; the slots are spread evenly, so that up to this many masters get their share.
pub(super) const PARTITIONS: usize = 64;
/// Limit of the ranges of slots in an answer: at worst there is one for each slot.
const RANGES_MAX: usize = SLOTS as usize;
/// The longest name of a host.
const HOST_MAX: usize = 255;

/// The slot of a hash tag: CRC16 with polynomial 0x1021 (XMODEM), as in the cluster's specification.
pub(super) fn slot_of(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Hash tags of the partitions of an origin: for each partition, the first number whose slot is in the partition's
/// share of all slots. All nodes compute the same tags.
pub(super) fn tags_of(origin: &str) -> Vec<String> {
    let share = SLOTS / u16::try_from(PARTITIONS).expect("fewer partitions than slots");
    let mut tags = vec![None; PARTITIONS];
    let mut missing = PARTITIONS;
    // Each number hits a share by chance, so some hundreds are needed.
    for number in 0_u32.. {
        let tag = format!("{origin}.{number}");
        let place = &mut tags[usize::from(slot_of(&tag) / share)];
        if place.is_none() {
            *place = Some(tag);
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags.into_iter().flatten().collect()
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Parses the form in redirections; an omitted host means the server that answered.
    pub(super) fn parse(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Self::new(host, port.parse().ok()?, asked)
    }

    fn new(host: &str, port: u16, asked: &Self) -> Option<Self> {
        let host = if host.is_empty() { &asked.host } else { host };
        let is_known = host != "?" && host.len() <= HOST_MAX && port != 0;
        is_known.then(|| Self { host: host.to_owned(), port })
    }
}

/// The masters of the slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SlotMap {
    /// First and last slot of each range, and its master; in order.
    ranges: Vec<(u16, u16, Address)>,
}

impl SlotMap {
    /// Parses an answer to `CLUSTER SLOTS`; `asked` is the address of the server that answered. `None` if it is
    /// anything else.
    pub(super) fn parse(answer: &Value, asked: &Address) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        if ranges.len() > RANGES_MAX {
            return None;
        }
        let mut found = Vec::new();
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice()
            else {
                return None;
            };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            if first > last || last >= SLOTS {
                return None;
            }
            let [host, Value::Int(port), ..] = master.as_slice() else { return None };
            let host = match host {
                Value::BulkString(host) => std::str::from_utf8(host).ok()?,
                Value::SimpleString(host) => host,
                Value::Nil => "",
                _ => return None,
            };
            // A master whose address that server does not know is omitted.
            if let Some(master) = Address::new(host, u16::try_from(*port).ok()?, asked) {
                found.push((first, last, master));
            }
        }
        found.sort_unstable();
        Some(Self { ranges: found })
    }

    /// The master of a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Address> {
        let after = self.ranges.partition_point(|(first, ..)| *first <= slot);
        let (_, last, owner) = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(owner)
    }

    /// Whether no slot is known.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// All masters.
    pub(super) fn masters(&self) -> Vec<Address> {
        let mut masters: Vec<_> = self.ranges.iter().map(|(.., master)| master.clone()).collect();
        masters.sort_unstable();
        masters.dedup();
        masters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Address {
        Address { host: "10.0.0.1".to_owned(), port: 6379 }
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        // From its appendix, and from `CLUSTER KEYSLOT`.
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12182);
        assert_eq!(slot_of(""), 0);
    }

    #[test]
    fn partitions_are_spread_evenly_and_have_slots_of_their_own() {
        for origin in ["test", "1a2b3c", "f"] {
            let tags = tags_of(origin);
            assert_eq!(tags, tags_of(origin));
            let slots: Vec<_> = tags.iter().map(|tag| usize::from(slot_of(tag))).collect();
            for (partition, slot) in slots.iter().enumerate() {
                assert_eq!(slot / (usize::from(SLOTS) / PARTITIONS), partition);
            }
        }
    }

    #[test]
    fn a_map_of_slots_is_read_and_nonsense_is_refused() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |first: i64, last: i64, host: Value, port: i64| {
            let master = Value::Array(vec![host, Value::Int(port), text("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), master])
        };
        let answer = Value::Array(vec![
            range(5001, 10000, text("10.0.0.2"), 7000),
            range(0, 5000, text(""), 6379),
            range(10001, 10001, Value::Nil, 6380),
            range(10002, 16383, text("?"), 6380),
        ]);
        let map = SlotMap::parse(&answer, &here()).unwrap();
        let other = Address { host: "10.0.0.2".to_owned(), port: 7000 };
        assert_eq!(map.owner(0), Some(&here()));
        assert_eq!(map.owner(5000), Some(&here()));
        assert_eq!(map.owner(5001), Some(&other));
        assert_eq!(map.owner(10001), Some(&Address { port: 6380, ..here() }));
        assert_eq!(map.owner(10002), None);
        assert_eq!(map.masters().len(), 3);
        for wrong in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(7, 6, text(""), 1)]),
            Value::Array(vec![range(0, 16384, text(""), 1)]),
            Value::Array(vec![range(-1, 0, text(""), 1)]),
            Value::Array(vec![range(0, 1, text(""), 65536)]),
            Value::Array(vec![range(0, 1, Value::Int(3), 1)]),
        ] {
            assert_eq!(SlotMap::parse(&wrong, &here()), None, "{wrong:?}");
        }
        assert_eq!(Address::parse(":7001", &here()), Some(Address { port: 7001, ..here() }));
        assert_eq!(Address::parse("::1:7001", &here()).unwrap().host, "::1");
        assert_eq!(Address::parse("?:0", &here()), None);
    }
}
