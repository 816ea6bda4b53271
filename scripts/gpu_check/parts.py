"""The parts of a check, in the order in which they run: what each runs, and what it takes for wrong.

A part raises Skip where something it needs is not there and Failed where something is wrong.
Absent: how programs are run (running.py), what is measured (figures.py) and compared with what (report.py).
"""

import dataclasses
import platform
import re
import typing

import figures
from amounts import SEVERAL, amount, check_options, few, large
from running import Failed, Skip

FOLDING = "allreduce,reduce,reducescatter"


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    about: str
    limit_s: int
    run: typing.Callable


# ---- What is there -------------------------------------------------------------------------------------------------


def machine(context):
    """Never fails: what cannot be had is not said."""
    said = {"machine": platform.machine(), "kernel": platform.release(), "python": platform.python_version()}
    try:
        said["processor"] = next(
            line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")
        )
    except (OSError, StopIteration):
        pass
    asks = {
        "GPU": [
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,mig.mode.current",
            "--format=csv,noheader",
        ],
        "nvcc": ["nvcc", "--version"],
        "compute-sanitizer": ["compute-sanitizer", "--version"],
        "cc": ["cc", "--version"],
    }
    for name, words in asks.items():
        try:
            code, text = context.command([context.tool(words[0]), *words[1:]], 30)
            lines = [line for line in text.splitlines() if line.strip()]
            release = [line for line in lines if "release" in line or "ersion" in line]
            if code == 0 and lines:
                said[name] = (release or lines)[-1 if name == "compute-sanitizer" else 0].strip()
        except (Skip, OSError):
            pass
    for package in ("torch", "cupy-cuda13x", "nvidia-nccl-cu13", "numpy"):
        try:
            from importlib.metadata import version

            said[package] = version(package)
        except Exception:
            pass
    commit = context.stage / "commit"
    said["commit"] = commit.read_text().strip() if commit.exists() else "unknown"
    context.records.append({"what": "machine", **said})


# ---- The driver and the kernels, by tests of Rust ------------------------------------------------------------------


def driver(context):
    context.rust_tests(lambda name: name.startswith(("consort-memory.", "consort-transports.")))


def kernels(context):
    context.rust_tests(lambda name: name.startswith("consort-kernels."))


def library(context):
    context.rust_tests(lambda name: name.startswith(("consort-tests.", "consort.")))


# ---- Collectives, through the C interface --------------------------------------------------------------------------


def check(*ways, path=None, settings=None, options=None):
    """Checks of every collective for each placement of ranks, which must take this path."""

    def run(context):
        for way in ways:
            context.ranks(
                *way, *(options or check_options)(context), label=" ".join(way), expects=path, **(settings or {})
            )

    return run


def kernels_path(context):
    """Kernels that wait for each other, of one process on one device: where the library has them."""
    forced = {"CONSORT_DEVICE_PATH": "kernels"}
    if context.ranks("-t", "2", *few(context), refusal_is_fine=True, expects="kernels", **forced) is None:
        raise Skip("the library has no such path for ranks of one device")
    check(["-t", "2"], ["-t", "4"], path="kernels", settings=forced)(context)


def check_values(context):
    """Floats that round: within the bound of any order, and in the order of the ranks where that is promised."""
    for way in (["-g", "1"], ["-t", "2"], ["-g", "3"], ["-t", "4"], ["-p", "2"], ["-p", "3"]):
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
        context.ranks(
            *way, *few(context), label=f"{' '.join(way)}, one hardware queue", CUDA_DEVICE_MAX_CONNECTIONS=1
        )


def check_blocking_launches(context):
    context.ranks("-g", "2", *few(context), label="-g 2, launches that block", CUDA_LAUNCH_BLOCKING=1)
    context.ranks("-p", "2", *few(context), label="-p 2, launches that block", CUDA_LAUNCH_BLOCKING=1)


# ---- Sanitizers ----------------------------------------------------------------------------------------------------


