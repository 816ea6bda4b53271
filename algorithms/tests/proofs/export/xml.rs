//! A reader of the XML that pictures are made of: elements with attributes and text, nothing else.

/// An element without its children; they follow it in the list that [`elements`] gives.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
    /// The text directly within it.
    pub(crate) text: String,
}

impl Element {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn number(&self, name: &str) -> f64 {
        let value = self.get(name).unwrap_or_else(|| panic!("{self:?} has no {name}"));
        let number: f64 = value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number"));
        assert!(number.is_finite(), "{name}={value}");
        number
    }
}

/// All elements in the order of their start tags. Panics where the text is no well-formed document.
pub(crate) fn elements(text: &str) -> Vec<Element> {
    let mut found: Vec<Element> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let (before, tag) = rest.split_once('<').unwrap_or_else(|| panic!("text after the end: {rest}"));
        match open.last() {
            Some(&parent) => found[parent].text += &plain(before),
            None => assert!(before.is_empty() && found.is_empty(), "outside of the document: {before}"),
        }
        let (tag, after) = tag.split_once('>').expect("a tag ends");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let parent = open.pop().expect("an element to close");
            assert_eq!(found[parent].name, name);
            continue;
        }
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        found.push(element(tag));
        if !empty {
            open.push(found.len() - 1);
        }
    }
    assert!(open.is_empty(), "elements are left open");
    found
}

fn element(tag: &str) -> Element {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    assert!(name.chars().all(|c| c.is_ascii_alphabetic()), "no name: {name}");
    let mut attributes: Vec<(String, String)> = Vec::new();
    while !rest.trim_start().is_empty() {
        let (key, after) = rest.trim_start().split_once("=\"").expect("an attribute has a value");
        let (value, after) = after.split_once('"').expect("a value ends");
        assert!(after.is_empty() || after.starts_with(' '), "no space before {after}");
        assert!(attributes.iter().all(|(other, _)| other != key), "{key} stands twice in {tag}");
        attributes.push((key.into(), plain(value)));
        rest = after;
    }
    Element { name: name.into(), attributes, text: String::new() }
}

/// A text without its escapes.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        let (entity, after) = after.split_once(';').expect("an escape ends");
        plain += before;
        plain.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            _ => panic!("&{entity};"),
        });
        rest = after;
    }
    assert!(!text.chars().any(|c| c < ' ' && c != '\n'), "a control character");
    plain + rest
}

/// Every point that a picture's lines, circles, rectangles, paths and texts start or end at lies on its sheet.
pub(crate) fn on_the_sheet(elements: &[Element]) {
    let (width, height) = (elements[0].number("width"), elements[0].number("height"));
    for element in elements {
        let mut points = Vec::new();
        for (x, y) in [("x", "y"), ("x1", "y1"), ("x2", "y2"), ("cx", "cy")] {
            if element.get(x).is_some() && element.name != "svg" {
                points.push((element.number(x), element.number(y)));
            }
        }
        if let Some(path) = element.get("d") {
            let numbers: Vec<f64> = path
                .split(|c: char| !"-.0123456789".contains(c))
                .filter(|word| !word.is_empty())
                .map(|word| word.parse().unwrap_or_else(|_| panic!("{path}")))
                .collect();
            points.extend(numbers.chunks(2).map(|pair| (pair[0], pair[1])));
        }
        for (x, y) in points {
            assert!((0.0..=width).contains(&x) && (0.0..=height).contains(&y), "off the sheet: {element:?}");
        }
    }
}
