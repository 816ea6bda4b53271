"""The parts of a check, in the order in which they run, with their limits; and those parts that are short.

A part raises Skip where something it needs is not there and Failed where something is wrong. Invariant: the limits of
the parts that run unasked sum up to at most DEFAULT_LIMIT_S.
Absent: how programs are run (running.py), collectives (checks.py), micro-experiments (probe.py), what is measured
(figures.py) and compared with what (report.py).
"""

import dataclasses
import platform
import re
import typing

import checks
import figures
import probe
from amounts import SEVERAL, few, large
from running import Failed, Skip

# Seconds that a lent GPU may be had, with some left for its start.
DEFAULT_LIMIT_S = 1500


@dataclasses.dataclass(frozen=True)
class Part:
    """`expects_s` is what it takes where nothing is wrong: as an H200 took it, or by estimate. `limit_s` ends it."""

    name: str
    about: str
    expects_s: int
    limit_s: int
    run: typing.Callable
    # Not of a run that names no parts.
    is_more: bool = False
    # Runs even where the smoke test did not pass.
    is_first: bool = False


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
    context.rust_tests(lambda name: name.startswith(("consort-cuda.", "consort-transports.")))


def folds(context):
    context.rust_tests(lambda name: name.startswith("consort-kernels."))


def library(context):
    context.rust_tests(lambda name: name.startswith("consort-tests"))


# ---- Sanitizers ----------------------------------------------------------------------------------------------------


