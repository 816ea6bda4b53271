//! The parameters of networks as words: `key=value`, separated by commas.

use std::ops::RangeInclusive;

use super::Draft;
use crate::topology::profiles::BoxKind;

/// A parameter of a family.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// For usage: `K`.
    pub(super) letter: &'static str,
    /// The value where none is given; without one the parameter is needed.
    pub(super) default: Option<u32>,
    pub(super) range: RangeInclusive<u32>,
}

impl Key {
    pub(super) const fn needed(name: &'static str, letter: &'static str, range: RangeInclusive<u32>) -> Key {
        Key { name, letter, default: None, range }
    }

    pub(super) const fn or(
        name: &'static str,
        letter: &'static str,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> Key {
        Key { name, letter, default: Some(default), range }
    }
}

/// Whether the hosts of a family may be the adapters of boxes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Boxes {
    /// Hosts forward messages for others, or are GPUs themselves.
    Never,
    /// Where `box=` is given.
    Allowed,
    /// Also without `box=`: rails are the adapters of a box.
    Always,
}

/// One kind of network.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) keys: &'static [Key],
    pub(super) boxes: Boxes,
    /// The values are in the order of the keys and in their ranges.
    pub(super) draft: fn(&Values) -> Result<Draft, String>,
}

impl Family {
    /// `fat-tree:k=K[,oversubscription=R][,gbit=GBIT][,box=BOX]`.
    pub(super) fn usage(&self) -> String {
        let mut text = format!("{}:", self.name);
        let mut is_first = true;
        for key in self.keys {
            let comma = if is_first { "" } else { "," };
            let word = format!("{comma}{}={}", key.name, key.letter);
            text += &if key.default.is_some() { format!("[{word}]") } else { word };
            is_first = false;
        }
        text += "[,gbit=GBIT]";
        if self.boxes != Boxes::Never {
            text += "[,box=BOX]";
        }
        text
    }
}

/// What was asked for.
pub(super) struct Values {
    numbers: Vec<u32>,
    /// Gigabits a second of a cable, where they are given.
    pub(super) gbit: Option<u32>,
    pub(super) kind: Option<BoxKind>,
}

impl Values {
    pub(super) fn read(family: &Family, parameters: &str) -> Result<Values, String> {
        let mut numbers: Vec<Option<u32>> = vec![None; family.keys.len()];
        let (mut gbit, mut kind) = (None, None);
        for word in parameters.split(',').filter(|word| !word.is_empty()) {
            let (key, value) =
                word.split_once('=').ok_or_else(|| format!("{word:?} is not of the form key=value"))?;
            let is_twice = match key {
                "gbit" => gbit.replace(number(key, value, &(1..=100_000))?).is_some(),
                "box" if family.boxes == Boxes::Never => {
                    return Err(format!("a {} is not made of boxes", family.name));
                }
                "box" => {
                    let known = BoxKind::ALL.map(BoxKind::name).join(", ");
                    let found = BoxKind::ALL.into_iter().find(|kind| kind.name() == value);
                    let found =
                        found.ok_or_else(|| format!("no box is called {value:?}; there are {known}"))?;
                    kind.replace(found).is_some()
                }
                _ => {
                    let at = family.keys.iter().position(|known| known.name == key);
                    let at = at.ok_or_else(|| format!("a {} has no parameter {key:?}", family.name))?;
                    numbers[at].replace(number(key, value, &family.keys[at].range)?).is_some()
                }
            };
            if is_twice {
                return Err(format!("{key}= is given twice"));
            }
        }
        let filled =
            family.keys.iter().zip(numbers).map(|(key, number)| {
                number.or(key.default).ok_or_else(|| format!("{}= is missing", key.name))
            });
        let numbers = filled.collect::<Result<_, _>>()?;
        let kind = kind.or((family.boxes == Boxes::Always).then_some(BoxKind::DgxH100));
        Ok(Values { numbers, gbit, kind })
    }

    /// The numbers, in the order of the family's keys.
    ///
    /// # Panics
    ///
    /// Where the family has another number of keys.
    pub(super) fn numbers<const N: usize>(&self) -> [u32; N] {
        self.numbers.as_slice().try_into().expect("a number for each key of the family")
    }

    /// Adapters of a box.
    pub(super) fn adapters(&self) -> u32 {
        self.kind.map_or(1, BoxKind::adapters)
    }
}

fn number(key: &str, value: &str, range: &RangeInclusive<u32>) -> Result<u32, String> {
    let found = value.parse::<u32>().ok().filter(|number| range.contains(number));
    found.ok_or_else(|| format!("{key}={value} is no whole number from {} to {}", range.start(), range.end()))
}
