"""What a communicator says of itself.

Invariant: any thread may ask at any time, also while another waits in a call. Durations are seconds in keys that end in
`_s`. Absent: data calls.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any, Callable, Dict, Optional

from .base import Handle
from .errors import check
from .prototypes import C, COLLECTIVES, JSON, RESULTS, TEXT
from .errors import wrong

Report = Dict[str, Any]
#: `ncclCommMemStat_t`
_STATISTICS = {"suspendable": 0, "is_suspended": 1, "persistent": 2, "total": 3}


def _text(ask: "Callable[..., int]", *arguments: Any, rank: int) -> str:
    """A text of whatever length. It may grow from one call to the next."""
    capacity, needed = 16384, ctypes.c_size_t()
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        check(ask(*arguments, buffer, capacity, ctypes.byref(needed)), rank)
        if needed.value <= capacity:
            return buffer.value.decode("utf-8", "replace")
        capacity = 2 * needed.value


class Observability(Handle):
    """The part of a communicator that can be asked."""

    def _json(self, ask: Any, *arguments: Any) -> Any:
        text = _text(ask, self._open(), *arguments, JSON, rank=self.rank)
        return json.loads(text) if text else None

    def report(self) -> Report:
        """What every rank does, and which rank keeps an operation from ending: the hang report, made now.

        Takes up to half a second when ranks do not answer. After a deadline passed it is the one that all ranks share.
        """
        return self._json(C.consortCommReport)

    def report_text(self) -> str:
        """The hang report for people, in several lines."""
        return _text(C.consortCommReport, self._open(), TEXT, rank=self.rank)

    def last_report(self) -> Optional[Report]:
        """The last hang report that the library made by itself: after `CONSORT_REPORT_AFTER` seconds of an operation, or
        when a deadline passed. None where there was none. Does not wait."""
        return self._json(C.consortCommLastReport)

    def flight_record(self) -> Report:
        """The last operations of this rank: when each was entered, how long it took, and how it ended. Does not wait."""
        return self._json(C.consortCommFlightRecord)

    def stragglers(self) -> Report:
        """Which ranks came last to the last collectives, how often and by how much. Asks all ranks, as `report` does."""
        return self._json(C.consortCommStragglers)

    def explain(self, collective: str, bytes: int) -> Report:
        """Which algorithm runs a collective on blocks of `bytes` bytes, why, and what each other candidate would cost.

        `collective` is the name of the method, such as `all_reduce`. Moves nothing and asks no other rank.
        """
        if collective not in COLLECTIVES:
            raise wrong(f"no collective {collective!r}", "pass one of " + ", ".join(COLLECTIVES), self.rank)
        return self._json(C.consortCommExplain, COLLECTIVES[collective], bytes)

    def explain_text(self, collective: str, bytes: int) -> str:
        """As `explain`, for people."""
        if collective not in COLLECTIVES:
            raise wrong(f"no collective {collective!r}", "pass one of " + ", ".join(COLLECTIVES), self.rank)
        return _text(C.consortCommExplain, self._open(), COLLECTIVES[collective], bytes, TEXT, rank=self.rank)

    def status(self) -> str:
        """The text of the failure that ended the communicator, "" while it works. Does not wait."""
        return _text(C.consortCommStatus, self._open(), rank=self.rank)

    def failed(self) -> bool:
        """Whether a failure, an abort or a revocation has ended the communicator. Does not wait."""
        result = ctypes.c_int()
        check(C.ncclCommGetAsyncError(self._open(), ctypes.byref(result)), self.rank)
        return result.value not in (RESULTS["ncclSuccess"], RESULTS["ncclInProgress"])

    def memory(self) -> "Dict[str, int]":
        """The communicator's memory in bytes: `suspendable`, `persistent`, `total`; and `is_suspended`, 0 or 1."""
        found, value = {}, ctypes.c_uint64()
        for name, number in _STATISTICS.items():
            check(C.ncclCommMemStats(self._open(), number, ctypes.byref(value)), self.rank)
            found[name] = value.value
        return found
