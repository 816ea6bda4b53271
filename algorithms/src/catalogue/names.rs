//! Algorithms as text: `ring`, `ring(channels=2,bidirectional)`, `bruck(radix=4)`, `blueconnect(2x4)`.
//!
//! Invariant: a written name reads back as the same value. The part before the parenthesis is the family, by which
//! users restrict the choice. Absent: whether an algorithm is defined.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use super::{Algorithm, Imported};

/// The families with their names. Their variants are those of [`Algorithm`].
macro_rules! families {
    ($($variant:ident $name:literal,)*) => {
        /// An algorithm without its parameters.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs, reason = "the variants are those of Algorithm")]
        pub enum Family {
            $($variant,)*
            Imported(Imported),
        }

        impl Family {
            /// Every family of the catalogue, in its order; those that were imported are not in it.
            pub const ALL: [Family; [$($name),*].len()] = [$(Family::$variant),*];

            /// The name, for example `halving-doubling`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Family::$variant => $name,)*
                    Family::Imported(of) => of.name(),
                }
            }
        }

        impl Algorithm {
            /// The family it belongs to.
            pub const fn family(self) -> Family {
                match self {
                    $(Algorithm::$variant { .. } => Family::$variant,)*
                    Algorithm::Imported(of) => Family::Imported(of),
                }
            }
        }
    };
}

families! {
    Pair "pair",
    Ring "ring",
    Tree "tree",
    Doubling "doubling",
    HalvingDoubling "halving-doubling",
    Bruck "bruck",
    Pat "pat",
    Direct "direct",
    TwoShot "two-shot",
    Pairwise "pairwise",
    Spread "spread",
    Binomial "binomial",
    ScatterAllGather "scatter-all-gather",
    Swing "swing",
    Hierarchical "hierarchical",
    BlueConnect "blueconnect",
    BoxTree "box-tree",
    BoxChain "box-chain",
    TwoLevel "two-level",
    Rails "rails",
    RailTrees "rail-trees",
    Switched "switched",
    Coordinated "coordinated",
}

impl Family {
    /// The family of the catalogue that a text names.
    pub(super) fn of_catalogue(text: &str) -> Option<Self> {
        let plain = |text: &str| text.trim().to_ascii_lowercase().replace(['-', '_'], "");
        Family::ALL.into_iter().find(|family| plain(family.name()) == plain(text))
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Family {
    type Err = UnknownAlgorithm;

    /// The name in lower or upper case, with `-`, `_` or nothing between words; or exactly the name of an imported
    /// schedule.
    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let imported = || Imported::named(text.trim()).map(Family::Imported);
        let known = Family::of_catalogue(text).or_else(imported);
        known.ok_or_else(|| UnknownAlgorithm { text: text.to_owned(), family: None })
    }
}

/// A text that names no algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownAlgorithm {
    /// The text.
    pub text: String,
    /// The known family whose parameters are missing or unknown.
    pub family: Option<Family>,
}

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let example = match self.family {
            Some(Family::Ring) => "ring(channels=2,bidirectional)",
            Some(Family::Bruck) => "bruck(radix=4)",
            Some(Family::Direct) => "direct(first=1)",
            Some(Family::Hierarchical) => "hierarchical(per_box=8)",
            Some(Family::BlueConnect) => "blueconnect(4x8)",
            Some(Family::BoxTree) => "box-tree(per_box=8)",
            Some(Family::BoxChain) => "box-chain(per_box=8)",
            Some(Family::TwoLevel) => "two-level(per_box=8)",
            Some(Family::Rails) => "rails(per_box=8,channels=4)",
            Some(Family::Switched) => "switched(per_box=8,channels=16)",
            Some(Family::RailTrees) => "rail-trees(per_box=8,trees=2)",
            Some(family) => family.name(),
            None => {
                let known = Family::ALL.map(Family::name).join(", ");
                return write!(f, "{:?} is no algorithm; known: {known}", self.text);
            }
        };
        write!(f, "{:?} cannot be read; it is written like {example}", self.text)
    }
}

impl Error for UnknownAlgorithm {}

