"""How much is run, by what runs it: fewer and smaller in a rehearsal, whose kernels are interpreted.

Absent: what is run.
"""


def amount(context, device, rehearsal, host=None):
    """One of several amounts of work, by what runs it."""
    return device if not context.is_rehearsal else host if host and context.kind == "host" else rehearsal


def check_options(context):
    """Types, operators and sizes of checks."""
    return ["--types", "all", "--ops", "all", "--sizes", amount(context, "8,1000,64K,1M", "8,1000", "8,1000,64K")]


def few(context):
    """Where what is checked is not the arithmetic."""
    return [
        "--types",
        "int8,float,bfloat16",
        "--ops",
        "sum,avg,max",
        "--sizes",
        amount(context, "8,1000,1M", "8,1000"),
    ]


def large(context):
    """More than any staging buffer holds."""
    return ["--types", "float,int8", "--ops", "sum", "--sizes", amount(context, "99999996", "200000")]


def listed(numbers):
    return ",".join(str(number) for number in numbers)


# Ways in which NVIDIA's library may take several ranks of one device; which worked is in the report.
SEVERAL = {
    "NCCL_MULTI_RANK_GPU_ENABLE=1": (["-p", "2"], {"NCCL_MULTI_RANK_GPU_ENABLE": 1}),
    "NCCL_MULTI_RANK_GPU_ENABLE=1, threads": (["-t", "2"], {"NCCL_MULTI_RANK_GPU_ENABLE": 1}),
    "two hosts by NCCL_HOSTID, sockets": (
        ["-p", "2", "--hosts", "2"],
        {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": 1},
    ),
}
