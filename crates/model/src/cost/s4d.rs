//! S4D-Cache, equations 1 to 8: seek by distance on the origin, transfer alone on the cache.

use super::Cost;
use crate::exact::Exact;
use crate::request::ByteRange;
use crate::striping::Striping;

/// Both sides as the model sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Striping of the origin over its M servers.
    pub origin: Striping,
    /// Striping of the cache over its N servers.
    pub cache: Striping,
    /// R: average rotation delay, in picoseconds.
    pub rotation_ps: u64,
    /// S: longest seek, in picoseconds.
    pub seek_max_ps: u64,
    /// `beta_D`: the origin's transfer of a byte, in picoseconds.
    pub origin_per_byte_ps: u64,
    /// `beta_C`: the cache's transfer of a byte, in picoseconds.
    pub cache_per_byte_ps: u64,
}

/// What the model says of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// Cost on the origin, `T_D`.
    pub origin: Cost,
    /// Cost on the cache, `T_C`: transfer alone.
    pub cache: Cost,
}

impl Judgement {
    /// B = `T_D` - `T_C`.
    pub fn benefit_ps(&self) -> Exact {
        self.origin.total_ps() - self.cache.total_ps()
    }

    /// Whether the request is critical: `T_D` > `T_C`, strictly.
    pub fn critical(&self) -> bool {
        self.benefit_ps() > Exact::ZERO
    }
}

impl Model {
    /// Costs of `range` after a seek that takes F(d) = `seek_ps`, clamped to S; `None` is the
    /// first request, F = S.
    pub fn judge(&self, range: ByteRange, seek_ps: Option<u64>) -> Judgement {
        let seek = seek_ps.map_or(self.seek_max_ps, |seek| seek.min(self.seek_max_ps));
        let rotation = i128::from(self.rotation_ps);
        let (on_origin, on_cache) = (self.origin.shape(range), self.cache.shape(range));
        let (least, greatest) =
            (i128::from(seek) + rotation, i128::from(self.seek_max_ps) + rotation);
        let size = i128::from(on_origin.largest);
        Judgement {
            origin: Cost::new(
                u64::from(on_origin.servers),
                size,
                least,
                greatest,
                self.origin_per_byte_ps,
            ),
            cache: Cost::new(
                u64::from(on_cache.servers),
                i128::from(on_cache.largest),
                0,
                0,
                self.cache_per_byte_ps,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model {
            origin: Striping::new(8, 65536),
            cache: Striping::new(4, 65536),
            rotation_ps: 4_000_000_000,
            seek_max_ps: 16_000_000_000,
            origin_per_byte_ps: 8_000,
            cache_per_byte_ps: 10_000,
        }
    }

    #[test]
    fn golden_numbers() {
        let near = model().judge(ByteRange::at(0, 8192), Some(1_000_000_000));
        // a = 5 ms, b = 20 ms, one server: 12.5 ms + 8192 * 8 ns.
        assert_eq!(near.origin.total_ps().to_string(), "12565536000/1");
        assert_eq!(near.cache.total_ps().to_string(), "81920000/1");
        assert!(near.critical());
        let first = model().judge(ByteRange::at(0, 8192), None);
        assert_eq!(first.origin.startup_ps, Exact::whole(20_000_000_000));
        let beyond = model().judge(ByteRange::at(0, 8192), Some(u64::MAX));
        assert_eq!(beyond, first, "F(d) is clamped to S");
    }

    #[test]
    fn a_slower_cache_loses_large_requests() {
        assert!(!model().judge(ByteRange::at(0, 64 << 20), Some(0)).critical());
    }
}
