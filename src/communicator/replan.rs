//! The same ranks with another machine: what is planned after a wire was lost, or after wires were measured.
//!
//! Invariant: ranks agree on the machine in a collective of their own, so that from its number on all of them plan by it or none does. What was
//! started before goes on by the plan that it has. Absent: paths that are lost for good, for which ranks plan by themselves (`engine/changes`).

use super::Communicator;
use consort_algorithms::topology::{Topology, parse};
use consort_control::bootstrap;
use consort_settings::options::digest;
use consort_types::Rank;
use consort_types::call::Kind;
use consort_types::error::{Error, Result, list};

/// Whether a rank can plan by its machine, the machine's ranks, and a digest of its text.
const WORDS: usize = 3;

impl Communicator {
    /// A communicator of the same ranks whose calls are planned on `topology`, whatever the settings name: the graph that
    /// [`probe`](crate::probe) measured, or that of a machine in which a link, an adapter or a switch is gone. Every rank of
    /// this communicator must call it with the same machine; this communicator goes on as it was.
    ///
    /// Rank `i` is the topology's rank `i`. What the communicator has in common with this one (connections, memory of
    /// slots) is used by both.
    ///
    /// ```
    /// use consort::Communicator;
    /// use consort::planning::topology;
    ///
    /// let world = Communicator::local(4)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &world {
    ///         threads.spawn(move || {
    ///             let torus = topology::profile("torus:2x2").expect("a profile");
    ///             let replanned = comm.planned_on(&torus).expect("all ranks name the same");
    ///             assert_eq!(replanned.planning().topology().name, torus.name);
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As every collective; [`Error::InvalidArgument`] on all ranks when ranks name different machines, and when a machine has another
    /// number of ranks, with the ranks that named it.
    pub fn planned_on(&self, topology: &Topology) -> Result<Communicator> {
        let span = tracing::info_span!("replan", rank = self.rank(), topology = topology.name);
        let _entered = span.enter();
        let text = topology.to_string();
        // All ranks read the text, as they would a file of it.
        let can_be_read = parse(&text).is_ok_and(|read| read.ranks() == topology.ranks());
        let mine = [i64::from(can_be_read), i64::from(topology.ranks()), digest(&text).cast_signed()];
        let (number, all) = self.all_say(Kind::Replan, &mine)?;
        let said: Vec<[i64; WORDS]> = all.as_chunks().0.to_vec();
        agreed(&said, self.size())?;
        let core = self.core();
        let group = &core.group;
        let uid = bootstrap::name(&group.member.key, "replan", &[group.uid, number]);
        let mut settings = core.settings.clone();
        settings.preferences.topology = Some(text.into());
        Ok(self.with_settings(uid, group.members.clone(), settings))
    }
}

/// Whether all ranks, by what they said, can plan by one machine.
fn agreed(said: &[[i64; WORDS]], size: u32) -> Result<()> {
    let with = |is: &dyn Fn(&[i64; WORDS]) -> bool| -> Vec<Rank> {
        (0..).zip(said).filter(|(_, words)| is(words)).map(|(rank, _)| rank).collect()
    };
    let ranks_of =
        |ranks: &[Rank]| format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, list(ranks));
    let unreadable = with(&|words| words[0] != 1);
    if !unreadable.is_empty() {
        return Err(Error::invalid(
            format!("the topology of {} cannot be written and read back as text", ranks_of(&unreadable)),
            "give its nodes names of one word",
        ));
    }
    if let Some(words) = said.iter().find(|words| words[1] != i64::from(size)) {
        let here = with(&|other| other[1] == words[1]);
        return Err(Error::invalid(
            format!(
                "the topology of {} has {} ranks, and the communicator has {size}",
                ranks_of(&here),
                words[1]
            ),
            "name a topology of as many ranks",
        ));
    }
    let most = said.iter().max_by_key(|words| (with(&|other| other == *words).len(), words[2]));
    let others = with(&|words| Some(words) != most);
    if others.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{} named another topology than the other ranks", ranks_of(&others)),
        "pass the same topology on all ranks: measure or read it on one of them and broadcast its text",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;
    use crate::planning::{Algorithm, Collective, Schedule};
    use consort_algorithms::topology::profile;

    fn on_all<R: Send>(ranks: u32, run: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        let world = Communicator::local(ranks).expect("a world");
        std::thread::scope(|threads| {
            let run = &run;
            let all: Vec<_> = world.iter().map(|comm| threads.spawn(move || run(comm))).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn all_ranks_plan_by_the_machine_from_one_number_on() {
        let chosen = on_all(8, |comm| {
            let whole = profile("dgx-a100:1").expect("a profile");
            // Rank 5 has lost most of its links: a ring through it is as slow as it is.
            let lost = whole.map_links(|_, link| {
                let is_lost = [link.from.0, link.to.0].contains(&5);
                let part = if is_lost { 12 } else { 1 };
                consort_algorithms::topology::Link {
                    bandwidth_bytes_s: link.bandwidth_bytes_s / part,
                    ..link
                }
            });
            let mut choices = Vec::new();
            for topology in [&whole, &lost] {
                let replanned = comm.planned_on(topology).expect("all name the same");
                let mut data = vec![comm.rank() as f32; 70_001];
                replanned.all_reduce(&mut data, ReduceOp::Sum).expect("a sum");
                assert!(data.iter().all(|value| *value == 28.0));
                let explained = replanned.explain(Collective::AllReduce, 64 << 20).expect("a choice");
                choices.push(explained.to_string());
            }
            // The old one goes on.
            comm.barrier().expect("a barrier");
            choices
        });
        assert!(chosen.iter().all(|of| *of == chosen[0]), "all ranks choose alike: {chosen:?}");
        assert_ne!(chosen[0][0], chosen[0][1], "a lost wire changes the plan");
    }

    #[test]
    fn ranks_that_name_different_machines_are_named_on_all_ranks() {
        let errors = on_all(4, |comm| {
            let name = if comm.rank() == 2 { "torus:2x2" } else { "host:4" };
            let error = comm.planned_on(&profile(name).expect("a profile")).expect_err("they differ");
            comm.barrier().expect("the communicator goes on");
            error.to_string()
        });
        assert!(errors.iter().all(|error| error.contains("rank 2 named another topology")), "{errors:?}");
    }

    #[test]
    fn a_rank_that_registers_a_schedule_meanwhile_is_a_mismatch_on_both() {
        let mut world = Communicator::local(2).expect("a world");
        let errors: Vec<Error> = std::thread::scope(|threads| {
            let run = |comm: &mut Communicator| {
                if comm.rank() == 0 {
                    return comm.planned_on(&profile("host:2").expect("a profile")).expect_err("they differ");
                }
                let direct = Algorithm::Direct { first: 0 }.schedule(Collective::AllReduce, 2);
                let named = Schedule { name: "of-rank-1".into(), ..direct };
                comm.register_schedule(named).expect_err("they differ")
            };
            let all: Vec<_> = world.iter_mut().map(|comm| threads.spawn(move || run(comm))).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(errors.iter().all(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
    }

    #[test]
    fn a_machine_of_other_ranks_is_refused_with_the_rank_that_named_it() {
        let errors = on_all(3, |comm| {
            let name = if comm.rank() == 1 { "host:4" } else { "host:3" };
            let error = comm.planned_on(&profile(name).expect("a profile")).expect_err("one has 4 ranks");
            error.to_string()
        });
        let expected = "the topology of rank 1 has 4 ranks, and the communicator has 3";
        assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
    }
}
