//! Pieces of a page. Names in traces and descriptions of servers come from others: all text passes [`escaped`].

use std::fmt::Write;

use crate::text;

/// Escapes text for a page, whatever it contains: no character of it is markup, and none changes the direction of the
/// text that follows.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text::line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// A cell of a table.
pub(super) enum Cell {
    /// Words.
    Text(String),
    /// A number with its unit, right-aligned.
    Number(String),
}

/// A table; the first cell of each row is its name. `chosen` is highlighted.
pub(super) fn table(
    caption: &str,
    head: &[&str],
    rows: &[Vec<Cell>],
    chosen: Option<usize>,
) -> String {
    let mut out = format!("<div class=\"table\"><table><caption>{}</caption>\n", escaped(caption));
    let is_number =
        |column: usize| rows.iter().any(|row| matches!(row.get(column), Some(Cell::Number(_))));
    out += "<thead><tr>";
    for (column, name) in head.iter().enumerate() {
        let class = if is_number(column) { " class=\"number\"" } else { "" };
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escaped(name));
    }
    out += "</tr></thead><tbody>\n";
    for (number, row) in rows.iter().enumerate() {
        out += if chosen == Some(number) { "<tr class=\"chosen\">" } else { "<tr>" };
        for (column, cell) in row.iter().enumerate() {
            let _ = match cell {
                Cell::Text(text) if column == 0 => {
                    write!(out, "<th scope=\"row\">{}</th>", escaped(text))
                }
                Cell::Text(text) => write!(out, "<td>{}</td>", escaped(text)),
                Cell::Number(text) => write!(out, "<td class=\"number\">{}</td>", escaped(text)),
            };
        }
        out += "</tr>\n";
    }
    out + "</tbody></table></div>\n"
}

/// A figure: a heading, the drawing with a description, a caption, and its numbers in a collapsed section.
pub(super) struct Figure {
    /// Its place in the page's addresses; no spaces.
    pub(super) id: String,
    /// What it is.
    pub(super) title: String,
    /// An SVG document.
    pub(super) svg: String,
    /// A description for people who cannot see it.
    pub(super) says: String,
    /// How to read it.
    pub(super) caption: String,
    /// Its numbers, as a table.
    pub(super) numbers: String,
}

impl Figure {
    /// As markup.
    pub(super) fn html(&self) -> String {
        let says = escaped(&self.says);
        let svg =
            self.svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{says}\" "), 1);
        let numbers = if self.numbers.is_empty() {
            String::new()
        } else {
            format!("<details><summary>The numbers</summary>{}</details>", self.numbers)
        };
        format!(
            "<figure id=\"{}\"><h3>{}</h3>\n{svg}\n<figcaption>{}</figcaption>{numbers}</figure>\n",
            self.id,
            escaped(&self.title),
            escaped(&self.caption)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_markup() {
        let evil = "</td><script>alert('1')</script>\u{202e}&\"\n";
        let shown = escaped(evil);
        assert!(!shown.contains(['<', '>', '"', '\'', '\n', '\u{202e}']), "{shown}");
        let table = table(evil, &[evil], &[vec![Cell::Text(evil.into())]], None);
        assert!(!table.contains("<script"), "{table}");
        let [id, title, says, caption] = ["f", evil, evil, evil].map(str::to_owned);
        let (svg, numbers) = ("<svg width=\"1\"></svg>".into(), String::new());
        let figure = Figure { id, title, svg, says, caption, numbers }.html();
        assert!(figure.contains("<svg role=\"img\" aria-label=\"&lt;/td&gt;"), "{figure}");
        assert!(!figure.contains("<script"), "{figure}");
    }
}
