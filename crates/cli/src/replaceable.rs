//! What a result may replace: nothing, an empty file, or an earlier result of its kind. A name that was mistyped, or completed by
//! the shell, must cost nobody a trace of hours or a file of another program.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use halocline_os::error::{Error, Result};

use crate::recording::MAGIC;
use crate::text;

/// Bytes of a file by which its kind is known.
const BEGIN_BYTES: u64 = 64 << 10;

/// What is written to a file that the user names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultKind {
    /// A trace of requests.
    Trace,
    /// A plan of `plan`.
    Plan,
    /// A description of servers.
    Servers,
    /// A page of HTML.
    Page,
    /// A plot, in SVG.
    Plot,
    /// A report in JSON.
    Report,
    /// The page of figures, in Markdown.
    Figures,
}

impl ResultKind {
    const fn named(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Plan => "plan",
            Self::Servers => "description of servers",
            Self::Page => "page of HTML",
            Self::Plot => "plot in SVG",
            Self::Report => "report in JSON",
            Self::Figures => "page of figures",
        }
    }

    /// Whether a file that begins so may be an earlier one; what people have added to it does not matter.
    fn is_begun(self, begin: &[u8]) -> bool {
        let text = String::from_utf8_lossy(begin);
        let words = text.trim_start().to_ascii_lowercase();
        let is_set = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(key));
            lines.any(|rest| rest.trim_start().starts_with('='))
        };
        let has_table = |table: &str| text.lines().any(|line| line.trim() == table);
        match self {
            Self::Trace => begin.starts_with(MAGIC),
            Self::Plan => is_set("version") && is_set("chosen"),
            Self::Servers => has_table("[[server]]") && !is_set("chosen"),
            Self::Page => words.starts_with("<!doctype html") || words.starts_with("<html"),
            Self::Plot => words.starts_with("<svg") || words.starts_with("<?xml"),
            Self::Report => words.starts_with('{') || words.starts_with('['),
            Self::Figures => words.starts_with("# ") && words.contains("bench layout --figures"),
        }
    }
}

/// Refuses to replace what `path` names if that is a file, not empty and of another kind.
///
/// # Errors
/// [`Error::Invalid`] if it is; else if that cannot be found out.
pub(crate) fn check(path: &Path, kind: ResultKind) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() > 0 => {}
        // Where nothing is, or no file, nothing is replaced; what else is wrong is found when it is written.
        _ => return Ok(()),
    }
    let failed = || Error::at(path, "read what would be replaced");
    let mut begin = Vec::new();
    match File::open(path) {
        Ok(file) => drop(file.take(BEGIN_BYTES).read_to_end(&mut begin).map_err(failed())?),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed()(error)),
    }
    if kind.is_begun(&begin) || begin.iter().all(u8::is_ascii_whitespace) {
        return Ok(());
    }
    let kind = kind.named();
    Err(Error::invalid(
        format!("{}: it is there and no {kind}", text::path(path)),
        format!("name another file for the {kind}, or remove this one"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A description of servers that was written to a trace's name replaced that, and a plan that to a table's.
    #[test]
    fn nothing_of_another_kind_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        let of_each = [
            (ResultKind::Trace, "\u{89}HCT\0"),
            (
                ResultKind::Plan,
                "# mine\nversion = 1\nchosen = \"pa\"\n\n[[server]]\nname = \"s\"\n",
            ),
            (ResultKind::Servers, "# mine\n\n[[server]]\nname = \"s\"\n"),
            (ResultKind::Page, "<!DOCTYPE html>\n<html>"),
            (ResultKind::Plot, "<svg width=\"1\">"),
            (ResultKind::Report, "{\n  \"bytes\": 1\n}\n"),
            (ResultKind::Figures, "# Figures\n\nMade by `halocline bench layout --figures F`\n"),
        ];
        let bytes = |text: &str| match text.strip_prefix('\u{89}') {
            Some(rest) => [b"\x89", rest.as_bytes()].concat(),
            None => text.as_bytes().to_vec(),
        };
        for (kind, _) in of_each {
            check(&path, kind).unwrap();
            check(Path::new("/dev/null"), kind).unwrap();
        }
        for (there, text) in of_each {
            fs::write(&path, bytes(text)).unwrap();
            for (kind, _) in of_each {
                assert_eq!(check(&path, kind).is_ok(), kind == there, "{kind:?} over {there:?}");
            }
        }
        for (text, is_free) in [("", true), ("\n \n", true), ("a,b\n1,2\n", false)] {
            fs::write(&path, text).unwrap();
            for (kind, _) in of_each {
                assert_eq!(check(&path, kind).is_ok(), is_free, "{kind:?} over {text:?}");
            }
        }
        assert_eq!(fs::read(&path).unwrap(), b"a,b\n1,2\n");
    }
}
