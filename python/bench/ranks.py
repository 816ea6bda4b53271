"""What the measurements share: ranks as processes, blocks of calls that are timed in turn, and tables.

Ways that are compared take turns, block by block, in the same processes, so that what else runs on the machine hits all
of them. A figure is the median over the blocks.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Sequence

#: Seconds that one start of ranks may last.
LIMIT = 600.0


def started(script: str, ranks: int, arguments: Sequence[str]) -> Any:
    """Starts `script rank...` for each rank with the variables of torchrun; what rank 0 printed last, as JSON."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = []
    for rank in range(ranks):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        pipe = subprocess.PIPE if rank == 0 else None
        processes.append(subprocess.Popen([sys.executable, script, *arguments], env=environment, stdout=pipe, text=True))
    try:
        output = processes[0].communicate(timeout=LIMIT)[0]
        for process in processes:
            if process.wait(timeout=30):
                raise SystemExit(f"a rank of {script} ended with {process.returncode}")
        return json.loads(output.splitlines()[-1])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def of_mpi(launcher: str, python: str, script: str, ranks: int, arguments: Sequence[str]) -> Any:
    """The same under an MPI's launcher, with the Python that has its mpi4py."""
    command = [launcher, "-n", str(ranks), python, script, *arguments]
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # With more ranks than cores an MPI that spins must give its core away.
    if ranks > (os.cpu_count() or 1):
        environment.update(PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe", OMPI_MCA_mpi_yield_when_idle="1")
        environment.update(I_MPI_WAIT_MODE="1", I_MPI_THREAD_YIELD="3", MPIR_CVAR_CH4_IPC_CMA_ENABLE="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def in_turn(ways: Dict[str, Callable[[], Any]], barrier: Callable[[], Any], calls: int, rounds: int) -> Dict[str, List[float]]:
    """Seconds a call of each way, for each round. All ranks call it with the same arguments."""
    found: Dict[str, List[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            barrier()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            found[name].append((time.perf_counter() - began) / calls)
    return found


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def size_name(size: int) -> str:
    """`64 KiB`."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