impl Algorithm {
    /// What stands in the parentheses.
    fn parameters(self) -> String {
        match self {
            Algorithm::Ring { channels: 1, bidirectional: false } | Algorithm::Direct { first: 0 } => {
                String::new()
            }
            Algorithm::Ring { channels: 1, bidirectional: true } => "bidirectional".into(),
            Algorithm::Ring { channels, bidirectional: false } => format!("channels={channels}"),
            Algorithm::Ring { channels, bidirectional: true } => format!("channels={channels},bidirectional"),
            Algorithm::Bruck { radix: 2 } => String::new(),
            Algorithm::Bruck { radix } => format!("radix={radix}"),
            Algorithm::Direct { first } => format!("first={first}"),
            Algorithm::Hierarchical { per_box }
            | Algorithm::BoxTree { per_box }
            | Algorithm::BoxChain { per_box, first: 0 }
            | Algorithm::TwoLevel { per_box } => format!("per_box={per_box}"),
            Algorithm::Rails { per_box, channels } | Algorithm::Switched { per_box, channels } => {
                format!("per_box={per_box},channels={channels}")
            }
            Algorithm::BoxChain { per_box, first } => format!("per_box={per_box},first={first}"),
            Algorithm::RailTrees { per_box, trees, first: 0 } => format!("per_box={per_box},trees={trees}"),
            Algorithm::RailTrees { per_box, trees, first } => {
                format!("per_box={per_box},trees={trees},first={first}")
            }
            Algorithm::BlueConnect { dimensions } => {
                let used: Vec<String> =
                    dimensions.iter().filter(|&&ranks| ranks > 1).map(u16::to_string).collect();
                used.join("x")
            }
            _ => String::new(),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (family, parameters) = (self.family(), self.parameters());
        f.pad(&if parameters.is_empty() { family.to_string() } else { format!("{family}({parameters})") })
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let text = text.trim();
        let (family, inside) = match text.split_once('(') {
            Some((family, rest)) => (family, Some(rest)),
            None => (text, None),
        };
        let family: Family = family.parse()?;
        let unknown = || UnknownAlgorithm { text: text.to_owned(), family: Some(family) };
        let inside = match inside {
            Some(rest) => rest.strip_suffix(')').ok_or_else(unknown)?,
            None => "",
        };
        let words: Vec<&str> = inside.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        let number = |name: &str| -> Result<Option<u32>, UnknownAlgorithm> {
            let value = words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.map(|value| value.parse().map_err(|_| unknown())).transpose()
        };
        let narrow = |value: u32| u16::try_from(value).map_err(|_| unknown());
        let per_box = || number("per_box")?.filter(|&ranks| ranks > 0).ok_or_else(unknown);
        let algorithm = match family {
            Family::Pair => Algorithm::Pair,
            Family::Ring => Algorithm::Ring {
                channels: narrow(number("channels")?.unwrap_or(1))?,
                bidirectional: words.contains(&"bidirectional"),
            },
            Family::Tree => Algorithm::Tree,
            Family::Doubling => Algorithm::Doubling,
            Family::HalvingDoubling => Algorithm::HalvingDoubling,
            Family::Bruck => Algorithm::Bruck { radix: narrow(number("radix")?.unwrap_or(2))? },
            Family::Pat => Algorithm::Pat,
            Family::Direct => Algorithm::Direct { first: number("first")?.unwrap_or(0) },
            Family::TwoShot => Algorithm::TwoShot,
            Family::Coordinated => Algorithm::Coordinated,
            Family::Pairwise => Algorithm::Pairwise,
            Family::Spread => Algorithm::Spread,
            Family::Binomial => Algorithm::Binomial,
            Family::ScatterAllGather => Algorithm::ScatterAllGather,
            Family::Swing => Algorithm::Swing,
            Family::Hierarchical => Algorithm::Hierarchical { per_box: per_box()? },
            Family::BlueConnect => {
                let mut dimensions = [1; 4];
                let given: Vec<&str> = inside.split('x').collect();
                if given.len() > dimensions.len() {
                    return Err(unknown());
                }
                for (dimension, text) in dimensions.iter_mut().zip(given) {
                    *dimension = text.trim().parse().map_err(|_| unknown())?;
                }
                Algorithm::BlueConnect { dimensions }
            }
            Family::BoxTree => Algorithm::BoxTree { per_box: per_box()? },
            Family::BoxChain => {
                Algorithm::BoxChain { per_box: per_box()?, first: number("first")?.unwrap_or(0) }
            }
            Family::TwoLevel => Algorithm::TwoLevel { per_box: per_box()? },
            Family::Rails => {
                Algorithm::Rails { per_box: per_box()?, channels: narrow(number("channels")?.unwrap_or(1))? }
            }
            Family::Switched => Algorithm::Switched {
                per_box: per_box()?,
                channels: narrow(number("channels")?.ok_or_else(unknown)?)?,
            },
            Family::RailTrees => Algorithm::RailTrees {
                per_box: per_box()?,
                trees: narrow(number("trees")?.ok_or_else(unknown)?)?,
                first: number("first")?.unwrap_or(0),
            },
            Family::Imported(of) => Algorithm::Imported(of),
        };
        // A part that is not understood makes the text unknown.
        let same = |text: &str| text.to_ascii_lowercase().replace([' ', '-', '_'], "");
        let defaults = words.is_empty() || same(&algorithm.to_string()) == same(text);
        if defaults { Ok(algorithm) } else { Err(unknown()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for algorithm in [
            Algorithm::Pair,
            Algorithm::Ring { channels: 1, bidirectional: false },
            Algorithm::Ring { channels: 3, bidirectional: true },
            Algorithm::Ring { channels: 1, bidirectional: true },
            Algorithm::Bruck { radix: 2 },
            Algorithm::Bruck { radix: 8 },
            Algorithm::Direct { first: 0 },
            Algorithm::Direct { first: 5 },
            Algorithm::Swing,
            Algorithm::Hierarchical { per_box: 8 },
            Algorithm::BlueConnect { dimensions: [2, 4, 8, 1] },
            Algorithm::TwoLevel { per_box: 2 },
            Algorithm::BoxChain { per_box: 8, first: 0 },
            Algorithm::BoxChain { per_box: 8, first: 3 },
            Algorithm::Rails { per_box: 8, channels: 4 },
            Algorithm::RailTrees { per_box: 4, trees: 2, first: 0 },
            Algorithm::Switched { per_box: 8, channels: 16 },
            Algorithm::RailTrees { per_box: 4, trees: 1, first: 3 },
            Algorithm::ScatterAllGather,
            Algorithm::Coordinated,
        ] {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm), "{algorithm}");
        }
        assert_eq!("Halving_Doubling".parse(), Ok(Algorithm::HalvingDoubling));
    }

    #[test]
    fn nonsense_is_refused_with_what_is_known() {
        let error = |text: &str| text.parse::<Algorithm>().expect_err(text).to_string();
        assert!(["", "rings"].iter().all(|text| error(text).contains("known: pair, ring, tree")));
        for text in ["ring(", "ring(channels=x)", "ring(channel=2)", "bruck(radix=99999)", "two-level"] {
            assert!(error(text).contains("it is written like "), "{}", error(text));
        }
        assert!(error("hierarchical").contains("hierarchical(per_box=8)"));
    }
}