def sanitizer(tool):
    def run(context):
        context.needs_gpu("compute-sanitizer")
        found = context.tool("compute-sanitizer")
        before = [found, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", "--print-limit", "20"]
        options = ["--types", "int8,float,bfloat16", "--ops", "sum,avg", "--sizes", "8,1000,40000"]
        settings = {"CONSORT_TIMEOUT": 200}
        for way, path in (
            (["-t", "1"], None),
            (["-t", "2"], None),
            (["-g", "3"], None),
            (["-t", "2"], "kernels"),
            (["-p", "2"], None),
            (["-p", "2"], "host"),
        ):
            named = {"CONSORT_DEVICE_PATH": path} if path else {}
            label = " ".join([tool, *way, *named.values()])
            # Not every library has every path.
            shared = {"limit_s": 150, "refusal_is_fine": path == "kernels", **settings, **named}
            context.ranks(*way, *options, before=before, label=label, **shared)
        summaries = set(re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", context.log_text(1 << 20)))
        if not summaries:
            raise Failed("compute-sanitizer printed no summary: it has looked at nothing")
        wrong = [line for line in summaries if not re.search(r"SUMMARY: 0 (errors|hazards)", line)]
        context.notes += sorted(summaries)
        if wrong:
            raise Failed("; ".join(wrong))

    return run


# ---- Other people's programs ---------------------------------------------------------------------------------------


def client(context, words, **environment):
    """One of clients/, which says SKIP or how much it checked."""
    code, text = context.command(words, directory=context.root / "clients", LIBNCCL=context.ours, **environment)
    said = [line for line in text.splitlines() if " checks" in line or line.startswith("SKIP")]
    context.notes += said
    if code == 77:
        raise Skip(said[-1].removeprefix("SKIP: ") if said else "it says so")
    if code:
        raise Failed(next((line for line in reversed(text.splitlines()) if line.strip()), f"ended with {code}"))


def torch(processes):
    def run(context):
        context.needs_gpu("PyTorch")
        context.package("torch")
        context.needs(context.ours)
        client(context, ["python3", "-W", "ignore", "torch_device.py", processes], LD_PRELOAD=context.ours)

    return run


def torch_connections(context):
    """What Megatron sets: all streams share one hardware queue."""
    context.needs_gpu("PyTorch")
    context.package("torch")
    context.needs(context.ours)
    client(
        context,
        ["python3", "-W", "ignore", "torch_device.py", 2],
        LD_PRELOAD=context.ours,
        CUDA_DEVICE_MAX_CONNECTIONS=1,
    )


def cupy(context):
    context.needs_gpu("CuPy")
    context.package("cupy")
    context.needs(context.ours)
    client(context, ["python3", "-W", "ignore", "cupy_device.py"], LD_PRELOAD=context.ours)


# ---- Beside NVIDIA's library ---------------------------------------------------------------------------------------


def theirs_checked(context):
    context.needs_gpu("NVIDIA's library")
    library, worked = context.theirs(), []
    context.ranks("-t", "1", *few(context), "--values", "rounding", library=library, label="one rank")
    for name, (way, settings) in SEVERAL.items():
        try:
            options = [*way, *few(context), "--values", "rounding"]
            shared = {"library": library, "label": name, "limit_s": 60, **settings}
            found = context.ranks(*options, refusal_is_fine=True, is_optional=True, **shared)
            worked += [name] if found else []
        except Failed as failed:
            context.notes.append(f"{name}: {failed}")
    context.notes.append(
        f"several ranks of NVIDIA's library on one device: {', '.join(worked) or 'none of the ways worked'}"
    )


ALL = [
    Part("machine", "what is there: GPU, driver, versions", 60, machine),
    Part("driver", "the driver layer: tests of Rust, IPC and VMM between processes among them", 120, driver),
    Part("kernels", "kernels beside the host's reference, bit for bit: tests of Rust", 240, kernels),
    Part("library", "collectives on device memory: tests of Rust", 240, library),
    Part(
        "one-rank", "C interface, one rank: every collective, type, operator", 120, check(["-t", "1"], path="fused")
    ),
    Part(
        "fused",
        "several ranks of a process on one device: threads, groups, both",
        240,
        check(["-t", "2"], ["-g", "2"], ["-t", "3"], ["-t", "2", "-g", "2"], ["-g", "8"], path="fused"),
    ),
    Part("kernels-path", "the same by kernels that wait", 200, kernels_path),
    Part(
        "streams",
        "processes that share the device: the host walks the plan",
        240,
        check(["-p", "2"], ["-p", "3"], ["-p", "4"], path="streams"),
    ),
    Part(
        "host-path",
        "through pinned memory and the host's engine",
        240,
        check(
            ["-t", "2"],
            ["-p", "2"],
            ["-t", "4"],
            ["-p", "2", "-t", "2"],
            path="host",
            settings={"CONSORT_DEVICE_PATH": "host"},
        ),
    ),
    Part(
        "two-hosts",
        "two pretended hosts over sockets",
        200,
        check(
            ["-p", "2", "--hosts", "2"],
            ["-p", "4", "--hosts", "2"],
            path="host",
            options=few,
            settings={"NCCL_SOCKET_IFNAME": "lo"},
        ),
    ),
    Part("large", "buffers of 100 MB", 120, check(["-t", "2"], ["-p", "2"], options=large)),
    Part("values", "floats that round: the bound, and the order of the ranks", 240, check_values),
    Part("blocks", "numbers of thread blocks", 120, check_blocks),
    Part("one-queue", "CUDA_DEVICE_MAX_CONNECTIONS=1", 120, check_connections),
    Part("blocking-launches", "CUDA_LAUNCH_BLOCKING=1", 60, check_blocking_launches),
    Part("torch-1", "torch.distributed, one process, our library preloaded", 160, torch(1)),
    Part("torch-2", "the same, two processes on one GPU", 170, torch(2)),
    Part("torch-4", "the same, four processes on one GPU", 170, torch(4)),
    Part("torch-one-queue", "two processes with one hardware queue each", 170, torch_connections),
    Part("cupy", "CuPy's binding and cupyx.distributed on device arrays", 300, cupy),
    Part("memcheck", "compute-sanitizer: accesses out of bounds", 400, sanitizer("memcheck")),
    Part("racecheck", "compute-sanitizer: races in shared memory", 400, sanitizer("racecheck")),
    Part("synccheck", "compute-sanitizer: wrong barriers", 400, sanitizer("synccheck")),
    Part(
        "theirs",
        "NVIDIA's library on the same program, and how it takes several ranks of a device",
        240,
        theirs_checked,
    ),
    Part("limit", "figures: a kernel that only streams", 200, figures.limits),
    Part(
        "allreduce-fused",
        "figures: all-reduce among 2, 4 and 8 ranks of a process",
        240,
        figures.all_reduce((["-t", "2"], ["-t", "4"], ["-t", "8"])),
    ),
    Part(
        "allreduce-kernels",
        "figures: the same by kernels that wait",
        160,
        figures.all_reduce((["-t", "2"], ["-t", "4"]), path="kernels"),
    ),
    Part(
        "allreduce-streams", "figures: among 2 and 4 processes", 240, figures.all_reduce((["-p", "2"], ["-p", "4"]))
    ),
    Part("collectives", "figures: every collective", 160, figures.every_collective),
    Part("single", "figures: one rank, beside NVIDIA's library", 200, figures.one_rank),
    Part("latency", "figures: from the call to the result", 120, figures.latency),
    Part("memory", "figures: device memory of a communicator", 120, figures.memory),
    Part("beside", "figures: several ranks beside NVIDIA's library, equal numbers of blocks", 300, figures.beside),
]
