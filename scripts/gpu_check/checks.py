"""Collectives and groups of messages through the C interface, by device_ranks: each path, and ranks that share a device.

Invariant: where a path is named, the library must have taken it; that it refuses the ranks is a failure like any other.
Absent: how programs are run (running.py), what is measured (figures.py).
"""

from amounts import amount, check_options, few
from running import IMAGES

FOLDING = "allreduce,reduce,reducescatter"
KERNELS = {"CONSORT_DEVICE_PATH": "kernels"}
# Ranks of a process that share a device need hardware queues of their own.
QUEUES_OF_RANKS = {"CUDA_DEVICE_MAX_CONNECTIONS": 32}
# Seconds a program of the smoke test may take, and after how many the library gives an operation up.
SMOKE_S = 12
SMOKE_TIMEOUTS = {"CONSORT_TIMEOUT": 6, "CONSORT_REPORT_AFTER": 4}


# ---- The first minute ----------------------------------------------------------------------------------------------


def smoke(context):
    """One all-reduce by each path, and whether machine code was loaded."""
    options = ["--collectives", "allreduce", "--types", "float", "--ops", "sum", "--sizes", "8,64K"]
    for way, path, named in (
        (["-t", "2"], "fused", False),
        (["-p", "2"], "streams", False),
        (["-g", "2"], "kernels", True),
        (["-p", "2"], "kernels", True),
        (["-t", "2"], "host", True),
    ):
        settings = SMOKE_TIMEOUTS | ({"CONSORT_DEVICE_PATH": path} if named else {})
        label = f"{' '.join(way)}, {path}"
        context.ranks(*way, *options, label=label, expects=path, limit_s=SMOKE_S, stall_s=SMOKE_S, **settings)
        if path == "fused" and context.kind != "host":
            machine_code(context)


def machine_code(context):
    """Asserts that the driver took a cubin, and refused none."""
    found = list(IMAGES.finditer(context.library_log))
    refused = [image["refused"] for image in found if image["refused"]]
    loaded = [image["loaded"] for image in found if image["loaded"]]
    said = f"machine code: {', '.join(loaded) or 'no line says that any was loaded'}"
    if refused:
        context.failures.append(f"machine code was refused, and the driver compiled the text: {refused[0]}")
    elif not loaded:
        context.failures.append(said)
    else:
        context.notes.append(said)


# ---- Every collective ----------------------------------------------------------------------------------------------


def check(*ways, path=None, settings=None, options=None):
    """Checks of every collective for each placement of ranks, which must take this path."""

    def run(context):
        for way in ways:
            context.ranks(
                *way, *(options or check_options)(context), label=" ".join(way), expects=path, **(settings or {})
            )

    return run


def kernels(form, ranks):
    """Kernels that wait for each other, of ranks that share a device: every type, and sizes up to 64 MiB.

    `form` says what the ranks are: -g of one thread, all in one launch; -t threads with a stream each; -p processes, which
    take turns on the device.
    """

    def run(context):
        settings = KERNELS | (QUEUES_OF_RANKS if form == "-t" else {})
        every = "8,1000,64K,1M" if form != "-p" else "8,1000,64K"
        for number in amount(context, ranks, ranks[:1]):
            options = ["--types", "all", "--ops", "sum", "--sizes", amount(context, every, "8,1000")]
            context.ranks(form, number, *options, label=f"{form} {number}, types", expects="kernels", **settings)
        number = ranks[0]
        longest = [
            "--types",
            "float,bfloat16",
            "--ops",
            "sum",
            "--sizes",
            amount(context, "8,512,32K,256K,2M,16M,64M", "300K"),
        ]
        context.ranks(form, number, *longest, label=f"{form} {number}, sizes", expects="kernels", **settings)
        operators = ["--types", "float,bfloat16,int32", "--ops", "all", "--collectives", FOLDING]
        operators += ["--sizes", amount(context, "8,1000,300000", "1000")]
        context.ranks(form, number, *operators, label=f"{form} {number}, operators", expects="kernels", **settings)

    return run


# ---- Groups of messages --------------------------------------------------------------------------------------------


def mailbox_bytes(ranks, path):
    """Bytes that a rank can send to another before it must receive: four slots, as src/device/shared/mod.rs has them, of
    three mailboxes each way. A message that kernels move in one block has a sixteenth of them.
    """
    slot = 1 << ((48 << 20) // (ranks * 3 * 4)).bit_length() - 1
    whole = 4 * min(max(slot, 64 << 10), 4 << 20)
    return whole // 16 if path == "kernels" else whole


# Of each: the form of the ranks, messages to each peer, the path. Ranks times messages are 2 to 7 of a rank in a group.
GROUPS = (
    ("-g", 2, 2, "kernels"),
    ("-g", 2, 7, "kernels"),
    ("-g", 4, 2, "kernels"),
    ("-g", 8, 1, "kernels"),
    ("-p", 2, 2, "kernels"),
    ("-p", 2, 2, "streams"),
    ("-p", 2, 7, "streams"),
    ("-p", 4, 1, "streams"),
)
QUEUES = ({}, {"CUDA_DEVICE_MAX_CONNECTIONS": 1}, {"CUDA_LAUNCH_BLOCKING": 1})


def groups(context):
    """Groups of 2 to 7 sends and as many receives, with messages that fit mailboxes and messages that do not."""
    for queues in QUEUES:
        for form, ranks, messages, path in amount(context, GROUPS, [GROUPS[0], *GROUPS[4:6]]):
            parts = amount(context, (0.9, 4), (0.9, 1.25))
            sizes = ",".join(str(int(part * mailbox_bytes(ranks, path)) // 8 * 8) for part in parts)
            settings = queues | {"CONSORT_DEVICE_PATH": path}
            if path == "kernels":
                # A block for each message.
                settings["NCCL_MAX_CTAS"] = 2 * (ranks - 1)
            label = " ".join([form, str(ranks), f"{messages} messages", path, *queues])
            options = [form, ranks, "--group-messages", messages, "--sizes", sizes]
            context.ranks(*options, label=label, expects=path, **settings)


# ---- What does not depend on the path ------------------------------------------------------------------------------


def check_values(context):
    """Floats that round: within the bound of any order, and in the order of the ranks where that is promised."""
    ways = (["-t", "2"], ["-g", "3"], ["-p", "3"], ["-g", "1"], ["-t", "4"], ["-p", "2"])
    for way in amount(context, ways, ways[:3]):
        options = [*check_options(context), "--collectives", FOLDING]
        context.ranks(*way, "--values", "rounding", *options, label=f"{' '.join(way)} rounding")
        context.ranks(
            *way, "--values", "ordered", *options, label=f"{' '.join(way)} ordered", CONSORT_DETERMINISM="invariant"
        )


def check_blocks(context):
    for blocks in amount(context, (1, 2, 3, 8, 32), (1, 2)):
        context.ranks("-t", "2", "--blocks", blocks, *few(context), label=f"-t 2, {blocks} blocks")


def check_connections(context):
    """One hardware queue for all streams: whatever waits in it must not wait for what comes behind."""
    for way in (["-t", "2"], ["-g", "4"], ["-p", "2"], ["-p", "2", "-t", "2"]):
        context.ranks(*way, *few(context), label=f"{' '.join(way)}, one hardware queue", CUDA_DEVICE_MAX_CONNECTIONS=1)


def check_blocking_launches(context):
    context.ranks("-g", "2", *few(context), label="-g 2, launches that block", CUDA_LAUNCH_BLOCKING=1)
    context.ranks("-p", "2", *few(context), label="-p 2, launches that block", CUDA_LAUNCH_BLOCKING=1)
