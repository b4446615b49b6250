//! Reads XML into a flat list of elements.
//!
//! Nothing recurses. Entities that a document declares are not expanded, and nothing outside of the
//! text is read.

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::decode::clean;

/// The most elements within one another. Machines with switches below switches need some 20.
const MOST_NESTED: usize = 64;

/// The elements of a document.
#[derive(Debug, Default)]
pub(crate) struct Document {
    /// In the order of their start tags, so that an element's parent is before it.
    pub(crate) elements: Vec<Element>,
    /// The reason why the text ends too early, or why the rest of it is unreadable.
    pub(crate) broken: Option<String>,
}

/// An element.
#[derive(Debug)]
pub(crate) struct Element {
    /// The element around it, by its position in the list.
    pub(crate) parent: Option<usize>,
    /// Its name.
    pub(crate) name: String,
    attributes: Vec<(String, String)>,
}

impl Element {
    /// Returns the value of an attribute, in one line.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Document {
    /// Reads the elements of `text` up to the end of its root element, or as far as it is XML.
    pub(crate) fn read(text: &str) -> Self {
        let mut document = Self::default();
        let mut open = Vec::new();
        let mut reader = Reader::from_str(text);
        loop {
            let broken = match reader.read_event() {
                Ok(Event::Start(start)) => {
                    open.push(document.push(open.last().copied(), &start));
                    (open.len() > MOST_NESTED)
                        .then(|| format!("more than {MOST_NESTED} elements within one another"))
                }
                Ok(Event::Empty(start)) => {
                    document.push(open.last().copied(), &start);
                    None
                }
                Ok(Event::End(_)) => {
                    open.pop();
                    None
                }
                Ok(Event::Eof) => Some(format!("{} elements have no end", open.len())),
                Ok(_) => None,
                Err(error) => Some(clean(&error.to_string())),
            };
            if open.is_empty() && !document.elements.is_empty() {
                return document;
            }
            if let Some(broken) = broken {
                let line = line(text, reader.buffer_position());
                document.broken = Some(format!("line {line}: {broken}"));
                return document;
            }
        }
    }

    /// Returns the name of the root element.
    pub(crate) fn root(&self) -> Option<&str> {
        self.elements.first().map(|root| root.name.as_str())
    }

    /// Adds an element and returns its position. An attribute that cannot be read is left out.
    fn push(&mut self, parent: Option<usize>, start: &BytesStart<'_>) -> usize {
        let mut attributes = start.attributes();
        // To find names that occur twice takes quadratic time.
        let attributes = attributes.with_checks(false).flatten();
        let attributes = attributes.filter_map(|attribute| {
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).ok()?;
            let value = clean(&value).replace('\n', " ");
            Some((in_words(attribute.key.as_ref()), value))
        });
        let attributes = attributes.collect();
        self.elements.push(Element {
            parent,
            name: in_words(start.name().as_ref()),
            attributes,
        });
        self.elements.len().saturating_sub(1)
    }
}

fn in_words(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Returns the number of the line at an offset in `text`.
fn line(text: &str, offset: u64) -> usize {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let before = text.bytes().take(offset);
    before
        .filter(|byte| *byte == b'\n')
        .count()
        .saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_their_parents_and_attributes() {
        let text = "<!-- of a tool --><a x='1' x='2'><b y=\"&lt;&#27;[31m&#10;z\"/></a>\n$ exit";
        let document = Document::read(text);
        assert_eq!(document.broken, None);
        assert_eq!(document.root(), Some("a"));
        let [a, b] = document.elements.as_slice() else {
            panic!("{document:?}");
        };
        assert_eq!((a.parent, a.get("x")), (None, Some("1")));
        assert_eq!((b.parent, b.get("y")), (Some(0), Some("< z")));
    }

    #[test]
    fn declared_entities_are_not_expanded() {
        let mut text = "<!DOCTYPE a [<!ENTITY l0 \"laugh\">".to_owned();
        for level in 1..10 {
            let entity = format!("&l{};", level - 1).repeat(10);
            text.push_str(&format!("<!ENTITY l{level} \"{entity}\">"));
        }
        text.push_str(
            "<!ENTITY f SYSTEM \"file:///etc/passwd\">]><a x='&l9;' y='&f;' z='1'>&l9;</a>",
        );
        let document = Document::read(&text);
        let a = &document.elements[0];
        assert_eq!(
            (a.get("x"), a.get("y"), a.get("z")),
            (None, None, Some("1"))
        );
    }

    #[test]
    fn text_that_is_cut_says_where() {
        let broken = |text: &str| Document::read(text).broken.unwrap();
        assert_eq!(broken("<a>\n<b>"), "line 2: 2 elements have no end");
        assert!(broken("<a>\n<b x='1").starts_with("line 2: "));
        assert!(broken("<a>\n<b></a>").starts_with("line 2: "));
        assert!(broken("").starts_with("line 1: "));
        let deep = "<a>".repeat(100_000);
        assert!(broken(&deep).contains("64 elements within one another"));
        assert!(Document::read(&deep).elements.len() < 100);
    }
}
