"""All-reduce of float32 from Python, beside other libraries, on one host.

    python all_reduce.py --ranks 2 [--mpi NAME=LAUNCHER,PYTHON ...] [--vllm FILE] [--deepspeed FILE]

Beside consort (its own interface with NumPy arrays, with arrays that other ranks can map and with tensors, and its
backend of `torch.distributed`) it measures Gloo; any MPI, by the launcher and a Python that has mpi4py for it; and the
all-reduces in shared memory that vLLM, and DeepSpeed and SGLang, have for tensor parallelism on processors, where a
library registers them as `peer_vllm` and `peer_deepspeed` (see docs/measurements/python.md). What is not passed is
not measured, and the program says so.

Every result is checked. Ranks that spin without giving their core away, as those all-reduces do, need a core each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import ranks

#: What a block of calls should last, in seconds, and the most and least calls.
BLOCK, MOST, LEAST = 0.02, 2000, 2

#: A call, and the array that it works on, as a NumPy array.
Way = Tuple[Callable[[], Any], Any]


def elements_of(values: Any, rank: int) -> None:
    """Fills an array with what rank `rank` contributes to the check."""
    import numpy

    values[:] = (numpy.arange(len(values)) % 251) * (rank + 1)


def check(name: str, way: Way, rank: int, size: int) -> None:
    """Makes one call, and fails where its result is not the sum."""
    import numpy

    call, values = way
    elements_of(values, rank)
    call()
    wanted = (numpy.arange(len(values)) % 251) * (size * (size + 1) // 2)
    if not (values == wanted).all():
        raise SystemExit(f"rank {rank}: a wrong sum of {name}: {values[:8]} instead of {wanted[:8]}")
    # Zeros stay zeros, however often they are summed.
    values[:] = 0


def calls_for(ways: Dict[str, Way], agreed: Callable[[float], float], barrier: Callable[[], Any]) -> int:
    """How many calls of the slowest way a block has."""
    found = ranks.in_turn({name: way[0] for name, way in ways.items()}, barrier, 3, 2)
    slowest = agreed(max(min(seconds) for seconds in found.values()))
    return max(LEAST, min(MOST, int(BLOCK / slowest)))


def measured(make: Callable[[int], Dict[str, Way]], asked: Any, rank: int, size: int, agreed: Any, barrier: Any) -> Any:
    """Medians in microseconds, by size and way."""
    found: Dict[str, Dict[str, float]] = {}
    for count in asked.bytes:
        ways = make(count)
        for name, way in ways.items():
            check(name, way, rank, size)
        calls = calls_for(ways, agreed, barrier)
        seconds = ranks.in_turn({name: way[0] for name, way in ways.items()}, barrier, calls, asked.rounds)
        for name, way in ways.items():
            check(name, way, rank, size)
        found[str(count)] = {name: 1e6 * ranks.median(values) for name, values in seconds.items()}
    return found


def with_torch(asked: Any) -> None:
    """One rank of the ways of PyTorch and of consort."""
    import numpy
    import torch
    import torch.distributed as dist

    import consort
    import consort.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="cpu:consort")
    id = [consort.unique_id() if rank == 0 else None]
    dist.broadcast_object_list(id)
    comm = consort.init(rank, size, id[0])
    handle = 0
    if asked.vllm:
        torch.ops.load_library(asked.vllm)
        name = f"/consort-bench-{os.environ['MASTER_PORT']}"
        handle = torch.ops.peer_vllm.init_shm_manager(name, size, rank, 1)
        dist.barrier()
        torch.ops.peer_vllm.join_shm_manager(handle, name)
    if asked.deepspeed:
        torch.ops.load_library(asked.deepspeed)
        torch.ops.peer_deepspeed.start(size, rank, "consort-bench", os.environ["MASTER_PORT"])
    dist.barrier()

    def make(count: int) -> Dict[str, Way]:
        def tensor() -> Any:
            return torch.zeros(count // 4)

        ways: Dict[str, Way] = {}
        own = numpy.zeros(count // 4, numpy.float32)
        ways["consort, NumPy"] = (lambda: comm.all_reduce(own), own)
        mapped = numpy.asarray(consort.empty(count // 4, "float32"))
        ways["consort, mapped"] = (lambda: comm.all_reduce(mapped), mapped)
        plain, ours, theirs = tensor(), tensor(), tensor()
        ways["consort, tensor"] = (lambda: comm.all_reduce(plain), plain.numpy())
        ways["consort, torch"] = (lambda: dist.all_reduce(ours, group=group), ours.numpy())
        ways["Gloo"] = (lambda: dist.all_reduce(theirs), theirs.numpy())
        if asked.vllm:
            first = tensor()
            ways["vLLM"] = (lambda: torch.ops.peer_vllm.shm_allreduce(handle, first), first.numpy())
        if asked.deepspeed:
            second = tensor()
            ways["SGLang, DeepSpeed"] = (lambda: torch.ops.peer_deepspeed.shm_allreduce(second), second.numpy())
        return ways

    def agreed(value: float) -> float:
        return float(comm.all_reduce(numpy.array([value]), "max")[0])

    found = measured(make, asked, rank, size, agreed, comm.barrier)
    if rank == 0:
        print(json.dumps(found), flush=True)
    comm.close()
    # DeepSpeed's code leaves its files.
    for file in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{os.environ['MASTER_PORT']}_{rank}"):
        file.unlink()
    dist.destroy_process_group()


def with_mpi(asked: Any) -> None:
    """One rank of an MPI."""
    import numpy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def make(count: int) -> Dict[str, Way]:
        values = numpy.zeros(count // 4, numpy.float32)
        return {asked.worker: (lambda: comm.Allreduce(MPI.IN_PLACE, values), values)}

    found = measured(make, asked, comm.rank, comm.size, lambda value: comm.allreduce(value, MPI.MAX), comm.Barrier)
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


def merged(passes: List[Any]) -> Dict[str, Dict[str, float]]:
    """The median of the passes."""
    found: Dict[str, Dict[str, List[float]]] = {}
    for one in passes:
        for count, ways in one.items():
            for name, value in ways.items():
                found.setdefault(count, {}).setdefault(name, []).append(value)
    return {count: {name: ranks.median(values) for name, values in ways.items()} for count, ways in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, nargs="+", default=[1 << n for n in (3, 10, 12, 13, 14, 16, 18, 20, 22, 24, 25, 26)])
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each way, which take turns")
    parser.add_argument("--passes", type=int, default=2, help="starts of all processes")
    parser.add_argument("--mpi", action="append", default=[], metavar="NAME=LAUNCHER,PYTHON")
    parser.add_argument("--vllm", metavar="FILE")
    parser.add_argument("--deepspeed", metavar="FILE")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker == "torch":
        return with_torch(asked)
    if asked.worker:
        return with_mpi(asked)
    for what, given in (("MPI", asked.mpi), ("vLLM", asked.vllm), ("SGLang and DeepSpeed", asked.deepspeed)):
        if not given:
            print(f"SKIP: no {what} was passed", file=sys.stderr)
    common = ["--rounds", str(asked.rounds), "--bytes", *map(str, asked.bytes)]
    files = [part for name in ("vllm", "deepspeed") if getattr(asked, name) for part in (f"--{name}", getattr(asked, name))]
    passes = []
    for _ in range(asked.passes):
        passes.append(ranks.started(__file__, asked.ranks, ["--worker", "torch", *common, *files]))
        for one in asked.mpi:
            name, _, rest = one.partition("=")
            launcher, _, python = rest.partition(",")
            passes.append(ranks.of_mpi(launcher, python, __file__, asked.ranks, ["--worker", name, *common]))
    found = merged(passes)
    names = list(dict.fromkeys(name for ways in found.values() for name in ways))
    rows = [[ranks.size_name(int(count)), *(f"{ways[name]:.1f}" for name in names)] for count, ways in found.items()]
    print(f"\n{asked.ranks} ranks, microseconds, medians of {asked.rounds} blocks in {asked.passes} passes\n")
    print(ranks.table(["bytes", *names], rows))


if __name__ == "__main__":
    main()
