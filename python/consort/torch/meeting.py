"""How the processes of a group find each other: an id of the library, given on through PyTorch's store.

Invariant: waiting for the store can be ended, and holds no lock of it meanwhile. Absent: what is made of the id.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence

from ..communicator import Communicator, joined, unique_id
from ..errors import MissingRanks
from ..membership import id_of
from ..prototypes import RESULTS

#: Seconds between two looks into the store, at first and at most.
_FIRST, _LAST = 0.001, 0.05
#: Seconds that other ranks wait for rank 0's word beyond their timeout, as it may have come later than they.
GRACE = 10.0


class Ended(Exception):
    """Another thread ended that ranks meet."""


class Joining:
    """Lets another thread end that the ranks meet and join."""

    def __init__(self, what: str):
        self._what = what
        self._end: Optional[Callable[[], object]] = None
        #: Whether `end` was called.
        self.ended = False
        # A handler of a signal may come back in.
        self._lock = threading.RLock()

    def check(self) -> None:
        """Raises `Ended` where it was ended."""
        if self.ended:
            raise Ended(f"{self._what} was ended while its ranks met")

    def begins(self, end: "Callable[[], object]") -> None:
        """The ranks have met, and join: `end` ends that."""
        with self._lock:
            self.check()
            self._end = end

    def over(self) -> None:
        """The ranks have joined, or failed to."""
        with self._lock:
            self._end = None

    def end(self) -> None:
        """Ends it, now or as soon as it begins."""
        with self._lock:
            self.ended = True
            if self._end is not None:
                self._end()


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
    joining: Optional[Joining] = None,
    check: "Optional[Callable[[], None]]" = None,
) -> Communicator:
    """Joins the ranks that meet at the same `place` of the same store.

    Args:
        seconds: until the other ranks must have come, and until an operation fails; None for no deadline.
        joining: by which another thread ends it.
        check: called while others are waited for; may raise. That of `joining` where it is None.
    Raises `MissingRanks`, on all ranks that came, with those that did not, and `Ended`.
    """
    joining = joining or Joining(f'the process group "{name}"' if name else "the process group")
    check = check or joining.check
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
    try:
        return joined(rank, size, id_of(shared), seconds, name, joining.begins)
    finally:
        joining.over()


def seconds_of(timeout: Any) -> Optional[float]:
    """A timeout of PyTorch in seconds; None where it is unset."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else None


