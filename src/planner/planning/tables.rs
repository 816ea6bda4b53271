//! The tuning table: where it acts, and what is warned of where it does not.
//!
//! Invariant: a table acts on the machine and the path that it was measured on. Absent: reading it.

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;

use super::super::carriers::Path;
use super::Planning;
use consort_settings::options::{Tuning, TuningLine};

impl Planning {
    /// Says so where the tuning table acts neither on host memory nor on devices.
    pub(super) fn expect_table(&self) {
        if self.table_of(None).is_none() && !self.has_table_of_devices() {
            self.table_ignored("", &format!(" and this is \"{}\"", self.machine()));
        }
    }

    /// The tuning table, where it is one of the host's links, or of a path of devices: the machine of such a table ends in
    /// ` device=` and the path.
    pub(in super::super) fn table_of(&self, path: Option<Path>) -> Option<&Tuning> {
        let table = self.preferences.tuning.as_deref()?;
        let suffix = path.map_or_else(String::new, |path| format!(" device={path}"));
        (table.machine == self.machine() + &suffix).then_some(table)
    }

    fn has_table_of_devices(&self) -> bool {
        Path::ALL.into_iter().any(|path| self.table_of(Some(path)).is_some())
    }

    /// Says so where a tuning table is not one of the path that a communicator's devices take: it does not act then.
    pub(crate) fn expect_table_of(&self, path: Path) {
        self.table_is_placed.get_or_init(|| ());
        let path = Some(path).filter(|path| *path != Path::Host);
        if self.table_of(path).is_none() {
            let taken = path.map_or("host", Path::name);
            self.table_ignored(&format!(" on devices that take the {taken} path"), "");
        }
    }

    /// Says once that a tuning table of devices does not act on calls on host memory, unless devices were asked for theirs.
    pub(in super::super) fn expect_table_of_host(&self) {
        if self.has_table_of_devices() {
            self.table_is_placed.get_or_init(|| self.table_ignored(" on host memory", ""));
        }
    }

    fn table_ignored(&self, on: &str, and: &str) {
        if let Some(table) = &self.preferences.tuning
            && self.table_is_warned_of.set(()).is_ok()
        {
            consort_settings::notice::warn(&format!(
                "the tuning table is ignored{on}: it was measured on \"{}\"{and}",
                table.machine
            ));
        }
    }

    pub(super) fn measured(
        &self,
        collective: Collective,
        bytes: u64,
        allowed: &[Algorithm],
        ignored: fn(&TuningLine, &str),
    ) -> Option<&TuningLine> {
        let line = self.table_of(None)?.find(collective, self.ranks_of(collective), bytes)?;
        if !allowed.contains(&line.algorithm) {
            let why = self.excludes(line.algorithm, collective, allowed);
            ignored(line, &why.unwrap_or_default());
            return None;
        }
        // Where no hash can be had the version of the planner, which was compared, must do.
        let fold = if collective.reduces() { self.fold_hash(line.algorithm, collective) } else { None };
        if fold.is_some_and(|fold| fold != line.fold_hash) {
            ignored(line, "it folds in another order than when it was measured");
            return None;
        }
        Some(line)
    }

    /// Seconds that the tuning table has for an algorithm in a size class.
    pub(in super::super) fn measured_s(
        &self,
        path: Option<Path>,
        algorithm: Algorithm,
        collective: Collective,
        bytes: u64,
    ) -> Option<f64> {
        let shape = (collective, self.ranks_of(collective), bytes, algorithm);
        let same = |line: &&TuningLine| (line.collective, line.ranks, line.bytes, line.algorithm) == shape;
        let line = self.table_of(path)?.lines.iter().find(same)?;
        Some(line.nanoseconds as f64 * 1e-9)
    }
}

/// Says that a line of a tuning table does not act, and why.
pub(in super::super) fn line_ignored(line: &TuningLine, why: &str) {
    let TuningLine { collective, ranks, algorithm, .. } = line;
    consort_settings::notice::warn(&format!(
        "a line of the tuning table is ignored: {algorithm} of {collective} over {ranks} ranks: {why}"
    ));
}
