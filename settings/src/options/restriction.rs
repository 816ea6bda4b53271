//! The setting that restricts the choice of algorithms: `CONSORT_ALGO`, `NCCL_ALGO`, `NCCL_PROTO`.
//!
//! The text is NCCL's: names separated by commas, `^` in front of them to exclude instead, and several such lists for
//! collectives by name, separated by semicolons: `ring,tree`, `^tree`, `all_reduce:tree;broadcast:ring`. The last
//! list that names a collective holds for it.
//!
//! Invariant: a list without a collective's name does not apply to collectives that have none of its algorithms
//! (`tree` leaves all-to-all alone); a list with the name always applies. Absent: which algorithms are possible for a
//! number of ranks, which the planner knows.

use consort_algorithms::Collective;
use consort_algorithms::builders::{ring_is_defined, spanning_trees_are_defined};
use consort_algorithms::catalogue::Family;
use consort_algorithms::synthesize::offers_are_defined;

use crate::environment::{Environment, Resolved};
use consort_types::error::{Error, Result};

/// Schedules that are no algorithms of the catalogue, as they follow from a communicator's machine or from a file: what they are
/// is another schedule in each of them, and a list of algorithms names them by where they come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// Rings that a search finds on the machine.
    Rings,
    /// Trees that a search finds there.
    Trees,
    /// Rings of `NCCL_GRAPH_FILE`.
    FileRings,
    /// Trees of it.
    FileTrees,
    /// Schedules that are made for the machine.
    Made,
}

impl Source {
    /// All of them, in the order in which they settle ties.
    pub const ALL: [Source; 5] =
        [Source::Rings, Source::Trees, Source::FileRings, Source::FileTrees, Source::Made];

    /// The name in a list.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Rings => "found-rings",
            Source::Trees => "found-trees",
            Source::FileRings => "file-rings",
            Source::FileTrees => "file-trees",
            Source::Made => "made",
        }
    }

    /// Whether there can be some for `collective`.
    pub const fn serves(self, collective: Collective) -> bool {
        match self {
            Source::Rings | Source::FileRings => ring_is_defined(collective),
            Source::Trees | Source::FileTrees => spanning_trees_are_defined(collective),
            Source::Made => offers_are_defined(collective),
        }
    }

    fn named(text: &str) -> Option<Self> {
        let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '-'], "");
        Source::ALL.into_iter().find(|source| plain(source.name()) == plain(text))
    }
}

/// What a name of a list stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    Family(Family),
    Source(Source),
}

impl Word {
    fn serves(self, collective: Collective) -> bool {
        match self {
            Word::Family(family) => family.serves(collective),
            Word::Source(source) => source.serves(collective),
        }
    }
}

/// The algorithms that a name stands for.
type Words = std::result::Result<Vec<Word>, Box<dyn std::error::Error>>;

/// The algorithms that may be chosen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restriction {
    /// The variable (or option) and its text.
    pub origin: Option<(String, String)>,
    rules: Vec<Rule>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Rule {
    collective: Option<Collective>,
    words: Vec<Word>,
    exclude: bool,
}

impl Restriction {
    /// The restriction of the environment, or else of the option, or else of a file.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for unknown names, with the known ones, and for NCCL's algorithms and
    /// protocols that need hardware which these ranks do not use.
    pub fn resolve(option: Option<&str>, environment: &Environment<'_>) -> Result<Option<Resolved<Self>>> {
        protocols(environment.text("NCCL_PROTO").map(|(text, _)| text).as_deref())?;
        let read = |variable: &str, text: &str, word: &dyn Fn(&str) -> Words| {
            let set = !text.trim().is_empty();
            set.then(|| Self::parse(variable, text, word)).transpose()
        };
        environment.find(
            &[
                ("CONSORT_ALGO", &|text| read("CONSORT_ALGO", text, &ours)),
                ("NCCL_ALGO", &|text| read("NCCL_ALGO", text, &nccl_name)),
            ],
            || option.map(|text| Self::parse("Options::algorithms", text, &ours)).transpose(),
        )
    }

    fn parse(variable: &str, text: &str, word: &dyn Fn(&str) -> Words) -> Result<Self> {
        let bad = |why: String| Error::invalid(format!("{variable} is {text:?}"), why);
        let mut rules = Vec::new();
        for list in text.split(';').map(str::trim).filter(|list| !list.is_empty()) {
            if list.eq_ignore_ascii_case("all") {
                rules.clear();
                continue;
            }
            let (collective, names) = match list.split_once(':') {
                Some((name, names)) => (Some(collective(name).map_err(&bad)?), names),
                None => (None, list),
            };
            let (exclude, names) = match names.trim().strip_prefix('^') {
                Some(names) => (true, names),
                None => (false, names),
            };
            let mut words = Vec::new();
            let names = || names.split(',').map(str::trim).filter(|name| !name.is_empty());
            for name in names() {
                words.extend(word(name).map_err(|error| bad(error.to_string()))?);
            }
            if names().next().is_none() {
                return Err(bad(format!("{list:?} names no algorithm")));
            }
            if words.is_empty() && !exclude {
                return Err(bad(format!(
                    "{list:?} needs a switch that aggregates, which these ranks have not; possible: Ring, Tree, PAT"
                )));
            }
            rules.push(Rule { collective, words, exclude });
        }
        // The ranks compare it as if nothing had been set.
        let origin = (!rules.is_empty()).then(|| (variable.to_owned(), text.trim().to_owned()));
        Ok(Restriction { origin, rules })
    }

