//! Plans without a communicator: for a host of a number of cores, and for machines that need not exist.
//!
//! Invariant: settings and files mean what they mean to a job, and what of them is of no use is warned of. Absent: choosing.

use consort_algorithms::topology::Topology;

use super::super::machine::graph::Graphs;
use super::super::machine::{Between, Machine, boxes_of, even_boxes};
use super::Planning;
use consort_settings::options::Settings;
use consort_types::error::{Error, Result};

impl Planning {
    /// A plan for `ranks` ranks on one host of `cores` cores, without a communicator.
    ///
    /// # Errors
    /// As joining with these options.
    pub fn for_host(ranks: u32, cores: u32, options: &crate::Options) -> Result<Self> {
        if ranks == 0 || cores == 0 {
            return Err(Error::invalid("0 ranks or cores", "ask for at least 1"));
        }
        let settings = Settings::resolve(options)?;
        let known = settings.exchanged.machine.as_ref().map(|text| Graphs::of_one_host(text, ranks));
        let channels = settings.exchanged.graphs_mark();
        let graphs = Graphs { channels, ..known.unwrap_or_default() };
        let planning = Self::new(Machine { graphs, ..Machine::of_one_host(ranks, cores) }, &settings);
        planning.complain();
        Ok(planning)
    }

    /// A plan for the ranks of a machine that need not exist.
    ///
    /// # Errors
    /// As joining with these options.
    pub fn for_topology(topology: &Topology, options: &crate::Options) -> Result<Self> {
        let mut settings = Settings::resolve(options)?;
        settings.preferences.topology = Some(topology.to_string().into());
        let machine = Machine {
            ranks: topology.ranks(),
            hosts: topology.boxes().len() as u32,
            // The profiles of these names are of hosts with sockets and with RDMA between them.
            between: match topology.name.split_once(':') {
                Some(("tcp", _)) => Between::Sockets,
                Some(("rdma", _)) => Between::Rdma,
                _ => Between::Memory,
            },
            per_box: even_boxes(topology),
            graphs: Graphs { channels: settings.exchanged.graphs_mark(), ..Graphs::default() },
            host_of: boxes_of(topology),
            ..Machine::of_one_host(topology.ranks(), topology.ranks())
        };
        let planning = Self::new(machine, &settings);
        planning.complain();
        Ok(planning)
    }

    /// Says what of files is of no use to a plan without a communicator, as joining does for one.
    fn complain(&self) {
        if let Some((why, _)) = self.misfit() {
            consort_settings::notice::warn(&format!("{why}; the plan goes on without it"));
        }
        if let Some(why) = self.channels_misfit() {
            consort_settings::notice::warn(&format!("NCCL_GRAPH_FILE: {why}; the plan goes on without it"));
        }
    }
}
