//! Decision records are numbered without gaps: `docs/decisions/NNNN-what-was-decided.md`, with
//! the number again in the heading.

use super::{Finding, Source};

const FOLDER: &str = "docs/decisions/";

/// Finds records without a number, with a wrong heading, and gaps and doubles in the numbers.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut records: Vec<(u32, &Source)> = Vec::new();
    for source in sources {
        let Some(name) = source.path.strip_prefix(FOLDER) else { continue };
        let Some(number) = number(name) else {
            findings.push(Finding::new(source, 1, "a decision record is named NNNN-words.md"));
            continue;
        };
        let heading = source.text.lines().next().unwrap_or_default();
        if !heading.starts_with(&format!("# {number:04} "))
            && !heading.starts_with(&format!("# {number}. "))
        {
            let what = format!("the first line must be `# {number:04} What was decided`");
            findings.push(Finding::new(source, 1, what));
        }
        records.push((number, source));
    }
    records.sort_by_key(|(number, source)| (*number, source.path.clone()));
    for (expected, (number, source)) in (1..).zip(&records) {
        if *number != expected {
            let what = format!("number {number:04} where {expected:04} follows");
            findings.push(Finding::new(source, 1, what));
            break;
        }
    }
    findings
}

fn number(name: &str) -> Option<u32> {
    let (digits, words) = name.strip_suffix(".md")?.split_once('-')?;
    (digits.len() == 4 && !words.is_empty()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(records: &[(&str, &str)]) -> usize {
        let sources: Vec<Source> = records
            .iter()
            .map(|(name, text)| Source::new(format!("{FOLDER}{name}"), *text))
            .collect();
        check(&sources).len()
    }

    #[test]
    fn numbered_records_pass() {
        assert_eq!(findings(&[("0001-a.md", "# 0001 A"), ("0002-b.md", "# 0002 B")]), 0);
    }

    #[test]
    fn missing_double_and_wrong_numbers_are_found() {
        assert_eq!(findings(&[("store.md", "# Store")]), 1);
        assert_eq!(findings(&[("0001-a.md", "# 0001 A"), ("0003-b.md", "# 0003 B")]), 1);
        assert_eq!(findings(&[("0001-a.md", "# 0001 A"), ("0001-b.md", "# 0001 B")]), 1);
        assert_eq!(findings(&[("0001-a.md", "# 0002 A")]), 1);
    }
}