    /// Whether no algorithm is excluded.
    pub fn is_none(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether `collective` may use `family`, which comes from `sources`.
    pub fn allows(&self, collective: Collective, family: Family, sources: &[Source]) -> bool {
        self.rule(collective).is_none_or(|rule| rule.says(family, sources) != rule.exclude)
    }

    /// Whether `collective` may use something that comes from `source`.
    pub fn allows_source(&self, collective: Collective, source: Source) -> bool {
        self.rule(collective).is_none_or(|rule| {
            let is_named = rule.words.iter().any(|word| matches!(word, Word::Source(of) if *of == source));
            is_named != rule.exclude
        })
    }

    /// Whether `family`, which comes from `sources`, is among those that alone are left for `collective`.
    pub fn names(&self, collective: Collective, family: Family, sources: &[Source]) -> bool {
        self.rule(collective).is_some_and(|rule| !rule.exclude && rule.says(family, sources))
    }

    /// The one that holds for a collective.
    fn rule(&self, collective: Collective) -> Option<&Rule> {
        let speaks = |rule: &&Rule| match rule.collective {
            Some(named) => named == collective,
            None => rule.exclude || rule.words.iter().any(|word| word.serves(collective)),
        };
        self.rules.iter().rev().find(speaks)
    }

    /// The restriction as text, for users and for comparison between ranks.
    pub fn text(&self) -> String {
        self.origin.as_ref().map_or_else(|| "all".to_owned(), |(_, text)| text.clone())
    }
}

impl Rule {
    fn says(&self, family: Family, sources: &[Source]) -> bool {
        self.words.iter().any(|word| match word {
            Word::Family(named) => *named == family,
            Word::Source(named) => sources.contains(named),
        })
    }
}

/// What a name of this library stands for.
fn ours(name: &str) -> Words {
    if let Some(source) = Source::named(name) {
        return Ok(vec![Word::Source(source)]);
    }
    let known = Source::ALL.map(Source::name).join(", ");
    let family: Family = name.parse().map_err(|error| format!("{error}, {known}"))?;
    Ok(vec![Word::Family(family)])
}

/// `all_reduce`, `AllReduce`, `allreduce`.
fn collective(name: &str) -> std::result::Result<Collective, String> {
    let plain = |text: &str| text.trim().to_ascii_lowercase().replace(['_', '-'], "");
    Collective::ALL.into_iter().find(|known| plain(known.name()) == plain(name)).ok_or_else(|| {
        let known = Collective::ALL.map(Collective::name).join(", ");
        format!("{name:?} is no collective; known: {known}")
    })
}

/// The algorithms of this library that NCCL's name stands for.
fn nccl_name(name: &str) -> Words {
    let families: &[Family] = match name.to_ascii_lowercase().as_str() {
        "ring" => &[Family::Ring, Family::BoxChain],
        "tree" => &[Family::Tree, Family::BoxTree, Family::RailTrees],
        "pat" => &[Family::Pat],
        // They need a switch that aggregates.
        "collnetdirect" | "collnetchain" | "collnet" | "nvls" | "nvlstree" => &[],
        _ => return Err(format!("{name:?} is no algorithm of NCCL; possible: Ring, Tree, PAT").into()),
    };
    Ok(families.iter().copied().map(Word::Family).collect())
}

/// Slots with counters are NCCL's `Simple`; there is no other protocol on host memory.
fn protocols(text: Option<&str>) -> Result<()> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(()) };
    let bad = |why: &str| {
        Err(Error::invalid(format!("NCCL_PROTO is {text:?}"), format!("{why}; possible: Simple")))
    };
    for list in text.split(';') {
        let names = list.split_once(':').map_or(list, |(_, names)| names).trim();
        let (exclude, names) = names.strip_prefix('^').map_or((false, names), |names| (true, names));
        let names: Vec<String> = names.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
        if let Some(name) = names.iter().find(|name| !["ll", "ll128", "simple"].contains(&name.as_str())) {
            return bad(&format!("{name:?} is no protocol of NCCL"));
        }
        if names.contains(&"simple".into()) == exclude {
            return bad("it leaves no protocol that host memory has");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(set: &[(&str, &str)]) -> Result<Restriction> {
        let lookup =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into());
        let found = Restriction::resolve(None, &Environment::from_lookup(lookup))?;
        Ok(found.map(|found| found.value).unwrap_or_default())
    }

    #[test]
    fn the_last_list_that_speaks_of_a_collective_holds() {
        let only = |text| resolve(&[("CONSORT_ALGO", text)]).expect("a restriction");
        let two = only("ring,doubling");
        assert!(two.allows(Collective::AllReduce, Family::Ring, &[]));
        assert!(two.allows(Collective::AllReduce, Family::Doubling, &[]));
        assert!(!two.allows(Collective::AllReduce, Family::Tree, &[]));
        assert!(two.allows(Collective::AllToAll, Family::Pairwise, &[]), "no ring for all-to-all at all");
        let without = only("^ring");
        assert!(!without.allows(Collective::AllReduce, Family::Ring, &[]));
        assert!(without.allows(Collective::AllReduce, Family::Tree, &[]));
        let each = only("tree;AllGather:ring; all_to_all : bruck");
        assert!(each.allows(Collective::AllReduce, Family::Tree, &[]));
        assert!(!each.allows(Collective::AllReduce, Family::Ring, &[]));
        assert!(each.allows(Collective::AllGather, Family::Ring, &[]));
        assert!(!each.allows(Collective::AllGather, Family::Bruck, &[]));
        assert!(!each.allows(Collective::AllToAll, Family::Pairwise, &[]));
        for text in [" all ", "tree;All"] {
            let all = only(text);
            assert!(
                all.is_none() && all.text() == Restriction::default().text(),
                "as what is shown for none"
            );
        }
        assert!(!only("all;ring").allows(Collective::AllReduce, Family::Tree, &[]));
        let bound = only("all_to_all:ring");
        assert!(
            Family::ALL
                .iter()
                .all(|family| *family == Family::Ring || !bound.allows(Collective::AllToAll, *family, &[]))
        );
    }

    #[test]
    fn what_is_found_is_named_by_where_it_comes_from() {
        let only = |text| resolve(&[("CONSORT_ALGO", text)]).expect("a restriction");
        let (collective, other) = (Collective::AllReduce, Family::Swing);
        let found = only("found-rings,File_Trees");
        assert!(
            found.allows(collective, other, &[Source::Rings])
                && found.names(collective, other, &[Source::Rings])
        );
        assert!(found.allows(collective, other, &[Source::Trees, Source::FileTrees]));
        assert!(!found.allows(collective, other, &[Source::Trees]) && !found.allows(collective, other, &[]));
        assert!(found.allows(Collective::AllToAll, Family::Pairwise, &[]), "no rings for all-to-all at all");
        let without = only("^found-trees");
        assert!(
            !without.allows(collective, other, &[Source::Trees]) && without.allows(collective, other, &[])
        );
        assert!(!without.names(collective, other, &[Source::Rings]));
        let unknown =
            resolve(&[("CONSORT_ALGO", "found-cubes")]).expect_err("nothing is so named").to_string();
        assert!(
            unknown.contains("known: pair, ring, ") && unknown.contains(", found-rings, found-trees, "),
            "{unknown}"
        );
    }

    #[test]
    fn ncclss_names_and_ours() {
        let nccl = resolve(&[("NCCL_ALGO", "Tree")]).expect("a restriction");
        assert!(
            nccl.allows(Collective::AllReduce, Family::Tree, &[])
                && !nccl.allows(Collective::AllReduce, Family::Ring, &[])
        );
        let both = resolve(&[("NCCL_ALGO", "Tree"), ("CONSORT_ALGO", "ring")]).expect("ours wins");
        assert!(both.allows(Collective::AllReduce, Family::Ring, &[]));
        for (text, why) in [
            (
                "NVLS",
                "\"NVLS\" needs a switch that aggregates, which these ranks have not; possible: Ring, Tree, PAT",
            ),
            ("rign", "\"rign\" is no algorithm of NCCL; possible: Ring, Tree, PAT"),
            ("frob:ring", "\"frob\" is no collective; known: all_reduce, "),
            (";:", "\"\" is no collective; known: all_reduce, "),
            ("AllReduce:", "\"AllReduce:\" names no algorithm"),
            ("^", "\"^\" names no algorithm"),
        ] {
            let error = resolve(&[("NCCL_ALGO", text)]).expect_err(text).to_string();
            assert!(error.contains(&format!("NCCL_ALGO is {text:?}; {why}")), "{error}");
        }
        for harmless in ["^NVLS,NVLSTree", "Ring,NVLS"] {
            let found = resolve(&[("NCCL_ALGO", harmless)]).expect(harmless);
            assert!(found.allows(Collective::AllReduce, Family::Ring, &[]));
        }
    }

    #[test]
    fn only_simple_is_a_protocol_here() {
        for text in ["Simple", "LL,Simple", "^LL,LL128", "allreduce:simple", ""] {
            assert!(resolve(&[("NCCL_PROTO", text)]).is_ok(), "{text}");
        }
        for text in ["LL", "LL,LL128", "^Simple", "simpel"] {
            let error = resolve(&[("NCCL_PROTO", text)]).expect_err(text).to_string();
            assert!(error.contains("possible: Simple"), "{error}");
        }
    }
}
