//! The planner's settings: which algorithms, which bits, which machine, which measurements.
//!
//! Invariant: they are read once, when a communicator is made, and ranks compare them when they join. A tuning table
//! that cannot be used is a warning, not an error: the planner has prices of its own. Absent: prices.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use consort_algorithms::catalogue::Imported;

use super::named;
use super::restriction::Restriction;
use super::tuning::Tuning;
use crate::environment::{Environment, Origin, Resolved, Setting};
use consort_types::error::{Error, Result};

/// What the bits of a result may depend on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Determinism {
    /// The call (type, operator, count, root), the number of ranks, the settings, the machine's shape and its tuning
    /// table. The same call gives the same bits in every run and on every rank. A machine whose hosts have lost a path has another
    /// shape, from the call on from which ranks plan for it.
    #[default]
    Run,
    /// Type, operator, the root's values and the number of ranks alone. Contributions are folded from rank 0 to the
    /// last, whatever the size, the channels, the allowed algorithms and the machine.
    Invariant,
}

impl Determinism {
    /// The value of `CONSORT_DETERMINISM`.
    pub const fn name(self) -> &'static str {
        match self {
            Determinism::Run => "run",
            Determinism::Invariant => "invariant",
        }
    }
}

/// The planner's part of a communicator's settings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Preferences {
    /// The algorithms that may be chosen.
    pub restriction: Restriction,
    /// What bits may depend on.
    pub determinism: Determinism,
    /// The text of a topology or of a machine (`CONSORT_TOPOLOGY`), where it is not to be taken from the table of ranks: see
    /// [`graph_for`](super::graph_for).
    pub topology: Option<Arc<str>>,
    /// Measurements to choose by.
    pub tuning: Option<Arc<Tuning>>,
    /// Schedules that are candidates besides those of the catalogue. Their order settles ties.
    pub schedules: Vec<Imported>,
}

/// The planner's settings as [`Options`](super::Options) hold them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wishes {
    /// As `CONSORT_ALGO`.
    pub algorithms: Option<String>,
    /// As `CONSORT_DETERMINISM`.
    pub determinism: Option<Determinism>,
    /// As `CONSORT_TOPOLOGY`.
    pub topology: Option<String>,
    /// As `CONSORT_TUNING`.
    pub tuning: Option<PathBuf>,
    /// As [`Preferences::schedules`].
    pub schedules: Vec<Imported>,
    /// As `CONSORT_SCHEDULE_DIR`.
    pub schedule_directory: Option<PathBuf>,
}

impl Preferences {
    /// The preferences, and a [`Setting`] with its origin for each.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for unknown names, and for files that a setting names and that do not exist.
    pub fn resolve(wishes: &Wishes, environment: &Environment<'_>) -> Result<(Self, Vec<Setting>)> {
        let text = |name: &'static str, option: Option<String>| {
            let said = |text: &str| Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()));
            environment.find(&[(name, &said)], || Ok(option))
        };
        let setting_of = |name: &'static str, found: &Option<Resolved<String>>, default: &str| match found {
            None => Setting { name, value: default.to_owned(), origin: Origin::Default, variable: None },
            Some(Resolved { value, origin, variable }) => {
                Setting { name, value: value.clone(), origin: origin.clone(), variable: *variable }
            }
        };
        let directory = wishes.schedule_directory.as_ref().map(|path| path.to_string_lossy().into_owned());
        let directory = text("CONSORT_SCHEDULE_DIR", directory)?;
        // Before the names of algorithms are read, as theirs are among them.
        let schedules = schedules_of(wishes, directory.as_ref())?;
        let algorithms = Restriction::resolve(wishes.algorithms.as_deref(), environment)?;
        let wanted = text("CONSORT_DETERMINISM", wishes.determinism.map(|wanted| wanted.name().to_owned()))?;
        let determinism = match wanted.as_ref().map(|found| found.value.as_str()) {
            None => Determinism::default(),
            Some("run") => Determinism::Run,
            Some("invariant") => Determinism::Invariant,
            Some(text) => {
                return Err(Error::invalid(
                    format!("CONSORT_DETERMINISM is {text:?}"),
                    "it must be run or invariant",
                ));
            }
        };
        let named = text("CONSORT_TOPOLOGY", wishes.topology.clone())?;
        let table =
            text("CONSORT_TUNING", wishes.tuning.as_ref().map(|path| path.to_string_lossy().into_owned()))?;
        let mut settings = vec![
            algorithms.as_ref().map_or_else(
                || setting_of("CONSORT_ALGO", &None, "all"),
                |found| Setting {
                    name: "CONSORT_ALGO",
                    value: found.value.text(),
                    origin: found.origin.clone(),
                    variable: found.variable,
                },
            ),
            setting_of("CONSORT_SCHEDULE_DIR", &directory, ""),
            setting_of("CONSORT_DETERMINISM", &wanted, determinism.name()),
            setting_of("CONSORT_TOPOLOGY", &named, ""),
            setting_of("CONSORT_TUNING", &table, ""),
        ];
        let named = named.map(|found| found.value);
        let topology = named.as_deref().map(named::text_of);
        // A path in the options need not be text.
        let path = table.map(|found| match (found.origin, &wishes.tuning) {
            (Origin::Config, Some(path)) => path.clone(),
            _ => PathBuf::from(found.value),
        });
        let tuning = match (path, named) {
            (Some(path), _) => Some(read(&path, "the tuning table")?).and_then(|text| parse(&path, &text)),
            (None, Some(name)) => {
                let beside = PathBuf::from(format!("{name}.tuning"));
                let table = std::fs::read_to_string(&beside).ok().and_then(|text| parse(&beside, &text));
                if let Some(setting) = settings.last_mut().filter(|_| table.is_some()) {
                    (setting.value, setting.origin) = (beside.display().to_string(), Origin::Tuned);
                }
                table
            }
            (None, None) => None,
        };
        let preferences = Preferences {
            restriction: algorithms.map(|found| found.value).unwrap_or_default(),
            determinism,
            topology: topology.transpose()?,
            tuning: tuning.map(Arc::new),
            schedules,
        };
        Ok((preferences, settings))
    }

    /// The algorithms that may be chosen; imported schedules with their hash, as a name may mean another schedule on
    /// another rank.
    fn algorithms(&self) -> String {
        let imported = self.schedules.iter().map(|of| format!(", {}#{:016x}", of.name(), of.hash()));
        self.restriction.text() + &imported.collect::<String>()
    }

    /// The settings that must be equal on all ranks, by name.
    pub fn agreed(&self) -> [(&'static str, String); 4] {
        let hash = |text: &str| format!("{:016x}", digest(text));
        [
            ("algorithms", self.algorithms()),
            ("determinism", self.determinism.name().into()),
            ("topology", self.topology.as_deref().map_or_else(|| "of the ranks".into(), hash)),
            ("tuning table", self.tuning.as_ref().map_or_else(|| "none".into(), |t| hash(&t.to_string()))),
        ]
    }
}

