"""The parts that measure: records of times and of memory, which report.py puts beside their limits.

Invariant: ours and NVIDIA's library are called by the same program with the same options. Absent: any judgement.
"""

import json

from amounts import SEVERAL, amount, listed
from running import Failed, Skip, answers, panics

BLOCKS = (1, 2, 4, 8, 0)
ALL_REDUCE = ["--collectives", "allreduce", "--types", "float", "--ops", "sum", "--place", "out"]


def sizes(context):
    return amount(context, [1 << 20, 16 << 20, 256 << 20], [4096])


def limits(context):
    """A kernel that streams the same bytes, built here."""
    context.needs_gpu("nvcc's kernel")
    nvcc, built = context.tool("nvcc"), context.scratch / "stream"
    code, text = context.command(
        [nvcc, "-O3", "-arch=native", context.root / "bench/cuda/stream.cu", "-o", built], 60, stall_s=60
    )
    if code:
        raise Failed(f"nvcc: {text.splitlines()[0] if text else code}")
    code, text = context.command([built, "1,2,4,8", listed(sizes(context)), listed(BLOCKS)])
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    context.records += found
    if code:
        raise Failed(text.splitlines()[-1])


def timing(context):
    return ["--mode", "time", "--samples", amount(context, 20, 3), "--calls", amount(context, 200, 2)]


def all_reduce(ways, path=None):
    """All-reduces out of place with equal numbers of thread blocks, 0 being the library's own choice.

    Of many ranks with few blocks the longest is left out, which alone takes seconds.
    """

    def run(context):
        forced = {"CONSORT_DEVICE_PATH": path} if path else {}
        measured = [*timing(context), *ALL_REDUCE]
        for way in ways:
            for blocks in amount(context, BLOCKS, (1, 0)):
                found = sizes(context)
                found = found[:-1] if blocks in (1, 2) and int(way[1]) > 4 and len(found) > 1 else found
                options = [*way, *(["--blocks", blocks] if blocks else []), *measured, "--sizes", listed(found)]
                context.ranks(*options, label=" ".join(way), expects=path, **forced)

    return run


def plans(context):
    """All-reduces of ranks of one launch by each algorithm that a call can name on the kernels path, and by the one that the
    library takes unasked, which comes first: with the plan that ran, as the library says it to a program in Rust."""
    program = context.stage / "tests/consort-tests-devices.device-rank"
    context.needs(program)
    if context.kind == "host":
        raise Skip("there is no kernels path without a driver")
    # A rank of the tests reads the id of its job first, which a job of one process does not need.
    before = ["bash", "-c", 'head -c 128 /dev/zero | "$@"', "ranks", program, "device-prices", 0, 1]
    for ranks in amount(context, (2, 4, 8), (2, 4)):
        for blocks in amount(context, (4, 8, 16, 0), (8,)):
            settings = {"CONSORT_DEVICE_PATH": "kernels"} | ({"NCCL_MAX_CTAS": blocks} if blocks else {})
            code, text = context.command([*before, f"threads={ranks}", f"bytes={listed(sizes(context))}"], **settings)
            found = [{**record, "blocks": blocks} for record in answers(text)]
            context.records += found
            context.after_command()
            run = f"{ranks} ranks, {blocks or 'all'} blocks"
            if code:
                context.failures.append(f"{run}: ended with {code} after {len(found)} plans: {panics(text)}")
            elif not found or "path kernels" not in text.splitlines():
                context.failures.append(f"{run}: no plan of the kernels path ran")


def every_collective(context):
    for way in (["-t", "2"], ["-t", "4"], ["-p", "2"]):
        context.ranks(*way, *timing(context), "--sizes", amount(context, "64K,1M,64M", "1000"), label=" ".join(way))


def one_rank(context):
    """Single-rank calls, ours and NVIDIA's in turns."""
    options = [
        "-t",
        "1",
        "--sizes",
        amount(context, "8,8K,1M,64M", "8,1000"),
        "--collectives",
        "allreduce,reduce,broadcast,allgather,reducescatter",
    ]
    libraries = [None]
    try:
        context.needs_gpu("NVIDIA's library")
        libraries.append(context.theirs())
    except Skip as skip:
        context.notes.append(f"ours alone: {skip}")
    for library in libraries * amount(context, 2, 1):
        context.ranks(*options, *timing(context), library=library, label="one rank")
        context.ranks(*options, "--ops", "avg,premulsum", *timing(context), library=library, label="one rank, scaled")
        context.ranks(
            *options,
            "--mode",
            "launch",
            "--samples",
            amount(context, 300, 3),
            library=library,
            label="one rank, single calls",
        )


def latency(context):
    """From the call to its return and to the result, one call at a time."""
    samples = amount(context, 1000, 5)
    for way in (["-t", "1"], ["-t", "2"], ["-g", "2"], ["-t", "4"], ["-p", "2"]):
        context.ranks(
            *way,
            "--mode",
            "launch",
            "--samples",
            samples,
            "--sizes",
            amount(context, "8,8K,64K,256K", "8,8K"),
            "--collectives",
            "allreduce",
            label=" ".join(way),
        )
    for way, path in (("-g", "kernels"), ("-t", "kernels"), ("-t", "host")):
        context.ranks(
            way,
            "2",
            "--mode",
            "launch",
            "--samples",
            amount(context, 300, 5),
            "--sizes",
            amount(context, "8K,256K", "8K"),
            "--collectives",
            "allreduce",
            label=f"{way} 2, {path}",
            expects=path,
            CONSORT_DEVICE_PATH=path,
        )


def memory(context):
    """What communicators take of the device, with every collective called once."""
    few_types = [
        "--mode",
        "memory",
        "--types",
        "float",
        "--ops",
        "sum",
        "--sizes",
        amount(context, "8,1M,64M", "8,1000"),
    ]
    for way in (["-t", "1"], ["-t", "2"], ["-t", "4"], ["-p", "2"], ["-p", "4"]):
        context.ranks(*way, *few_types, label=" ".join(way))
    try:
        context.needs_gpu("NVIDIA's library")
        context.ranks("-t", "1", *few_types, library=context.theirs(), label="-t 1")
    except Skip as skip:
        context.notes.append(f"ours alone: {skip}")


def beside(context):
    """All-reduces of several ranks, ours and NVIDIA's, with equal numbers of thread blocks."""
    context.needs_gpu("NVIDIA's library")
    library, compared = context.theirs(), 0
    measured = [*timing(context), "--collectives", "allreduce", "--sizes", "8K,1M,64M", "--place", "out"]
    for name, (way, settings) in SEVERAL.items():
        for blocks in (1, 2, 8, 0):
            options = [*way, *(["--blocks", blocks] if blocks else []), *measured]
            shared = {"label": name, "limit_s": 60, **settings}
            try:
                found = context.ranks(*options, library=library, refusal_is_fine=True, is_optional=True, **shared)
            except Failed as failed:
                context.notes.append(f"{name}, {blocks or 'all'} blocks: {failed}")
                found = None
            if found is None:
                break
            compared += 1
            context.ranks(*options, **shared)
    if not compared:
        raise Skip("NVIDIA's library takes several ranks of one device in no way that is known")
