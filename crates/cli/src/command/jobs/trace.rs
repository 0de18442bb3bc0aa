//! Parses the output of `strace -f -e trace=open,openat`.
//!
//! A trace contains more than calls: if two threads call at the same time, strace writes a call on two lines,
//! `<unfinished ...>` and `<... openat resumed>`, and it reports signals and ends of processes (`---`, `+++`). None of
//! these is the name of a file.

use std::collections::HashMap;

/// Calls that open a file by name.
const CALLS: [&str; 4] = ["openat", "open", "openat2", "creat"];
/// The end of a call's line if another thread's line came in between.
const UNFINISHED: &str = "<unfinished ...>";

/// Files that were opened according to a trace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Opened {
    /// Their names in the order in which the calls ended: as given by the program, or absolute if strace wrote the
    /// directory to which they were relative (`-y`).
    pub(super) names: Vec<String>,
    /// Opens whose file the trace does not reveal: relative to a directory that is only a number, or with a name that
    /// is not UTF-8.
    pub(super) unknown: u64,
}

/// A line of a trace.
enum Line<'a> {
    /// A call, complete or only with its arguments.
    Call { name: &'a str, after: &'a str },
    /// The rest of a call.
    Resumed { name: &'a str, after: &'a str },
    /// A signal, or the end of a process.
    Event,
}

/// Whether strace wrote this line.
pub(super) fn is_a_line(line: &str) -> bool {
    parse(line).is_some()
}

/// The files that were opened, without failed calls and directories.
pub(super) fn opened(text: &str) -> Opened {
    let mut opened = Opened::default();
    let mut unfinished: HashMap<Option<u32>, &str> = HashMap::new();
    for line in text.lines() {
        // Output of a program between the lines is not strace's.
        let Some((process, line)) = parse(line) else { continue };
        let (name, found) = match line {
            Line::Call { name, after } => match after.trim_end().strip_suffix(UNFINISHED) {
                Some(begun) if CALLS.contains(&name) => {
                    unfinished.insert(process, begun.trim_end());
                    continue;
                }
                Some(_) => continue,
                None => (name, file(after)),
            },
            Line::Resumed { name, after } if CALLS.contains(&name) => {
                let Some(begun) = unfinished.remove(&process) else { continue };
                (name, file(&format!("{begun}{after}")))
            }
            Line::Resumed { .. } | Line::Event => continue,
        };
        match found {
            _ if !CALLS.contains(&name) => {}
            OpenedFile::File(name) => opened.names.push(name),
            OpenedFile::Unknown => opened.unknown += 1,
            OpenedFile::None => {}
        }
    }
    opened
}

/// The process of a line, if given, and the kind of the line.
fn parse(line: &str) -> Option<(Option<u32>, Line<'_>)> {
    let (process, line) = beginning(line);
    if line.starts_with("+++ ") && line.ends_with(" +++")
        || line.starts_with("--- ") && line.ends_with(" ---")
        || line.starts_with("strace: Process ")
    {
        return Some((process, Line::Event));
    }
    if let Some(rest) = line.strip_prefix("<... ") {
        let (name, after) = rest.split_once(" resumed>")?;
        return is_word(name).then_some((process, Line::Resumed { name, after }));
    }
    let (name, after) = line.split_once('(')?;
    let is_result = |(_, result): (_, &str)| {
        result.starts_with(|c: char| c.is_ascii_digit() || "-?".contains(c))
    };
    let ended = after.rsplit_once(" = ").is_some_and(is_result) || after.ends_with(UNFINISHED);
    (is_word(name) && ended).then_some((process, Line::Call { name, after }))
}

/// Removes the process and the times from a line: `[pid 12] `, `12 `, `12:34:56.789 `, `0.000123 `.
fn beginning(line: &str) -> (Option<u32>, &str) {
    let mut line = line.trim_start();
    let mut process = None;
    if let Some((number, rest)) = line.strip_prefix("[pid ").and_then(|rest| rest.split_once("] "))
    {
        process = number.trim().parse().ok();
        line = rest.trim_start();
    }
    let is_number = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.bytes().all(|byte| b"0123456789:.".contains(&byte))
    };
    while let Some((word, rest)) = line.split_once(' ').filter(|(word, _)| is_number(word)) {
        process = process.or_else(|| word.parse().ok());
        line = rest.trim_start();
    }
    (process, line)
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The file opened by a call.
enum OpenedFile {
    File(String),
    Unknown,
    /// Nothing, or a directory.
    None,
}

