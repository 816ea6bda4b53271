"""The barrier that says who did not come.

Ranks report to rank 0 through the store, so that a rank that does not come leaves the communicator as it is.

Invariant: all ranks that came get the same verdict, unless the group fails or ends meanwhile, which each of them sees. Absent: who
died, which the communicator knows.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any, List, Optional

import torch.distributed as dist

from .engine import Engine
from .meeting import GRACE, absent, here, seconds_of, wait_for


def barrier(engine: Engine, opts: Any, wait_all_ranks: bool) -> None:
    """Returns when all ranks have come. Raises `DistBackendError` with the ranks that did not.

    Args:
        wait_all_ranks: name all of them, and not only the first.
    """
    comm, store = engine.comm, engine.store
    engine._check_open()
    seconds = _seconds(engine, opts.timeout)

    def check() -> None:
        engine._check_open()
        if comm.failed():
            raise dist.DistBackendError(comm.status())

    turn = store.add(f"monitored/turn/{comm.rank}", 1)
    place = f"monitored/{turn}"
    if comm.rank:
        here(store, place, comm.rank)
        within = None if seconds is None else seconds + GRACE
        if not wait_for(store, f"{place}/verdict", within, check):
            raise dist.DistBackendError(_text(engine, [0], seconds or 0))
        missing = _parsed(store.get(f"{place}/verdict"))
    else:
        missing = absent(store, place, comm.size, seconds, wait_all_ranks, check)
        store.set(f"{place}/verdict", ",".join(map(str, missing)) or "none")
        if not missing:
            _forget(store, turn - 1, comm.size)
    if missing:
        raise dist.DistBackendError(_text(engine, missing, seconds or 0))


def _forget(store: Any, turn: int, size: int) -> None:
    """Deletes the keys of a barrier: all ranks came to a later one, so they have read its verdict."""
    if turn:
        keys = [f"monitored/{turn}/verdict", *(f"monitored/{turn}/here/{rank}" for rank in range(1, size))]
        with contextlib.suppress(RuntimeError, NotImplementedError):
            # Stores of files delete nothing.
            for key in keys:
                store.delete_key(key)


def _seconds(engine: Engine, timeout: Any) -> Optional[float]:
    """0 looks once; what is unset or negative is the group's own."""
    if timeout is not None and timeout == timedelta(0):
        return 0.0
    return seconds_of(timeout) or engine.timeout


def _parsed(verdict: bytes) -> List[int]:
    text = verdict.decode()
    return [] if text == "none" else [int(rank) for rank in text.split(",")]


def _text(engine: Engine, missing: List[int], seconds: float) -> str:
    names = engine.ranks or range(engine.comm.size)
    ranks = ", ".join(str(names[rank]) for rank in missing)
    return (
        f"monitored_barrier: rank{'s' * (len(missing) > 1)} {ranks} did not come within {seconds:g} s; look at what "
        f"{'they do' if len(missing) > 1 else 'it does'}, or raise the timeout"
    )
