//! Variables that act, and those that could on a host without GPUs and do not.

use super::Kind::{Flag, Integer, List, Text};
use super::{Idle, Variable, honoured, idle};

const CHANNELS_MIN: &str = "thread blocks of a rank on a device, at least; where CONSORT_CHANNELS is unset, streams side by \
     side between neighbours too, 16 at most; the first that is set of NCCL_MIN_CTAS, NCCL_MIN_NCHANNELS and \
     NCCL_MIN_NRINGS counts";
const CHANNELS_MAX: &str = "thread blocks of a rank on a device, at most; where CONSORT_CHANNELS is unset, streams side by \
     side between neighbours too; the first that is set of NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS and NCCL_MAX_NRINGS counts";

pub(super) const HONOURED: &[Variable] = &[
    honoured("NCCL_DEBUG", Text, "", "how much is told: NONE, VERSION, WARN, INFO, ABORT or TRACE"),
    honoured(
        "NCCL_DEBUG_SUBSYS",
        List,
        "INIT,BOOTSTRAP,ENV",
        "which subsystems INFO lines are about; with ^ in front, all but these",
    ),
    honoured(
        "NCCL_DEBUG_FILE",
        Text,
        "",
        "the file for lines instead of standard output; %h is the host, %p the process; each process begins it anew",
    ),
    honoured(
        "NCCL_DEBUG_TIMESTAMP_FORMAT",
        Text,
        "[%F %T] ",
        "the time in front of lines, in UTC; %Nf are N digits of the second's fraction",
    ),
    honoured("NCCL_DEBUG_TIMESTAMP_LEVELS", List, "WARN", "the levels whose lines have a time"),
    honoured("NCCL_WARN_ENABLE_DEBUG_INFO", Flag, "0", "1: the first warning turns INFO lines on"),
    honoured(
        "NCCL_SET_THREAD_NAME",
        Flag,
        "0",
        "always on: the threads are called consort-control and consort-root",
    ),
    honoured(
        "NCCL_CHECK_POINTERS",
        Flag,
        "0",
        "always on: null pointers, lengths and overlaps are errors of the call",
    ),
    honoured(
        "NCCL_CHECK_MODE",
        Text,
        "DEFAULT",
        "always on, as DEBUG_GLOBAL: a digest of the arguments travels with every call, and a difference between ranks \
         is an error that names them",
    ),
    honoured(
        "NCCL_PARAM_DUMP_ALL",
        Flag,
        "0",
        "1: every variable and its value is told when the library is first used",
    ),
    honoured(
        "NCCL_CONF_FILE",
        Text,
        "",
        "the file of NAME=value lines to read instead of ~/.nccl.conf; /etc/nccl.conf is read after it",
    ),
    honoured(
        "NCCL_NO_CACHE",
        List,
        "",
        "always, for all but NCCL_DEBUG*: variables are read anew for every communicator",
    ),
    honoured(
        "NCCL_COMM_ID",
        Text,
        "",
        "where rank 0 listens (ipv4:port, [ipv6]:port or host:port): every rank makes the same unique id of it by itself; \
         CONSORT_SECRET protects the job, without it a warning says that nothing does",
    ),
    honoured(
        "NCCL_SOCKET_IFNAME",
        List,
        "",
        "the interfaces at which ranks meet and connect, by prefix; with ^ in front all others, with = whole names; \
         CONSORT_BIND goes first for the rendezvous",
    ),
    honoured("NCCL_SOCKET_FAMILY", Text, "", "AF_INET or AF_INET6: addresses of this kind alone"),
    honoured("NCCL_HOSTID", Text, "", "as CONSORT_HOSTID, where that is unset"),
    honoured("NCCL_SHM_DISABLE", Flag, "0", "1: as CONSORT_TRANSPORT=tcp, where that is unset"),
    honoured(
        "NCCL_NET",
        Text,
        "",
        "Socket, in any case, is the only network; any other name is an error when a communicator is made",
    ),
    honoured("NCCL_COMM_BLOCKING", Flag, "", "0 or 1 instead of what the config's `blocking` says"),
    honoured("NCCL_MIN_CTAS", Integer, "", CHANNELS_MIN),
    honoured("NCCL_MIN_NCHANNELS", Integer, "-2", CHANNELS_MIN),
    honoured("NCCL_MIN_NRINGS", Integer, "-2", CHANNELS_MIN),
    honoured("NCCL_MAX_CTAS", Integer, "", CHANNELS_MAX),
    honoured("NCCL_MAX_NCHANNELS", Integer, "-2", CHANNELS_MAX),
    honoured("NCCL_MAX_NRINGS", Integer, "-2", CHANNELS_MAX),
    honoured(
        "NCCL_BUFFSIZE",
        Integer,
        "-2",
        "the most bytes of staging for a stream and a peer: below 2 MiB a slot is a quarter of it, a power of two of at least \
         16 KiB; from 2 MiB on the slots are as without it",
    ),
    honoured(
        "NCCL_ALGO",
        List,
        "",
        "which algorithms may be chosen (Ring, Tree, PAT), where CONSORT_ALGO is unset; what needs an aggregating switch is \
         not there",
    ),
    honoured("NCCL_PROTO", List, "", "must leave Simple, the only protocol of host memory"),
];

