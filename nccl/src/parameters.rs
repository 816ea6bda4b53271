//! Variables as numbers and texts, for clients that ask by name (`ncclParam*`).
//!
//! A value is the environment's, or else a file's, or else NCCL's default, whether it has an effect here or not.
//!
//! Invariant: a number is returned only in a type that can hold it. Absent: handles and memory for C.

use super::environment::{Kind, Variable, variables};
use super::log;
use consort_settings::environment::{Environment, Origin, Resolved, whole};
use consort_types::error::{Error, Result};

/// NCCL's value of an unset number that the config decides.
const UNDEFINED: i128 = i32::MIN as i128;

pub use super::environment::{Variable as Parameter, find};

impl Variable {
    /// Its text now, and where it came from.
    pub fn text(&self) -> Resolved<String> {
        self.text_in(&Environment::of_process())
    }

    fn text_in(&self, environment: &Environment<'_>) -> Resolved<String> {
        let (name, default) = (self.name, self.default);
        match environment.text(name) {
            Some((value, origin)) => Resolved { value, origin, variable: Some(name) },
            None => Resolved { value: default.to_owned(), origin: Origin::Default, variable: None },
        }
    }

    /// Its present value as a number: `i8` to `i64`, `u8` to `u64`. A value that only a config decides is
    /// -2147483648; a text that is no number counts as unset, as in NCCL.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is no number or does not fit.
    pub fn number<T: TryFrom<i128>>(&self) -> Result<T> {
        self.number_in(&Environment::of_process())
    }

    fn number_in<T: TryFrom<i128>>(&self, environment: &Environment<'_>) -> Result<T> {
        let Variable { name, kind, default, .. } = *self;
        if !matches!(kind, Kind::Flag | Kind::Integer) {
            return Err(Error::invalid(format!("{name} is a text, not a number"), "ask for it as a text"));
        }
        let set = environment.text(name).and_then(|(text, _)| whole(&text));
        let number = set.or_else(|| whole(default)).unwrap_or(UNDEFINED);
        T::try_from(number).map_err(|_| {
            Error::invalid(
                format!("{name} is {number}, which the type asked for does not hold"),
                "ask for a wider one",
            )
        })
    }
}

/// The names of all parameters, in the order of the alphabet.
pub fn keys() -> Vec<&'static str> {
    let mut keys: Vec<&'static str> = variables().map(|variable| variable.name).collect();
    keys.sort_unstable();
    keys
}

/// All parameters as lines `NAME=value (origin)`, in the order of the alphabet.
fn dump_of(environment: &Environment<'_>) -> String {
    let lines = keys().into_iter().filter_map(find).map(|parameter| {
        let Resolved { value, origin, .. } = parameter.text_in(environment);
        format!("{}={value} ({origin})\n", parameter.name)
    });
    lines.collect()
}

/// Writes all parameters to the log, whatever `NCCL_DEBUG` says: lines `NAME=value (origin)`, in the order of the alphabet.
pub fn dump_all() {
    log::always(dump_of(&Environment::of_process()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Environment<'static> {
        let set: Vec<(String, String)> =
            set.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Environment::from_lookup(move |name| {
            set.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
        })
    }

    fn parameter(key: &str) -> Parameter {
        find(key).expect("a parameter")
    }

    #[test]
    fn numbers_fit_or_are_errors() {
        let retries = parameter("NCCL_IB_RETRY_CNT");
        let number = |text: &str| retries.number_in::<i8>(&of(&[("NCCL_IB_RETRY_CNT", text)]));
        assert_eq!(number("127").expect("fits"), 127);
        assert_eq!(number("many").expect("the default"), 7);
        assert!(number("128").expect_err("too large").to_string().contains("NCCL_IB_RETRY_CNT is 128"));
        let none = of(&[]);
        assert_eq!(retries.number_in::<u64>(&none).expect("the default"), 7);
        let undefined = parameter("NCCL_MIN_CTAS");
        assert_eq!(undefined.number_in::<i32>(&none).expect("undefined"), i32::MIN);
        assert!(undefined.number_in::<u64>(&none).is_err() && undefined.number_in::<i16>(&none).is_err());
        let most = of(&[("NCCL_MIN_CTAS", "18446744073709551615")]);
        assert_eq!(undefined.number_in::<u64>(&most).expect("fits"), u64::MAX);
        assert!(undefined.number_in::<i64>(&most).is_err());
        assert!(parameter("NCCL_ALGO").number_in::<i64>(&none).is_err(), "a text");
    }

    #[test]
    fn texts_keys_and_the_dump() {
        assert_eq!(find("NCCL_FROB"), None);
        let set = of(&[("NCCL_NET", "Socket")]);
        let found = parameter("NCCL_NET").text_in(&set);
        assert_eq!((found.value.as_str(), found.origin), ("Socket", Origin::Nccl));
        let keys = keys();
        assert!(keys.is_sorted() && keys.contains(&"NCCL_NET"));
        let dump = dump_of(&set);
        assert_eq!(dump.lines().count(), keys.len());
        assert!(
            dump.contains("\nNCCL_NET=Socket (environment)\nNCCL_NETDEVS_POLICY=AUTO (default)\n"),
            "{dump}"
        );
    }
}
