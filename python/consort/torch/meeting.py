"""How the processes of a group find each other: an id of the library, given on through PyTorch's store.

Invariant: waiting for the store can be ended, and holds no lock of it meanwhile. Absent: what is made of the id.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence

from ..communicator import Begins, Communicator, joined, unique_id
from ..errors import MissingRanks
from ..membership import id_of
from ..prototypes import RESULTS

#: Seconds between two looks into the store, at first and at most.
_FIRST, _LAST = 0.001, 0.05
#: Seconds that other ranks wait for rank 0's word beyond their timeout, as it may have come later than they.
GRACE = 10.0


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


def absent(
    store: Any, place: str, size: int, seconds: Optional[float], every: bool, check: "Callable[[], None]" = _nothing
) -> List[int]:
    """The ranks from 1 on that have not said within `seconds` that they are here; only the first unless `every`."""
    ends = None if seconds is None else time.monotonic() + seconds
    found = []
    for rank in range(1, size):
        left = None if ends is None else max(0.0, ends - time.monotonic())
        if not wait_for(store, f"{place}/here/{rank}", left, check):
            found.append(rank)
            if not every:
                break
    return found


def here(store: Any, place: str, rank: int) -> None:
    """Says that a rank is here."""
    store.set(f"{place}/here/{rank}", b"1")


def _missing(ranks: Sequence[int], rank: int, size: int, seconds: Optional[float], name: Optional[str]) -> MissingRanks:
    listed = ", ".join(map(str, ranks))
    which = f'the process group "{name}"' if name else "the process group"
    cause = f"rank{'s' * (len(ranks) > 1)} {listed} of {size} did not come to {which} within {seconds or 0:g} s"
    remedy = "start all ranks, look at their output, or raise the timeout of the group"
    code = RESULTS["ncclRemoteError"]
    return MissingRanks(f"{cause}; {remedy}", rank=rank, peers=tuple(ranks), cause=cause, remedy=remedy, code=code)


def join(
    store: Any,
    place: str,
    rank: int,
    size: int,
    seconds: Optional[float],
    name: Optional[str] = None,
    check: "Callable[[], None]" = _nothing,
    begins: Optional[Begins] = None,
) -> Communicator:
    """Joins the ranks that meet at the same `place` of the same store.

    Args:
        seconds: until the other ranks must have come, and until an operation fails; None for no deadline.
        check: called while others are waited for; may raise.
        begins: is given a function by which another thread ends that the ranks join.
    Raises `MissingRanks`, on all ranks that came, with those that did not.
    """
    # A group can be made again on one store. Each rank makes it as often as the others do.
    place = f"{place}/{store.add(f'{place}/turn/{rank}', 1)}"
    key = f"{place}/id"
    if rank == 0:
        missing = absent(store, place, size, seconds, True, check)
        shared = unique_id()
        store.set(key, ",".join(map(str, missing)) + ":" + shared.hex())
    else:
        here(store, place, rank)
        # Rank 0 gives up first, and says who is missing.
        if not wait_for(store, key, None if seconds is None else seconds + GRACE, check):
            raise _missing([0], rank, size, seconds, name)
        listed, _, id = store.get(key).decode().partition(":")
        missing, shared = [int(one) for one in listed.split(",") if one], bytes.fromhex(id)
    if missing:
        raise _missing(missing, rank, size, seconds, name)
    return joined(rank, size, id_of(shared), seconds, name, begins)


def seconds_of(timeout: Any) -> Optional[float]:
    """A timeout of PyTorch in seconds; None where it is unset."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else None