const POLLS: &str =
    "joining sleeps until there is something to do, and tries again until CONSORT_JOIN_TIMEOUT has passed";
const ONE_STREAM: &str = "a stream is one socket, moved by whoever waits; the kernel sizes its buffers";
const DRIVEN: &str = "there is no proxy thread: whoever waits for a call moves its data";
const PRICED: &str =
    "the planner chooses by its own prices or by a table that `collbench tune` wrote (CONSORT_TUNING)";
const PLUGINS: &str = "plugins are not loaded";
const XML: &str =
    "the machine is described with CONSORT_TOPOLOGY and shown by `collbench plan`, not as NCCL's XML";

pub(super) const IDLE: &[Idle] = &[
    idle(
        "there is no such service: a report comes by itself when a call hangs, and when it is asked for",
        Text,
        &[("NCCL_RAS_ADDR", "localhost:28028")],
    ),
    idle(
        "there is no such service: a report comes by itself when a call hangs, and when it is asked for",
        Integer,
        &[("NCCL_RAS_ENABLE", "1"), ("NCCL_RAS_TIMEOUT_FACTOR", "1")],
    ),
    idle("checks cannot be turned off, as in NCCL", Flag, &[("NCCL_CHECKS_DISABLE", "0")]),
    idle(
        "no signal handler is installed: a report can be asked for instead",
        Integer,
        &[("NCCL_PROXY_DUMP_SIGNAL", "-1"), ("NCCL_RMA_PROXY_DUMP_SIGNAL", "-1")],
    ),
    idle("there are no NVTX ranges", Flag, &[("NCCL_NVTX_DISABLE", "0")]),
    idle(
        "a connection that does not come up is an error that names both ends",
        Flag,
        &[("NCCL_REPORT_CONNECT_PROGRESS", "0")],
    ),
    idle(
        "NCCL says nowhere what it does; reports and traces are this library's diagnosis",
        Text,
        &[
            ("NCCL_RUN_DIAGNOSTICS", ""),
            ("NCCL_RUN_RAS_DIAGNOSTICS", ""),
            ("NCCL_DIAGNOSTICS_ECC_THRESHOLD", ""),
            ("NCCL_DIAGNOSTICS_IB_BW_TIMEOUT", ""),
            ("NCCL_PROGRESS_COUNTERS", ""),
            ("NCCL_PROGRESS_COUNTER_MONITOR_POLL_MS", ""),
            ("NCCL_PROGRESS_COUNTER_MONITOR_STALE_MS", ""),
            ("NCCL_PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC", ""),
        ],
    ),
    idle(
        ONE_STREAM,
        Integer,
        &[
            ("NCCL_SOCKET_NTHREADS", "-2"),
            ("NCCL_NSOCKS_PERTHREAD", "-2"),
            ("NCCL_SOCKET_RCVBUF", "-1"),
            ("NCCL_SOCKET_SNDBUF", "-1"),
            ("NCCL_SOCKET_INLINE", "128"),
            ("NCCL_SOCKET_MIN_TASKSIZE", "65536"),
        ],
    ),
    idle(
        POLLS,
        Integer,
        &[
            ("NCCL_SOCKET_RETRY_CNT", "34"),
            ("NCCL_SOCKET_RETRY_SLEEP_MSEC", "100"),
            ("NCCL_SOCKET_POLL_TIMEOUT_MSEC", "0"),
            ("NCCL_UID_STAGGER_THRESHOLD", "256"),
            ("NCCL_UID_STAGGER_RATE", "7000"),
        ],
    ),
    idle("the secret of the unique id keeps jobs apart", Integer, &[("NCCL_SOCKET_MAGIC", "")]),
    idle("ranks meet over TCP", Flag, &[("NCCL_OOB_NET_ENABLE", "0")]),
    idle("ranks meet over TCP", List, &[("NCCL_OOB_NET_IFNAME", "")]),
    idle(
        "descriptors travel over abstract Unix sockets; where these do not reach, TCP is used",
        Flag,
        &[("NCCL_IPC_USE_ABSTRACT_SOCKET", "1")],
    ),
    idle(
        "threads are bound to cores with CONSORT_PIN alone, within what they may use",
        Flag,
        &[("NCCL_IGNORE_CPU_AFFINITY", "0")],
    ),
    idle(DRIVEN, List, &[("NCCL_PROXY_CPUSET", "")]),
    idle(
        DRIVEN,
        Integer,
        &[
            ("NCCL_PROGRESS_APPENDOP_FREQ", "8"),
            ("NCCL_PROXY_APPEND_BATCH_SIZE", "16"),
            ("NCCL_RMA_PROXY_QUEUE_SIZE", "-1"),
        ],
    ),
    idle(
        "data connections are always made at first use",
        Integer,
        &[("NCCL_RUNTIME_CONNECT", "1"), ("NCCL_CONNECT_ROUND_MAX_PEERS", "128")],
    ),
    idle(
        "what communicators share is not to be chosen",
        Integer,
        &[("NCCL_COMM_SPLIT_SHARE_RESOURCES", ""), ("NCCL_COMM_SHRINK_SHARE_RESOURCES", "")],
    ),
    idle("where shared memory lies is left to the system", Integer, &[("NCCL_SHM_LOCALITY", "2")]),
    idle(
        "there is no device code that could be newer than the library",
        Flag,
        &[("NCCL_ENABLE_VERSION_CHECK", "1")],
    ),
    idle(
        "slots with counters are the only protocol",
        Integer,
        &[
            ("NCCL_LL_BUFFSIZE", "-2"),
            ("NCCL_LL128_BUFFSIZE", "-2"),
            ("NCCL_LL128_C2C", "1"),
            ("NCCL_P2P_LL_THRESHOLD", "16384"),
            ("NCCL_ALLOC_P2P_NET_LL_BUFFERS", "0"),
        ],
    ),
    idle(
        PRICED,
        Integer,
        &[
            ("NCCL_PAT_ENABLE", "2"),
            ("NCCL_LL_THRESHOLD", ""),
            ("NCCL_TREE_THRESHOLD", ""),
            ("NCCL_SINGLE_RING_THRESHOLD", ""),
            ("NCCL_NET_OVERHEAD", "-2"),
        ],
    ),
    idle(PRICED, List, &[("NCCL_THREAD_THRESHOLDS", "")]),
    idle(
        "a message between two ranks is one stream, cut into slots",
        Integer,
        &[
            ("NCCL_MIN_P2P_NCHANNELS", "1"),
            ("NCCL_MAX_P2P_NCHANNELS", "64"),
            ("NCCL_NCHANNELS_PER_NET_PEER", ""),
            ("NCCL_P2P_NET_CHUNKSIZE", "131072"),
            ("NCCL_P2P_SCHEDULE_GROUP_SIZE", "8"),
            ("NCCL_P2P_MAX_PEERS", ""),
            ("NCCL_P2P_PER_CHANNEL_NET_BW", "14"),
            ("NCCL_P2P_EPOCH_ENABLE", "1"),
        ],
    ),
    idle("slices are as long as slots", Integer, &[("NCCL_CHUNK_SIZE", "0")]),
    idle("calls of a group stay as they were made", Flag, &[("NCCL_ALLGATHERV_ENABLE", "1")]),
    idle(
        XML,
        Text,
        &[
            ("NCCL_TOPO_FILE", ""),
            ("NCCL_TOPO_DUMP_FILE", ""),
            ("NCCL_GRAPH_FILE", ""),
            ("NCCL_GRAPH_DUMP_FILE", ""),
        ],
    ),
    idle(XML, Integer, &[("NCCL_TOPO_DUMP_FILE_RANK", "0"), ("NCCL_GRAPH_DUMP_FILE_RANK", "0")]),
    idle(
        PLUGINS,
        List,
        &[
            ("NCCL_NET_PLUGIN", "libnccl-net.so"),
            ("NCCL_TUNER_PLUGIN", "libnccl-tuner.so"),
            ("NCCL_PROFILER_PLUGIN", "libnccl-profiler.so"),
            ("NCCL_GIN_PLUGIN", "libnccl-gin.so"),
            ("NCCL_RMA_PLUGIN", "libnccl-rma.so"),
            ("NCCL_ENV_PLUGIN", "libnccl-env.so"),
        ],
    ),
    idle(
        PLUGINS,
        Integer,
        &[
            ("NCCL_NET_PLUGIN_REF_COUNT", "0"),
            ("NCCL_GIN_PLUGIN_REF_COUNT", "0"),
            ("NCCL_RMA_PLUGIN_REF_COUNT", "0"),
            ("NCCL_IGNORE_NET_MISMATCH", "1"),
            ("NCCL_NET_OPTIONAL_RECV_COMPLETION", "1"),
        ],
    ),
    idle("the library's threads have a stack of fixed size", Flag, &[("NCCL_SET_CPU_STACK_SIZE", "1")]),
];
