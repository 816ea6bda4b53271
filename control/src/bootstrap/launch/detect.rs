//! Reading launchers' variables.
//!
//! Invariant: pure: the same environment gives the same launch; a launcher counts as present only by variables that it
//! alone sets, so that a shell inside an allocation is not mistaken for a rank. Absent: files, sockets, processes.

use super::Launch;
use crate::bootstrap::wire::SIZE_MAX;
use consort_types::error::{Error, Result};

/// An environment, and complaints about it.
struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(value) = self.text(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| {
            let shown: String = value.chars().take(40).collect();
            Error::invalid(
                format!("{name}={shown} is not a number"),
                format!(
                    "set {name} to a whole number from 0 on, or unset it if this process belongs to no job"
                ),
            )
        })
    }

    fn required(&self, name: &str, because: &str) -> Result<u32> {
        self.number(name)?.ok_or_else(|| {
            Error::invalid(
                format!("{because} is set and {name} is not"),
                format!("set both, or neither ({name}, {because})"),
            )
        })
    }

    /// Those that are set, joined: equal on all ranks of a job, different between jobs.
    fn identity(&self, names: &[&str]) -> Option<String> {
        let found: Vec<String> =
            names.iter().filter_map(|name| Some(format!("{name}={}", self.text(name)?))).collect();
        (!found.is_empty()).then(|| found.join(" "))
    }

    /// The four numbers under their names, checked against each other.
    fn launch(&self, launcher: &'static str, names: [&str; 4], job: Option<String>) -> Result<Launch> {
        let [rank_name, size_name, local_rank_name, local_size_name] = names;
        let rank = self.required(rank_name, size_name)?;
        let size = self.required(size_name, rank_name)?;
        let local_rank = self.number(local_rank_name)?;
        let local_size = self.number(local_size_name)?;
        let wrong = |what: String| {
            Err(Error::invalid(what, format!("check how {launcher} was started, or unset its variables")))
        };
        if size == 0 || size > SIZE_MAX {
            return wrong(format!("{size_name}={size} is not a number of ranks from 1 to {SIZE_MAX}"));
        }
        if rank >= size {
            return wrong(format!("{rank_name}={rank} is not below {size_name}={size}"));
        }
        if let Some(local_size) = local_size
            && (local_size == 0 || local_size > size)
        {
            return wrong(format!("{local_size_name}={local_size} does not fit {size_name}={size}"));
        }
        if let Some(local_rank) = local_rank
            && local_rank >= local_size.unwrap_or(size)
        {
            let (name, bound) = if local_size.is_some() {
                (local_size_name, local_size.unwrap_or(size))
            } else {
                (size_name, size)
            };
            return wrong(format!("{local_rank_name}={local_rank} is not below {name}={bound}"));
        }
        Ok(Launch { rank, size, local_rank, local_size, launcher, job })
    }
}

