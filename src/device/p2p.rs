//! Whether a rank's device may share memory with its peers' devices: what NCCL's variables say of it.
//!
//! Invariant: a rank's own answer, which depends on its process alone; the ranks share memory when all of them may.
//! Absent: whether devices can reach each other, which the driver and a self-test say.

use consort_cuda::{Device, PeerStatus};

use super::table::VARIABLE;
use consort_settings::environment::{Environment, Spelling, integer};
use consort_types::error::Result;

/// How far apart two devices may be that share memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    /// As far as they reach each other.
    Any,
    /// Linked by NVLink.
    NvLink,
    /// Not even close together.
    Never,
}

/// Whether the device of this rank may share memory with its peers', in this process's environment.
pub(super) fn is_allowed(device: &Device) -> Result<bool> {
    Ok(match limit(&Environment::of_process())? {
        Limit::Any => true,
        Limit::Never => false,
        // Who the peers are is not known yet, so all devices of the host are asked for.
        Limit::NvLink => PeerStatus::is_linked_to_all(device).unwrap_or(false),
    })
}

/// A path that is named counts before the level, as `CONSORT_*` does before `NCCL_*`.
fn limit(environment: &Environment<'_>) -> Result<Limit> {
    let named = |text: &str| Ok((!matches!(text.trim(), "" | "auto")).then_some(Limit::Any));
    let disabled = |text: &str| Ok((integer(text) == Some(1)).then_some(Limit::Never));
    let level = |text: &str| Ok(level(text));
    let spellings: [Spelling<'_, Limit>; 3] =
        [(VARIABLE, &named), ("NCCL_P2P_DISABLE", &disabled), ("NCCL_P2P_LEVEL", &level)];
    Ok(environment.find(&spellings, || Ok(None))?.map_or(Limit::Any, |found| found.value))
}

/// A level by its name or by its number of before NCCL 2.5. As there, a text that is neither counts as not said.
fn level(text: &str) -> Option<Limit> {
    match text.trim() {
        "LOC" => Some(Limit::Never),
        "NVL" | "NVB" | "C2C" => Some(Limit::NvLink),
        "PIX" | "PXB" | "P2C" | "PXN" | "PHB" | "SYS" => Some(Limit::Any),
        text => match integer(text)? {
            0 => Some(Limit::Never),
            1.. => Some(Limit::Any),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit_of(set: &[(&str, &str)]) -> Limit {
        let lookup =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        limit(&Environment::from_lookup(lookup)).expect("no text is an error")
    }

    #[test]
    fn the_switch_counts_before_the_level_and_a_named_path_before_both() {
        assert_eq!(limit_of(&[]), Limit::Any);
        assert_eq!(limit_of(&[("NCCL_P2P_DISABLE", "1")]), Limit::Never);
        assert_eq!(limit_of(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_LEVEL", "SYS")]), Limit::Never);
        assert_eq!(limit_of(&[("NCCL_P2P_DISABLE", "0"), ("NCCL_P2P_LEVEL", "LOC")]), Limit::Never);
        for (path, limit) in [("kernels", Limit::Any), ("auto", Limit::Never), ("", Limit::Never)] {
            assert_eq!(
                limit_of(&[("NCCL_P2P_DISABLE", "1"), ("CONSORT_DEVICE_PATH", path)]),
                limit,
                "{path}"
            );
        }
    }

    #[test]
    fn levels_have_names_and_numbers() {
        for (text, limit) in [
            ("LOC", Limit::Never),
            ("0", Limit::Never),
            ("NVL", Limit::NvLink),
            ("PIX", Limit::Any),
            ("PXB", Limit::Any),
            ("PHB", Limit::Any),
            ("SYS", Limit::Any),
            ("1", Limit::Any),
            ("5", Limit::Any),
            ("near", Limit::Any),
            ("-1", Limit::Any),
            ("", Limit::Any),
        ] {
            assert_eq!(limit_of(&[("NCCL_P2P_LEVEL", text)]), limit, "{text}");
        }
    }
}