/// The schedules of a program's options, and those of a directory.
fn schedules_of(wishes: &Wishes, directory: Option<&Resolved<String>>) -> Result<Vec<Imported>> {
    let mut schedules = wishes.schedules.clone();
    if let Some(found) = directory {
        // A path in the options need not be text.
        let path = match (&found.origin, &wishes.schedule_directory) {
            (Origin::Config, Some(path)) => path.clone(),
            _ => PathBuf::from(&found.value),
        };
        let of_files = super::schedules::of_directory(&path)?;
        schedules.extend(of_files.into_iter().filter(|of| !wishes.schedules.contains(of)));
    }
    Ok(schedules)
}

fn read(path: &Path, what: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(
            format!("{what} {} cannot be read: {error}", path.display()),
            "name a readable file, the same on every host, or none",
        )
    })
}

fn parse(path: &Path, text: &str) -> Option<Tuning> {
    match Tuning::parse(text) {
        Ok(table) => Some(table),
        Err(error) => {
            let place = path.display();
            crate::notice::warn(&format!("the tuning table {place} is ignored: {error}"));
            None
        }
    }
}

/// FNV-1a, which gives the same value on every machine.
pub fn digest(text: &str) -> u64 {
    digest_of_bytes(text.as_bytes())
}

pub(super) fn digest_of_bytes(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(set: &[(&str, &str)]) -> Result<Preferences> {
        let lookup =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into());
        Ok(Preferences::resolve(&Wishes::default(), &Environment::from_lookup(lookup))?.0)
    }

    #[test]
    fn nonsense_is_named() {
        for (name, text, says) in [
            ("CONSORT_DETERMINISM", "always", "run or invariant"),
            ("CONSORT_TOPOLOGY", "no-such-thing", "there are host:"),
            ("CONSORT_TUNING", "/nonexistent/table", "/nonexistent/table"),
            ("CONSORT_ALGO", "rings", "known: pair, ring"),
        ] {
            let error = resolve(&[(name, text)]).expect_err(text).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_differs_is_compared() {
        let names =
            |set: &[(&str, &str)]| resolve(set).expect("preferences").agreed().map(|(_, value)| value);
        let plain = names(&[]);
        for (at, set) in [
            (0, ("CONSORT_ALGO", "ring")),
            (1, ("CONSORT_DETERMINISM", "invariant")),
            (2, ("CONSORT_TOPOLOGY", "host:4")),
        ] {
            let other = names(&[set]);
            assert!((0..4).all(|index| (plain[index] == other[index]) == (index != at)), "{other:?}");
        }
    }
}