def sanitizer(tool):
    def run(context):
        context.needs_gpu("compute-sanitizer")
        found = context.tool("compute-sanitizer")
        before = [found, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", "--print-limit", "20"]
        options = ["--types", "float", "--ops", "sum", "--sizes", "8,1000,40000"]
        for way, path in (
            (["-g", "2"], "kernels"),
            (["-g", "3"], "fused"),
            (["-p", "2"], "streams"),
        ):
            label = " ".join([tool, *way, path])
            slow = {"limit_s": 60, "stall_s": 50, "CONSORT_TIMEOUT": 45}
            context.ranks(
                *way, *options, before=before, label=label, expects=path, CONSORT_DEVICE_PATH=path, **slow
            )
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
    # Importing PyTorch for the first time reads some gigabytes, for which the others wait.
    settings = {"CONSORT_TIMEOUT": 40, "LIBNCCL": context.ours, **environment}
    code, text = context.command(words, stall_s=50, directory=context.root / "clients", **settings)
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


check = checks.check
HOST = {"CONSORT_DEVICE_PATH": "host"}
FUSED = (["-t", "2"], ["-g", "2"], ["-t", "3"], ["-t", "2", "-g", "2"], ["-g", "8"])
LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo"}

# fmt: off
ALL = [
    Part("machine", "what is there: GPU, driver, versions", 2, 20, machine, is_first=True),
    Part("smoke", "an all-reduce by each path; machine code is loaded. What follows needs it", 5, 60, checks.smoke),
    Part("probe", "what the driver and the GPU do, and what it costs: bench/cuda/probe.cu", 60, 120, probe.run, is_first=True),
    Part("kernels-one-launch", "kernels path on one device: all ranks' programs in one launch", 45, 70, checks.kernels("-g", (2, 4, 8))),
    Part("kernels-streams", "the same, ranks of a process with a stream each", 32, 60, checks.kernels("-t", (2, 4, 8))),
    Part("kernels-processes", "the same, a process a rank, taking turns on the device", 28, 60, checks.kernels("-p", (2, 4))),
    Part("groups", "groups of 2 to 7 sends and receives, shorter and longer than mailboxes; one queue; launches that block", 18, 50, checks.groups),
    Part("driver", "the driver layer: tests of Rust, IPC and VMM between processes among them", 15, 45, driver),
    Part("folds", "fold kernels beside the host's reference, bit for bit: tests of Rust", 5, 40, folds),
    Part("library", "collectives on device memory: tests of Rust", 80, 170, library),
    Part("one-rank", "C interface, one rank: every collective, type, operator", 5, 20, check(["-t", "1"], path="fused")),
    Part("fused", "several ranks of a process on one device: threads, groups, both", 42, 65, check(*FUSED, path="fused")),
    Part("streams", "processes that share the device: the host walks the plan", 24, 50, check(["-p", "2"], ["-p", "3"], ["-p", "4"], path="streams")),
    Part("host-path", "through pinned memory and the host's engine", 17, 40, check(["-t", "2"], ["-p", "2"], ["-p", "2", "-t", "2"], path="host", settings=HOST)),
    Part("values", "floats that round: the bound, and the order of the ranks", 55, 80, checks.check_values),
    Part("blocks", "numbers of thread blocks", 5, 20, checks.check_blocks),
    Part("one-queue", "CUDA_DEVICE_MAX_CONNECTIONS=1", 5, 20, checks.check_connections),
    Part("blocking-launches", "CUDA_LAUNCH_BLOCKING=1", 3, 15, checks.check_blocking_launches),
    Part("torch-1", "torch.distributed, one process, our library preloaded", 20, 50, torch(1)),
    Part("torch-2", "the same, two processes on one GPU", 30, 60, torch(2)),
    Part("cupy", "CuPy's binding and cupyx.distributed on device arrays", 25, 50, cupy),
    Part("memcheck", "compute-sanitizer: accesses out of bounds", 8, 30, sanitizer("memcheck")),
    Part("racecheck", "compute-sanitizer: races in shared memory", 12, 35, sanitizer("racecheck")),
    Part("theirs", "NVIDIA's library on the same program, and how it takes several ranks of a device", 8, 30, theirs_checked),
    Part("latency", "figures: from the call to its return and to the result", 10, 30, figures.latency),
    Part("single", "figures: one rank, beside NVIDIA's library", 27, 45, figures.one_rank),
    Part("limit", "figures: a kernel that only streams", 40, 70, figures.limits),
    Part("allreduce-kernels", "figures: all-reduce by kernels that wait, 2, 4 and 8 ranks of one launch", 32, 75, figures.all_reduce((["-g", "2"], ["-g", "4"], ["-g", "8"]), path="kernels")),

    Part("two-hosts", "two pretended hosts over sockets", 30, 90, check(["-p", "2", "--hosts", "2"], ["-p", "4", "--hosts", "2"], path="host", options=few, settings=LOOPBACK), is_more=True),
    Part("large", "buffers of 100 MB", 20, 60, check(["-t", "2"], ["-p", "2"], options=large), is_more=True),
    Part("torch-4", "torch.distributed, four processes on one GPU", 40, 90, torch(4), is_more=True),
    Part("torch-one-queue", "two processes with one hardware queue each", 40, 90, torch_connections, is_more=True),
    Part("synccheck", "compute-sanitizer: wrong barriers", 40, 120, sanitizer("synccheck"), is_more=True),
    Part("allreduce-fused", "figures: all-reduce among 2, 4 and 8 ranks of a process", 60, 120, figures.all_reduce((["-t", "2"], ["-t", "4"], ["-t", "8"])), is_more=True),
    Part("allreduce-streams", "figures: among 2 and 4 processes", 60, 120, figures.all_reduce((["-p", "2"], ["-p", "4"])), is_more=True),
    Part("plans", "figures: all-reduce by each algorithm on the kernels path, with the plan that ran", 35, 60, figures.plans, is_more=True),
    Part("collectives", "figures: every collective", 16, 60, figures.every_collective, is_more=True),
    Part("memory", "figures: device memory of a communicator", 30, 80, figures.memory, is_more=True),
    Part("beside", "figures: several ranks beside NVIDIA's library, equal numbers of blocks", 60, 150, figures.beside, is_more=True),
]
# fmt: on


def chosen(names, more=False):
    """The parts of these names, which may end in *, in their own order; without names those that run unasked, or the more."""
    if not names:
        return [part for part in ALL if part.is_more == more]
    fits = lambda part, name: part.name == name or (name.endswith("*") and part.name.startswith(name[:-1]))
    for name in names:
        if not any(fits(part, name) for part in ALL):
            raise SystemExit(f"there is no part {name}; known are: {', '.join(part.name for part in ALL)}")
    return [part for part in ALL if any(fits(part, name) for name in names)]
