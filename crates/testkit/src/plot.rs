//! What the plot of a benchmark shows.

use std::fs;
use std::path::Path;

use roxmltree::Document;

/// An SVG document, read.
#[derive(Debug)]
pub struct Plot {
    said: Vec<String>,
    shapes: Vec<String>,
}

impl Plot {
    /// Reads an SVG file.
    #[track_caller]
    pub fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap();
        let document = Document::parse(&text).unwrap();
        let (mut said, mut shapes) = (Vec::new(), Vec::new());
        for node in document.descendants() {
            let name = node.tag_name();
            if name.namespace() != Some("http://www.w3.org/2000/svg") {
                continue;
            }
            if name.name() == "text" {
                said.extend(node.text().map(|text| text.trim().to_owned()));
            } else {
                shapes.push(name.name().to_owned());
            }
        }
        Self { said, shapes }
    }

    /// Whether a text of it is `text`.
    pub fn says(&self, text: &str) -> bool {
        self.said.iter().any(|said| said == text)
    }

    /// Whether a text of it has `part` in it.
    pub fn mentions(&self, part: &str) -> bool {
        self.said.iter().any(|said| said.contains(part))
    }

    /// Number of `rect`, `polyline` or other elements.
    pub fn count(&self, shape: &str) -> usize {
        self.shapes.iter().filter(|found| *found == shape).count()
    }
}
