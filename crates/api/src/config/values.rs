//! How the values of options are read from text and written as text.

use super::bounds::{BLOCK, Bounds, STRIPE};
use super::units::{HourWindow, Kind, format_bytes, parse_bytes};
use super::{CacheSize, Config, Copies, Emulation, Mode, VolumeKind};

/// Bytes of the name of a record store.
const RECORD_STORE_LEN_MAX: usize = 32;

/// Stores a value that was read successfully.
pub(super) fn put<T>(field: &mut T, value: Option<T>) -> Option<()> {
    *field = value?;
    Some(())
}

pub(super) fn name(field: &mut String, text: &str, kind: Kind) -> Option<()> {
    put(field, kind.names().contains(&text).then(|| text.to_owned()))
}

/// The name of a record store. Whether there is one of this name is found out when the cache is opened.
pub(super) fn record_store(field: &mut String, text: &str) -> Option<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good = (1..=RECORD_STORE_LEN_MAX).contains(&text.len()) && text.bytes().all(plain);
    put(field, good.then(|| text.to_owned()))
}

pub(super) fn globs(field: &mut Vec<String>, text: &str) -> Option<()> {
    let list: Vec<_> =
        text.split('\n').filter(|glob| !glob.is_empty()).map(str::to_owned).collect();
    let good = list.iter().all(|glob| globset::Glob::new(glob).is_ok());
    put(field, good.then_some(list))
}

/// At least two plain names.
pub(super) fn tiers(field: &mut Vec<String>, text: &str) -> Option<()> {
    let list: Vec<_> =
        text.split('\n').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let plain = |name: &String| !name.contains('/') && name != "." && name != "..";
    put(field, (list.len() >= 2 && list.iter().all(plain)).then_some(list))
}

pub(super) fn single_thread(config: &mut Config, text: &str) -> Option<()> {
    match text.parse().ok()? {
        true => config.threads = 1,
        false if config.threads == 1 => config.threads = 0,
        false => {}
    }
    Some(())
}

pub(super) fn emulate(config: &mut Config, text: &str) -> Option<()> {
    config.emulate = match text {
        "none" => None,
        _ => Some(Emulation::parse(text, |name| config.profiles.get(name).copied()).ok()?),
    };
    Some(())
}

/// A whole number within `bounds`.
pub(super) fn count<T: TryFrom<u64>>(text: &str, bounds: Bounds) -> Option<T> {
    let number = text.parse().ok().filter(|number| bounds.contain(*number))?;
    T::try_from(number).ok()
}

pub(super) fn stripe(text: &str) -> Option<u64> {
    parse_bytes(text).filter(|bytes| STRIPE.contain(*bytes) && bytes.is_multiple_of(BLOCK))
}

pub(super) fn percent(text: &str) -> Option<f64> {
    let number: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number)
}

/// Bytes, at least `least`, or a share.
pub(super) fn size(text: &str, least: u64) -> Option<CacheSize> {
    if text.trim_end().ends_with('%') {
        return percent(text).filter(|share| *share > 0.0).map(CacheSize::Percent);
    }
    parse_bytes(text).filter(|bytes| *bytes >= least).map(CacheSize::Bytes)
}

pub(super) fn size_text(size: CacheSize) -> String {
    match size {
        CacheSize::Bytes(bytes) => format_bytes(bytes),
        CacheSize::Percent(share) => format!("{share}%"),
    }
}

pub(super) fn hours(field: &mut Option<HourWindow>, text: &str) -> Option<()> {
    *field = if text == "always" { None } else { Some(HourWindow::parse(text)?) };
    Some(())
}

pub(super) fn mode(text: &str) -> Option<Mode> {
    match text {
        "write-back" => Some(Mode::WriteBack),
        "write-through" => Some(Mode::WriteThrough),
        "read-only" => Some(Mode::ReadOnly),
        _ => None,
    }
}

pub(super) const fn mode_text(mode: Mode) -> &'static str {
    match mode {
        Mode::WriteBack => "write-back",
        Mode::WriteThrough => "write-through",
        Mode::ReadOnly => "read-only",
    }
}

pub(super) fn copies(text: &str) -> Option<Copies> {
    match text {
        "none" => Some(Copies::None),
        "keep" => Some(Copies::Keep),
        "archive" => Some(Copies::Archive),
        _ => None,
    }
}

pub(super) const fn copies_text(copies: Copies) -> &'static str {
    match copies {
        Copies::None => "none",
        Copies::Keep => "keep",
        Copies::Archive => "archive",
    }
}

pub(super) fn volume(text: &str) -> Option<VolumeKind> {
    match text {
        "plain" => Some(VolumeKind::Plain),
        "striped" => Some(VolumeKind::Striped),
        _ => None,
    }
}

pub(super) const fn volume_text(kind: VolumeKind) -> &'static str {
    match kind {
        VolumeKind::Plain => "plain",
        VolumeKind::Striped => "striped",
    }
}
