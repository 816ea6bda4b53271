"""How the processes of a group find each other: an id of the library, given on through PyTorch's store.

Invariant: waiting for the store can be ended, and holds no lock of it meanwhile. Absent: what is made of the id.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Callable, Optional

from ..communicator import Communicator, init, unique_id
from ..errors import MissingRanks
from ..prototypes import RESULTS

#: Seconds between two looks into the store, at first and at most.
_FIRST, _LAST = 0.001, 0.05


def wait_for(store: Any, key: str, seconds: Optional[float], check: "Callable[[], None]") -> bool:
    """Waits for a key; False when `seconds` passed before. `check` is called again and again, and may raise."""
    ends = None if seconds is None else time.monotonic() + seconds
    pause = _FIRST
    while not store.check([key]):
        check()
        if ends is not None and time.monotonic() >= ends:
            return False
        time.sleep(pause)
        pause = min(_LAST, 1.5 * pause)
    return True


def _nothing() -> None:
    pass


def join(
    store: Any,
    place: str,
    rank: int,
    size: int,
    seconds: Optional[float],
    name: Optional[str] = None,
    check: "Callable[[], None]" = _nothing,
) -> Communicator:
    """Joins the ranks that meet at the same `place` of the same store.

    Args:
        seconds: until the other ranks must have come, and until an operation fails; None for no deadline.
        check: called while rank 0 is waited for; may raise.
    Raises `MissingRanks` when rank 0 did not come.
    """
    # A group can be made again on one store. Each rank makes it as often as the others do.
    turn = store.add(f"{place}/turn/{rank}", 1)
    key = f"{place}/id/{turn}"
    if rank == 0:
        shared = unique_id()
        store.set(key, shared.hex())
    else:
        if not wait_for(store, key, seconds, check):
            cause = f"rank 0 of {size} did not come to the store within {seconds:g} s"
            remedy = "start all ranks with the same rendezvous, or raise the timeout of the group"
            raise MissingRanks(
                f"{cause}; {remedy}", rank=rank, peers=(0,), cause=cause, remedy=remedy, code=RESULTS["ncclRemoteError"]
            )
        shared = bytes.fromhex(store.get(key).decode())
    return init(rank, size, shared, timeout=seconds, name=name)


def seconds_of(timeout: Any) -> Optional[float]:
    """A timeout of PyTorch in seconds; None where it is unset."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else None


