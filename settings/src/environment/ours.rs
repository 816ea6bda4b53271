//! This library's own variables.
//!
//! Invariant: every variable that a communicator's settings have is here. Absent: variables that only tests read.

/// A variable of this library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ours {
    /// Its name.
    pub name: &'static str,
    /// The value where it is not set.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

const fn variable(name: &'static str, default: &'static str, meaning: &'static str) -> Ours {
    Ours { name, default, meaning }
}

const OURS: [Ours; 33] = [
    variable(
        "CONSORT_TIMEOUT",
        "1800",
        "seconds until an operation fails on all ranks; through the C interface none unless it is set",
    ),
    variable("CONSORT_JOIN_TIMEOUT", "300", "seconds until joining fails"),
    variable(
        "CONSORT_CONNECT_TIMEOUT",
        "30",
        "seconds until a data connection that both sides are making counts as broken",
    ),
    variable("CONSORT_REPORT_AFTER", "60", "seconds until an operation that does not end is reported"),
    variable(
        "CONSORT_PATH_LOST_AFTER",
        "30",
        "seconds for which one of several paths to another host is down before ranks plan for what is left, and is back before they \
         plan for all again; `never`: plans stay",
    ),
    variable(
        "CONSORT_TRANSPORT",
        "auto",
        "`auto`, `shm` (memory only), `tcp`, `verbs` (RDMA between all ranks) or `plugin` (NCCL's network plugin that \
         NCCL_NET_PLUGIN names, between all ranks); equal on all ranks",
    ),
    variable(
        "CONSORT_PIN",
        "none",
        "the cores, among those that it may use, to which the thread that joins as a rank is pinned: `cores` (one of them), \
         `domains` (those of one last-level cache or memory node) or `none`",
    ),
    variable(
        "CONSORT_CMA",
        "",
        "accepted without effect, with a warning: ranks read no other rank's memory through the system (`process_vm_readv`) any more",
    ),
    variable(
        "CONSORT_DEVICE",
        "auto",
        "through the C interface: `auto` puts a communicator on the device that is current where it is made, if the \
         program uses it, `host` never asks the CUDA driver, `cuda` demands a device; the first communicator of a process decides",
    ),
    variable(
        "CONSORT_DEVICE_PATH",
        "auto",
        "how operations on devices run: `fused`, `kernels`, `streams` or `host`; equal on all ranks",
    ),
    variable(
        "CONSORT_NCCL_VERSION",
        "2.32.3",
        "the version that `ncclGetVersion` returns, for clients that must see another (`2.27.3` or `22703`)",
    ),
    variable("CONSORT_CHANNELS", "1", "streams side by side between neighbours, 1 to 16; equal on all ranks"),
    variable(
        "CONSORT_BIDIRECTIONAL",
        "0",
        "1: half of the data goes round the ring the other way; equal on all ranks",
    ),
    variable(
        "CONSORT_SLOT_BYTES",
        "by size and distance",
        "staging slot, a power of two from 16 KiB to 512 KiB; equal on all ranks",
    ),
    variable(
        "CONSORT_ALGO",
        "all",
        "which algorithms may be chosen; found-rings, found-trees, file-rings and file-trees are those of the machine and of \
         NCCL_GRAPH_FILE, made what is made for the machine; equal on all ranks",
    ),
    variable(
        "CONSORT_DETERMINISM",
        "run",
        "what bits may depend on: `run` or `invariant`; equal on all ranks",
    ),
    variable(
        "CONSORT_SCHEDULE_DIR",
        "",
        "directory of schedules: XML of MSCCL and plans of MSCCL++; what is accepted must be equal on all ranks",
    ),
    variable("CONSORT_TUNING", "", "a table that `collbench tune` wrote; equal on all ranks"),
    variable(
        "CONSORT_TOPOLOGY",
        "",
        "the machine to plan for: a profile, what `collbench probe` wrote, or a file of any form that `collbench topo` reads; equal on all ranks",
    ),
    variable(
        "CONSORT_FLIGHT_RECORD",
        "",
        "directory to which a communicator that fails writes its last operations",
    ),
    variable("CONSORT_TRACE", "", "file to which all ranks write their operations as Chrome trace events"),
    variable(
        "CONSORT_TRACE_EVENTS",
        "128",
        "operations kept for both, 1 to 4194304; 65536 by default where there is a trace",
    ),
    variable("CONSORT_RANK", "", "this process's rank, where no launcher sets one"),
    variable("CONSORT_SIZE", "", "the number of ranks, where no launcher sets one"),
    variable("CONSORT_LOCAL_RANK", "", "this process's number among the ranks of its host"),
    variable("CONSORT_LOCAL_SIZE", "", "the number of ranks of this host"),
    variable("CONSORT_JOB", "", "a name that keeps jobs of one user on one host apart"),
    variable("CONSORT_ADDRESS", "", "where rank 0 listens, for ranks on several hosts"),
    variable("CONSORT_SECRET", "", "what proves that a rank belongs to the job"),
    variable(
        "CONSORT_HOSTID",
        "",
        "ranks with the same text count as being on one host; unset, those of one user, kernel and network namespace; \
         data goes by TCP where memory cannot be shared",
    ),
    variable("CONSORT_BIND", "", "ip addresses on which a unique id's rendezvous listens"),
    variable(
        "CONSORT_WIRE_MBITS",
        "",
        "megabits a second of this host's way to other hosts, by which algorithms are chosen; unset, what the system says of its \
         fastest interface, and 25000 where it says nothing, as on most virtual machines; ranks may differ",
    ),
    variable(
        "CONSORT_PORTS",
        "",
        "ports, as 61000-61063, at which this process listens for other hosts, all but that of CONSORT_ADDRESS or NCCL_COMM_ID; \
         about two for each rank of a host and one for the meeting point; unset, the system picks; ranks may differ",
    ),
];

/// This library's own variables, `CONSORT_*`. Those that a [`Setting`](super::Setting) is named after are among them.
pub fn ours() -> &'static [Ours] {
    &OURS
}