/// The file opened by a call whose line continues with `after` behind its first bracket.
fn file(after: &str) -> OpenedFile {
    let Some((directory, name, rest)) = arguments(after) else { return OpenedFile::None };
    let Some((flags, result)) = result(rest) else { return OpenedFile::None };
    if !result.starts_with(|c: char| c.is_ascii_digit())
        || flags.contains("O_DIRECTORY")
        || flags.contains("O_PATH")
    {
        return OpenedFile::None;
    }
    let Some(name) = name else { return OpenedFile::Unknown };
    match directory {
        _ if name.starts_with('/') => OpenedFile::File(name),
        Directory::Working => OpenedFile::File(name),
        Directory::Unknown => OpenedFile::Unknown,
        Directory::Of(directory) => {
            OpenedFile::File(format!("{}/{name}", directory.trim_end_matches('/')))
        }
    }
}

/// The directory to which a name is relative.
enum Directory {
    Working,
    Of(String),
    Unknown,
}

/// The directory, the name (`None` if it is not UTF-8) and the rest.
fn arguments(after: &str) -> Option<(Directory, Option<String>, &str)> {
    if let Some(rest) = after.strip_prefix('"') {
        let (name, rest) = quoted(rest, b'"')?;
        return Some((Directory::Working, name, rest));
    }
    let end = after.find(['<', ','])?;
    let (number, rest) = after.split_at(end);
    let (directory, rest) = match rest.strip_prefix('<') {
        Some(rest) => {
            let (path, rest) = quoted(rest, b'>')?;
            let path = path.filter(|path| path.starts_with('/'));
            (path.map_or(Directory::Unknown, Directory::Of), rest)
        }
        None if number == "AT_FDCWD" => (Directory::Working, rest),
        None => (Directory::Unknown, rest),
    };
    let (name, rest) = quoted(rest.strip_prefix(", \"")?, b'"')?;
    Some((directory, name, rest))
}

/// The arguments after the name, and the result of the call: `, O_RDONLY)   = 3` has both.
fn result(rest: &str) -> Option<(&str, &str)> {
    let mut brackets = rest.match_indices(')');
    brackets.find_map(|(at, _)| {
        let result = rest[at + 1..].trim_start().strip_prefix("= ")?;
        Some((&rest[..at], result))
    })
}

