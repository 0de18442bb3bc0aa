//! Bodies of this crate's fuzz targets (`fuzz/`): each takes bytes that anybody may have written. They are called by
//! cargo-fuzz, and by the tests below over the same seeds (docs/TESTING.md, fuzz targets).

pub use crate::device::emulate::fuzzing::common_queue;
pub use crate::volume::origin::fuzzing::{layout, object_name, server_mark, volume_label};

#[cfg(test)]
mod tests {
    use halocline_testkit::fuzz_target::run;

    use super::*;
    use crate::volume::origin::fuzzing::{cache_object, layout_seeds, mark_seeds};

    #[test]
    fn hostile_layouts_of_files() {
        run("storage_layout", &layout_seeds(), 10_000, layout);
    }

    #[test]
    fn hostile_queues_of_emulated_devices() {
        let numbers: Vec<u8> = (1..9_u64).flat_map(|number| (number << 20).to_le_bytes()).collect();
        run("storage_common_queue", &[("numbers", numbers)], 2_000, common_queue);
    }

    #[test]
    fn hostile_marks_of_servers() {
        run("storage_server_mark", &mark_seeds(), 20_000, server_mark);
    }

    #[test]
    fn hostile_names_of_objects() {
        let number = "00112233445566778899aabbccddeeffv-131".into();
        let names = b"user.a\0user.halocline.object\0trusted.halocline.x\0user.b\0".to_vec();
        let seeds = [("cache", cache_object()), ("striped", number), ("xattrs", names)];
        run("storage_object_name", &seeds, 20_000, object_name);
    }
}
