//! A request as the kernel puts it into a buffer: body of a fuzz target (`crate::fuzzing`).

use zerocopy::FromBytes;

use super::message::Message;
use super::wire::{
    CreateIn, FallocateIn, FsyncIn, GetAttrIn, GetXattrIn, LinkIn, LockIn, MkdirIn, MknodIn,
    OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, RequestHeader, SeekIn, SetAttrIn, SetXattrIn,
    WriteIn,
};

/// Headers followed by the payload; names are terminated, and each operation's fields can be read.
pub fn ring_request(bytes: &[u8]) {
    let mut buffer = vec![0; size_of::<RequestHeader>()];
    let head = bytes.len().min(buffer.len());
    buffer[..head].copy_from_slice(&bytes[..head]);
    let header = RequestHeader::read_from_bytes(&buffer).expect("it has room");
    let room = &bytes[head..];
    // The kernel reports no more bytes than it put there.
    let payload = (header.entry.payload_bytes as usize).min(room.len());
    let message = Message { header: header.input(), fields: &header.fields, payload };
    if let Ok(name) = message.name(room) {
        assert!(name.len() < payload && !name.as_encoded_bytes().contains(&0));
    }
    if let Ok((first, second)) = message.two_names(room) {
        assert!(first.len() + second.len() + 2 <= payload);
        assert_eq!(message.name(room).ok(), Some(first));
    }
    let _ = (message.caller(), message.maker(0));
    macro_rules! each {
        ($($fields:ty)*) => { $(
            let fields: &$fields = message.fields().unwrap_or_else(|_| panic!("its fields have room"));
            let _ = format!("{fields:?}");
        )* };
    }
    each!(CreateIn FallocateIn FsyncIn GetAttrIn GetXattrIn LinkIn LockIn MkdirIn MknodIn OpenIn ReadIn ReleaseIn Rename2In);
    each!(RenameIn SeekIn SetAttrIn SetXattrIn WriteIn);
    let short = Message { fields: &header.fields[..4], ..message };
    assert!(short.fields::<WriteIn>().is_err());
}

/// Seeds of [`ring_request`].
#[cfg(test)]
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use super::wire::{InHeader, RingEntry};
    use zerocopy::IntoBytes;

    let names = b"from\0to\0";
    let header = InHeader {
        len: 0,
        opcode: 45,
        unique: 7,
        nodeid: 1,
        uid: 1000,
        gid: 1000,
        pid: 12,
        padding: 0,
    };
    let mut in_out = [0; 128];
    header.write_to_prefix(&mut in_out).unwrap();
    let mut fields = [0; 128];
    Rename2In { new_parent: 1, flags: 1, padding: 0 }.write_to_prefix(&mut fields).unwrap();
    let entry = RingEntry {
        flags: 0,
        commit_id: 3,
        payload_bytes: u32::try_from(names.len()).unwrap(),
        padding: 0,
        reserved: 0,
    };
    let request = RequestHeader { in_out, fields, entry };
    vec![("rename", [request.as_bytes(), names].concat())]
}