/// The first launcher that these variables show.
pub(super) fn detect(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
    let variables = Variables { lookup };
    let v = &variables;
    let open_mpi = v.has("OMPI_COMM_WORLD_RANK");
    let pmi = v.has("PMI_RANK") && v.has("PMI_SIZE");
    // SLURM_PROCID alone is set in batch scripts too; a step is what `srun` starts.
    let slurm = v.has("SLURM_PROCID") && v.has("SLURM_STEP_ID");
    if v.has("CONSORT_RANK") || v.has("CONSORT_SIZE") {
        let names = ["CONSORT_RANK", "CONSORT_SIZE", "CONSORT_LOCAL_RANK", "CONSORT_LOCAL_SIZE"];
        return v.launch("CONSORT_RANK", names, v.identity(&["CONSORT_JOB"])).map(Some);
    }
    let elastic = v.has("TORCHELASTIC_RUN_ID");
    let sure = elastic || ["MASTER_ADDR", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].iter().any(|name| v.has(name));
    let both = v.has("RANK") && v.has("WORLD_SIZE");
    if elastic && (v.has("RANK") || v.has("WORLD_SIZE")) || both && (sure || !(open_mpi || pmi || slurm)) {
        let job =
            v.identity(&["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"]);
        return v.launch("torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"], job).map(Some);
    }
    if open_mpi {
        let names =
            ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"].map(|name| format!("OMPI_COMM_WORLD_{name}"));
        let job = v.identity(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"]);
        return v.launch("Open MPI", names.each_ref().map(String::as_str), job).map(Some);
    }
    // `srun --mpi=pmi2` sets PMI_RANK as well; Slurm's own variables then say more.
    if pmi && (v.has("MPI_LOCALRANKID") || !slurm) {
        let job = v.identity(&["PMI_JOBID", "PMI_PORT"]);
        return v
            .launch("MPICH", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"], job)
            .map(Some);
    }
    if slurm {
        return from_slurm(v).map(Some);
    }
    Ok(None)
}

fn from_slurm(v: &Variables<'_>) -> Result<Launch> {
    let size_name = if v.has("SLURM_STEP_NUM_TASKS") { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
    let nodes_name = if v.has("SLURM_STEP_NUM_NODES") { "SLURM_STEP_NUM_NODES" } else { "SLURM_NNODES" };
    let job = v.identity(&["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"]);
    // Slurm has no variable for the number of ranks on this node, so it is put together below.
    let mut launch = v.launch("Slurm", ["SLURM_PROCID", size_name, "SLURM_LOCALID", ""], job)?;
    launch.local_size = if v.number(nodes_name)? == Some(1) {
        Some(launch.size)
    } else if let (Some(tasks), Some(node)) = (v.text("SLURM_STEP_TASKS_PER_NODE"), v.number("SLURM_NODEID")?)
    {
        let Some(tasks) = tasks_on(&tasks, node) else {
            return Err(Error::invalid(
                format!("SLURM_STEP_TASKS_PER_NODE={tasks} says nothing about SLURM_NODEID={node}"),
                "check how srun was started",
            ));
        };
        Some(tasks)
    } else {
        None
    };
    let local_rank = launch.local_rank.unwrap_or(0);
    if let Some(local_size) = launch.local_size
        && (local_rank >= local_size || local_size > launch.size)
    {
        return Err(Error::invalid(
            format!(
                "SLURM_LOCALID={local_rank} does not fit {local_size} tasks on this node ({size_name}={})",
                launch.size
            ),
            "check how srun was started",
        ));
    }
    Ok(launch)
}

/// The number for `node` in Slurm's shorthand, for example `2(x3),1`.
fn tasks_on(shorthand: &str, node: u32) -> Option<u32> {
    let mut first = 0u32;
    for part in shorthand.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks.parse().ok()?, nodes.strip_suffix(')')?.parse::<u32>().ok()?),
            None => (part.parse().ok()?, 1),
        };
        first = first.checked_add(nodes)?;
        if node < first {
            return Some(tasks);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(environment: &str) -> Result<Option<Launch>> {
        let pairs: Vec<(&str, &str)> =
            environment.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        Launch::from_lookup(&|name| {
            pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn numbers(launch: &Launch) -> (u32, u32, Option<u32>, Option<u32>, &'static str) {
        (launch.rank, launch.size, launch.local_rank, launch.local_size, launch.launcher)
    }

    // Open MPI 4.1.4 and Hydra 4.0.2 as recorded, shortened to what is read and its neighbours; torchrun and Slurm put
    // together from the variables that were seen with them.
    const TORCHRUN: &str = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=localhost \
        MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True";
    const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
        OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=1 PMIX_NAMESPACE=1913192449 \
        OMPI_MCA_ess_base_jobid=1913192449 OMPI_MCA_orte_hnp_uri=1913192448.0;tcp://192.0.2.2:35409";
    const HYDRA: &str =
        "PMI_RANK=1 PMI_SIZE=2 PMI_FD=8 HYDI_CONTROL_FD=7 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
    const SLURM: &str = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_JOB_ID=7 SLURM_STEP_ID=0 \
        SLURM_NNODES=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_GTIDS=0,1";
    const SLURM_TWO_NODES: &str = "SLURM_PROCID=4 SLURM_NTASKS=5 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_JOB_ID=7 \
        SLURM_STEP_ID=1 SLURM_NNODES=3 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE=2(x2),1";

    #[test]
    fn each_launcher_is_recognised() {
        let expected = [
            (TORCHRUN, (1, 2, Some(1), Some(2), "torchrun")),
            (OPEN_MPI, (1, 2, Some(1), Some(2), "Open MPI")),
            (HYDRA, (1, 2, Some(1), Some(2), "MPICH")),
            (SLURM, (1, 2, Some(1), Some(2), "Slurm")),
            (SLURM_TWO_NODES, (4, 5, Some(0), Some(1), "Slurm")),
            ("CONSORT_RANK=0 CONSORT_SIZE=3", (0, 3, None, None, "CONSORT_RANK")),
            ("RANK=0 WORLD_SIZE=3", (0, 3, None, None, "torchrun")),
        ];
        for (environment, numbers_expected) in expected {
            let launch = launch(environment).unwrap().unwrap();
            assert_eq!(numbers(&launch), numbers_expected, "{environment}");
        }
    }

    #[test]
    fn the_first_in_order_wins() {
        let all = |first: &str| format!("{first} {TORCHRUN} {OPEN_MPI} {HYDRA} {SLURM}");
        assert_eq!(launch(&all("CONSORT_RANK=0 CONSORT_SIZE=1")).unwrap().unwrap().launcher, "CONSORT_RANK");
        assert_eq!(launch(&all("")).unwrap().unwrap().launcher, "torchrun");
        assert_eq!(launch(&format!("{OPEN_MPI} {HYDRA} {SLURM}")).unwrap().unwrap().launcher, "Open MPI");
        // Hydra starts its proxies by srun, so each rank sees the proxy's SLURM_PROCID.
        assert_eq!(launch(&format!("{HYDRA} {SLURM}")).unwrap().unwrap().launcher, "MPICH");
        let pmi2 = format!("PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=7.0 {SLURM}");
        assert_eq!(launch(&pmi2).unwrap().unwrap().launcher, "Slurm");
        assert_eq!(launch(&format!("RANK=0 WORLD_SIZE=9 {SLURM}")).unwrap().unwrap().launcher, "Slurm");
    }

    #[test]
    fn shells_inside_an_allocation_are_no_ranks() {
        for environment in [
            "",
            "HOME=/root RANK=7",
            "WORLD_SIZE=2",
            "SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_NNODES=1",
            "SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0",
            "CONSORT_RANK= CONSORT_SIZE=",
        ] {
            assert_eq!(launch(environment).unwrap(), None, "{environment}");
        }
    }

    #[test]
    fn malformed_values_name_their_variable() {
        let cases = [
            ("RANK=abc WORLD_SIZE=2", "RANK=abc"),
            ("RANK=-1 WORLD_SIZE=2", "RANK=-1"),
            ("RANK=2 WORLD_SIZE=2", "RANK=2 is not below WORLD_SIZE=2"),
            ("RANK=0 WORLD_SIZE=99999999999", "WORLD_SIZE=99999999999"),
            ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2"),
            ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=x", "LOCAL_RANK=x"),
            ("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3"),
            ("TORCHELASTIC_RUN_ID=a RANK=0", "WORLD_SIZE"),
            ("CONSORT_RANK=0", "CONSORT_SIZE"),
            ("CONSORT_SIZE=2", "CONSORT_RANK"),
            ("CONSORT_RANK=0 CONSORT_SIZE=0", "CONSORT_SIZE=0"),
            ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE"),
            ("OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=x"),
            ("PMI_RANK=x PMI_SIZE=2", "PMI_RANK=x"),
            ("SLURM_PROCID=0 SLURM_STEP_ID=0", "SLURM_NTASKS"),
            (
                "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(y2)",
                "SLURM_STEP_TASKS_PER_NODE=2(y2)",
            ),
            // Found by the fuzzer: without SLURM_LOCALID it was not checked.
            (
                "SLURM_PROCID=4 SLURM_STEP_ID=0 SLURM_NTASKS=5 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=0",
                "0 tasks on this node",
            ),
        ];
        for (environment, named) in cases {
            let error = launch(environment).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
            assert!(error.to_string().contains(named), "{environment}: {error}");
        }
    }

    #[test]
    fn jobs_are_told_apart_and_their_ranks_are_not() {
        let job = |environment: &str| launch(environment).unwrap().unwrap().job;
        for environment in [TORCHRUN, OPEN_MPI, SLURM] {
            let other_rank = environment
                .replace("RANK=1", "RANK=0")
                .replace("SLURM_PROCID=1", "SLURM_PROCID=0")
                .replace("LOCALID=1", "LOCALID=0");
            assert_ne!(environment, other_rank);
            assert_eq!(job(environment), job(&other_rank));
        }
        assert_ne!(job(TORCHRUN), job(&TORCHRUN.replace("29500", "29501")));
        assert_ne!(job(TORCHRUN), job(&TORCHRUN.replace("RESTART_COUNT=0", "RESTART_COUNT=1")));
        assert_ne!(job(OPEN_MPI), job(&OPEN_MPI.replace("NAMESPACE=1913192449", "NAMESPACE=1913192450")));
        assert_ne!(job(SLURM), job(&SLURM.replace("STEP_ID=0", "STEP_ID=1")));
        assert_eq!(job(HYDRA), None, "Hydra's variables do not name the job");
    }

    #[test]
    fn slurm_shorthand() {
        let of = |node| tasks_on("2(x3),1,4(x2)", node);
        assert_eq!([of(0), of(2), of(3), of(5), of(6)], [Some(2), Some(2), Some(1), Some(4), None]);
        for wrong in ["", "x", "2(x", "2(x)", "2(x99999999999)", "2(x9", "2(x9)x", "2(x4),x", "2(x4)(x9)"] {
            assert_eq!(tasks_on(wrong, 5), None, "{wrong}");
        }
        // As many nodes as there are numbers, and one more.
        let all = "4294967295(x4294967295),1";
        assert_eq!([tasks_on(all, 3), tasks_on(all, u32::MAX)], [Some(u32::MAX), None]);
    }
}
