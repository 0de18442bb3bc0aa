//! A striped volume against a plain array of bytes: the same random operations on both, contents
//! and length compared after each.

use std::sync::Arc;

use halocline_model::file_layout::FileLayout;
use halocline_model::request::ByteRange;
use halocline_model::striping::Striping;
use halocline_storage::device::Device;
use halocline_storage::volume::{Distribution, Volume, VolumeFile};
use proptest::prelude::*;

const STRIPE: u64 = 48;
const END: u64 = 1500;

#[derive(Debug, Clone)]
enum Op {
    Write { offset: u64, len: u64, byte: u8 },
    Read { offset: u64, len: u64 },
    Punch { offset: u64, len: u64 },
    Truncate { len: u64 },
    Reopen,
    Sync,
}

fn op() -> impl Strategy<Value = Op> {
    let span = || (0..END, 0..400_u64);
    prop_oneof![
        6 => (span(), 1..=255_u8)
            .prop_map(|((offset, len), byte)| Op::Write { offset, len, byte }),
        6 => span().prop_map(|(offset, len)| Op::Read { offset, len }),
        2 => span().prop_map(|(offset, len)| Op::Punch { offset, len }),
        2 => (0..END).prop_map(|len| Op::Truncate { len }),
        1 => Just(Op::Reopen),
        1 => Just(Op::Sync),
    ]
}

/// The array's answer to a read: as long as the file has bytes there.
fn expected(model: &[u8], offset: u64, len: u64) -> &[u8] {
    let start = index(offset).min(model.len());
    &model[start..index(offset + len).min(model.len()).max(start)]
}

fn write(model: &mut Vec<u8>, offset: u64, len: u64, byte: u8) {
    if len > 0 {
        let range = index(offset)..index(offset + len);
        model.resize(model.len().max(range.end), 0);
        model[range].fill(byte);
    }
}

fn index(position: u64) -> usize {
    usize::try_from(position).unwrap()
}

fn check(distribution: &Distribution, ops: &[Op]) {
    let servers = distribution.servers();
    let dir = tempfile::tempdir().unwrap();
    let plain = |_: usize, device: Arc<dyn Device>| device;
    let volume = Volume::in_directory(dir.path(), servers, STRIPE, &plain).unwrap();
    let open = || VolumeFile::lazy(&volume, 0, distribution.clone(), "objects/ab/one".as_ref());
    let (mut file, mut model) = (open(), Vec::new());
    for op in ops {
        match *op {
            Op::Write { offset, len, byte } => {
                file.write_at(offset, &vec![byte; index(len)]).unwrap();
                write(&mut model, offset, len, byte);
            }
            Op::Read { offset, len } => {
                let mut filled = vec![0xaa; index(len)];
                file.read_filled(offset, &mut filled).unwrap();
                let want = expected(&model, offset, len);
                assert_eq!(&filled[..want.len()], want, "{op:?}");
                assert!(filled[want.len()..].iter().all(|&byte| byte == 0), "{op:?}");
            }
            Op::Punch { offset, len } => {
                file.punch(ByteRange::at(offset, len)).unwrap();
                let end = index(offset + len).min(model.len());
                model[index(offset).min(end)..end].fill(0);
            }
            Op::Truncate { len } => {
                file.truncate(len).unwrap();
                model.resize(index(len), 0);
            }
            Op::Reopen => file = open(),
            Op::Sync => {
                file.sync(true).unwrap();
                assert!(!file.is_dirty());
            }
        }
        let mut all = vec![0xaa; 3000];
        let count = file.read_at(0, &mut all).unwrap();
        assert_eq!(&all[..count], model.as_slice(), "after {op:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_striped_volume_is_an_array_of_bytes(
        servers in 1..=5_u32,
        ops in proptest::collection::vec(op(), 1..40),
    ) {
        check(&Striping::new(servers, STRIPE).into(), &ops);
    }

    /// Widths of any kind, none on some servers, in parts: as a plan gives them to a file.
    #[test]
    fn a_file_in_varied_stripes_is_an_array_of_bytes(
        widths in proptest::collection::vec(proptest::collection::vec(0..90_u64, 4), 1..4),
        part in 1..500_u64,
        ops in proptest::collection::vec(op(), 1..40),
    ) {
        prop_assume!(widths.iter().all(|widths| widths.iter().any(|width| *width > 0)));
        let parts = (0..).step_by(usize::try_from(part).unwrap()).zip(widths);
        let layout = FileLayout::from_parts(parts).unwrap();
        check(&layout.into(), &ops);
    }
}
