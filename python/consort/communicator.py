"""The communicator, and how the first one is made.

Invariant: joining ends with a communicator or an exception, within the join timeout. Absent: what a communicator does.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, List, Optional

from .collectives import Collectives
from .errors import check, wrong
from .membership import Membership, id_of, made
from .messages import Messages
from .observability import Observability
from .prototypes import C, Config, UniqueId
from .variable import VariableCollectives


class Communicator(Collectives, VariableCollectives, Messages, Membership, Observability):
    """A group of ranks that call collectives together, in one order. Made by `init`, `local`, `split`, `shrink`, `grow`.

    One thread at a time makes calls on it; `abort`, `revoke`, `report` and the other questions are for any thread. A
    context manager: it closes at the end, and aborts on all ranks when the block raises.
    """

    def __repr__(self) -> str:
        state = "closed" if self.closed else "failed" if self.failed() else "ready"
        return f"<consort.Communicator rank {self.rank} of {self.size}, {state}>"


#: Is given a function by which another thread ends that the ranks join.
Begins = Callable[[Callable[[], object]], None]


def _joined(call: Any, timeout: Optional[float], rank: Optional[int], begins: Optional[Begins] = None) -> Communicator:
    # The place has the handle while the ranks join, so that another thread can end that.
    handle = made(call, lambda place: C.ncclCommAbort(place.value), rank, begins)
    assert handle is not None
    communicator = Communicator(handle)
    if timeout is not None:
        communicator.timeout = timeout
    return communicator


def unique_id() -> bytes:
    """An id of 128 bytes for one `init`. One process makes it, keeps running, and gives it to the others. Secret: a process
    that has it can join."""
    made_id = UniqueId()
    check(C.ncclGetUniqueId(ctypes.byref(made_id)))
    return bytes(made_id)


def init(
    rank: Optional[int] = None,
    size: Optional[int] = None,
    id: Optional[bytes] = None,
    *,
    timeout: Optional[float] = None,
    name: Optional[str] = None,
) -> Communicator:
    """Joins a communicator, and returns when all its ranks have.

    Without `rank`, `size` and `id` they come from the launcher: torchrun, mpirun, srun, or `CONSORT_RANK` and
    `CONSORT_SIZE`. Ranks on one host find each other; for several hosts set `CONSORT_ADDRESS` and `CONSORT_SECRET`.

    Args:
        rank: this process's number, from 0.
        size: how many ranks join.
        id: from `unique_id()` of one of the processes.
        timeout: seconds until an operation fails on all ranks; None for none, unless `CONSORT_TIMEOUT` sets one.
        name: for reports.
    Raises `InvalidArgument` without a launcher or for numbers that make no rank, `MissingRanks` or `JoinFailed` when not
    all came within `CONSORT_JOIN_TIMEOUT` (300 s), `DifferentSettings`.
    """
    given = [value is not None for value in (rank, size, id)]
    if not any(given):
        own, all_ranks, shared = ctypes.c_int(), ctypes.c_int(), UniqueId()
        check(C.consortLaunch(ctypes.byref(own), ctypes.byref(all_ranks), ctypes.byref(shared)))
        rank, size = own.value, all_ranks.value
    elif not all(given):
        raise wrong("some of rank, size and id", "pass all three, or none of them under a launcher")
    else:
        shared = id_of(id or b"")
    return joined(rank, size, shared, timeout, name)


def joined(
    rank: Optional[int],
    size: Optional[int],
    shared: UniqueId,
    timeout: Optional[float],
    name: Optional[str],
    begins: Optional[Begins] = None,
) -> Communicator:
    """As `init`, with an id in C's form, and for callers whose other threads end it; errors are those of `init`."""
    config = ctypes.byref(Config(name))
    return _joined(lambda place: C.ncclCommInitRankConfig(place, size, shared, rank, config), timeout, rank, begins)


def join_grown(id: bytes, rank: int, size: int, *, timeout: Optional[float] = None) -> Communicator:
    """Joins a communicator that its ranks `grow` to `size`; `rank` counts on from their number."""
    shared, config = id_of(id), ctypes.byref(Config())
    call = lambda place: C.ncclCommGrow(None, size, ctypes.byref(shared), rank, place, config)  # noqa: E731
    return _joined(call, timeout, rank)


def local(size: int) -> List[Communicator]:
    """A communicator whose `size` ranks are all in this process: one for each thread."""
    handles = (ctypes.c_void_p * max(size, 1))()
    check(C.ncclCommInitAll(handles, size, None))
    return [Communicator(handle) for handle in handles if handle is not None]