/// The text before the closing mark, as strace escapes it (`None` if that is not UTF-8), and the text after it.
fn quoted(text: &str, close: u8) -> Option<(Option<String>, &str)> {
    let mut name = Vec::new();
    let mut rest = text.as_bytes();
    let digits = |digits: &[u8], base: u32, most: usize| {
        let values = digits.iter().take(most).map_while(|byte| char::from(*byte).to_digit(base));
        values.fold((0, 0), |(count, code), digit| (count + 1, code * base + digit))
    };
    loop {
        match rest {
            [byte, ..] if *byte == close => {
                let after = &text[text.len() - rest.len() + 1..];
                return Some((String::from_utf8(name).ok(), after));
            }
            [b'\\', b'0'..=b'7', ..] => {
                let (count, code) = digits(&rest[1..], 8, 3);
                name.push(u8::try_from(code).ok()?);
                rest = &rest[1 + count..];
            }
            [b'\\', b'x', ..] => {
                let (count, code) = digits(&rest[2..], 16, 2);
                name.push(u8::try_from(code).ok()?);
                rest = &rest[2 + count..];
            }
            [b'\\', escaped, ..] => {
                name.push(match escaped {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    other => *other,
                });
                rest = &rest[2..];
            }
            [byte, ..] => {
                name.push(*byte);
                rest = &rest[1..];
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(trace: &str) -> Vec<String> {
        opened(trace).names
    }

    #[test]
    fn only_opens_that_succeeded_are_files() {
        // Lines of strace 6.1.
        let trace = r#"26944 openat(AT_FDCWD, "n1-1", O_RDONLY) = 3
26944 openat(AT_FDCWD, "nope", O_RDONLY) = -1 ENOENT (No such file or directory)
27002 openat(AT_FDCWD, "n5-13", O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC, 0666 <unfinished ...>
26999 openat(AT_FDCWD, "n2-13", O_RDONLY|O_CLOEXEC <unfinished ...>
27002 <... openat resumed>)             = 7
26999 <... openat resumed>)             = -1 ENOENT (No such file or directory)
26999 futex(0x7f, FUTEX_WAIT, 2, NULL <unfinished ...>
26999 <... futex resumed>)              = 0
27005 openat(AT_FDCWD, "killed", O_RDONLY <unfinished ...>
27005 openat(AT_FDCWD, "/d", O_RDONLY|O_NONBLOCK|O_CLOEXEC|O_DIRECTORY) = 4
27005 openat(AT_FDCWD, "again", O_RDONLY) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
27005 +++ exited with 0 +++
27003 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=27005, si_uid=0, si_status=0, si_utime=0, si_stime=0} ---
27003 execve("/bin/cat", ["cat", "x"], 0x7ffc /* 9 vars */) = 0
27003 creat("made", 0644)               = 3
27003 openat2(AT_FDCWD, "two", {flags=O_RDONLY, resolve=RESOLVE_BENEATH}, 24) = 5
27003 +++ killed by SIGKILL +++
"#;
        assert_eq!(
            opened(trace),
            Opened { names: ["n1-1", "n5-13", "made", "two"].map(String::from).into(), unknown: 0 }
        );
        assert!(trace.lines().all(is_a_line));
    }

    #[test]
    fn every_way_to_begin_a_line_is_known() {
        for line in [
            r#"openat(AT_FDCWD, "x", O_RDONLY)         = 3"#,
            r#"[pid 27152] openat(AT_FDCWD, "x", O_RDONLY) = 3"#,
            r#"27142 14:11:16.700160 openat(AT_FDCWD, "x", O_RDONLY) = 3 <0.000016>"#,
            r#"[pid    42] 1700000000.700160 open("x", O_RDONLY) = 3 <0.000016>"#,
            r#"     0.000179 openat(AT_FDCWD, "x", O_RDONLY) = 3"#,
            r#"openat(AT_FDCWD, "\x78", O_RDONLY) = 3"#,
        ] {
            assert_eq!(names(line), ["x"], "{line}");
            assert!(is_a_line(line), "{line}");
        }
        // Two threads, distinguished in each of them.
        let trace = "[pid 1] open(\"a\", O_RDONLY <unfinished ...>\n[pid 2] open(\"b\", O_RDONLY \
                     <unfinished ...>\n[pid 1] <... open resumed>) = 3\n[pid 2] <... open \
                     resumed>) = -1 EIO (Input/output error)";
        assert_eq!(names(trace), ["a"]);
    }

    #[test]
    fn names_are_relative_to_what_the_trace_says() {
        for (line, file) in [
            (r#"1 openat(AT_FDCWD</mnt/w>, "n", O_RDONLY) = 4</mnt/w/n>"#, Some("/mnt/w/n")),
            (r#"1 openat(3</mnt/w>, "n", O_RDONLY) = 4</mnt/w/a) = -1>"#, Some("/mnt/w/n")),
            (r#"1 openat(AT_FDCWD</mnt/d\"e\76f>, "x", O_RDONLY) = 3"#, Some("/mnt/d\"e>f/x")),
            (r#"1 openat(3, "/mnt/x", O_RDONLY) = 4"#, Some("/mnt/x")),
            (r#"1 openat(3, "n", O_RDONLY) = 4"#, None),
            (r#"1 openat(3</mnt/w>, "\377", O_RDONLY) = 4"#, None),
        ] {
            let expected = Opened {
                names: Vec::from_iter(file.map(String::from)),
                unknown: u64::from(file.is_none()),
            };
            assert_eq!(opened(line), expected, "{line}");
        }
    }

    #[test]
    fn names_are_taken_out_of_the_escapes() {
        let trace = r#"open("/mnt/gr\303\266\303\237e \"x\"\1\\", O_RDONLY) = 3"#;
        assert_eq!(names(trace), ["/mnt/größe \"x\"\u{1}\\"]);
        // What looks like the end of a call may be a name.
        assert_eq!(names(r#"1 open("a) = -1", O_RDONLY) = 3"#), ["a) = -1"]);
        assert_eq!(names(r#"1 open("a) = 3", O_RDONLY) = -1 EIO (x)"#), Vec::<String>::new());
        assert_eq!(names(r#"1 open("O_DIRECTORY", O_RDONLY) = 3"#), ["O_DIRECTORY"]);
        for broken in ["open(\"", "open(\"\\", "open(\"\\9", "openat(", "<... ", "[pid ", "1 "] {
            assert_eq!(opened(broken), Opened::default(), "{broken}");
        }
    }

    #[test]
    fn names_of_files_are_no_lines_of_a_trace() {
        for line in ["a/b c", "my open(1).txt", "12", "1 2", "f(x) = y.dat", "+++", "--- a", ""] {
            assert!(!is_a_line(line), "{line}");
        }
    }
}
