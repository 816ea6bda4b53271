//! Schedules that a program hands to a communicator that exists.
//!
//! Invariant: the settings of a communicator are fixed for its life, as choices and compiled operations follow from
//! them. So the ranks compare what they register, and go on with a communicator of the same ranks that has it.
//! Absent: what a schedule is (`Options::schedule`, `planning::language`).

use consort_algorithms::Schedule;
use consort_algorithms::catalogue::{Algorithm, Imported};
use consort_control::bootstrap;
use consort_settings::options::imported;
use consort_types::call::Kind;
use consort_types::error::{Error, Result, list};

use super::Communicator;
use crate::Rank;

impl Communicator {
    /// Makes a schedule a candidate for its collective, as [`Options::schedule`](crate::Options::schedule) does when
    /// a communicator is made. All ranks call it, with equal schedules. From then on the planner chooses it where its
    /// price is the lowest, and the algorithm that is returned names it for
    /// [`with_algorithm`](Communicator::with_algorithm). Connections are made anew.
    ///
    /// ```
    /// use consort::planning::language::{Program, output};
    /// use consort::planning::Collective;
    /// use consort::{Communicator, ReduceOp};
    ///
    /// let mut ranks = Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &mut ranks {
    ///         threads.spawn(move || {
    ///             let program = Program::new(Collective::AllReduce, 2);
    ///             for rank in 0..2 {
    ///                 program.input(rank, 0).reduce_to(program.input(1 - rank, 0), output(0));
    ///             }
    ///             let schedule = program.schedule("of-two").expect("it is right");
    ///             let algorithm = comm.register_schedule(schedule).expect("both register it");
    ///             let mut values = [comm.rank() + 1; 5];
    ///             comm.with_algorithm(algorithm).all_reduce(&mut values, ReduceOp::Sum).expect("both call it");
    ///             assert_eq!(values, [3; 5]);
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the verifier refuses the schedule, where it is for another number of ranks or
    /// its name has another meaning; [`Error::Mismatch`] on all ranks where one of them registers another schedule or
    /// refuses its own, with the ranks. The communicator stays as it was then. Otherwise as every collective.
    pub fn register_schedule(&mut self, schedule: Schedule) -> Result<Algorithm> {
        let mine = self.import(schedule);
        // Two words: the call that names a machine says three, so that they differ.
        let words = mine.as_ref().map_or([0; 2], |of| [1, of.hash() as i64]);
        let (number, all) = self.all_say(Kind::Replan, &words)?;
        let imported = mine?;
        let said: Vec<&[i64]> = all.chunks_exact(words.len()).collect();
        let others: Vec<Rank> =
            (0..).zip(&said).filter(|(_, said)| **said != words).map(|(rank, _)| rank).collect();
        if !others.is_empty() {
            let same: Vec<Rank> = (0..self.size()).filter(|rank| !others.contains(rank)).collect();
            let difference = format!(
                "ranks {} register the schedule {:?}; ranks {} another one, or one that is refused",
                list(&same),
                imported.name(),
                list(&others)
            );
            return Err(Error::Mismatch { sequence: number, difference });
        }
        let core = self.core();
        let mut settings = core.settings.clone();
        if !settings.preferences.schedules.contains(&imported) {
            settings.preferences.schedules.push(imported);
        }
        let uid =
            bootstrap::name(&core.group.member.key, "register", &[core.group.uid, number, imported.hash()]);
        let next = self.with_settings(uid, core.group.members.clone(), settings);
        *self = Communicator { timeout: self.timeout, algorithm: self.algorithm, ..next };
        Ok(Algorithm::Imported(imported))
    }

    fn import(&self, schedule: Schedule) -> Result<Imported> {
        if schedule.ranks != self.size() {
            let what = format!("the schedule {:?} is one of {} ranks", schedule.name, schedule.ranks);
            return Err(Error::invalid(what, format!("register one of {} ranks", self.size())));
        }
        imported(schedule, &self.core().settings.preferences.schedules)
    }
}
