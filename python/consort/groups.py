"""Groups of calls: made together, on one communicator or several.

Invariant: arrays of a group's calls are held until its end. Absent: groups of started work, which are made whole in a
communicator's own thread (`Handle.start`).
"""

from __future__ import annotations

from typing import Any, List, Optional

from . import interrupts
from .base import Handle, here
from .calls import Call
from .errors import last
from .prototypes import C


class Group:
    """A context: data calls of this thread in it are only recorded, and go on side by side at its end.

    Ranks that send to each other do so in a group. Results are there after the group. An exception in it makes none of
    its calls. A group in a group is part of the outer one.
    """

    def __init__(self) -> None:
        self._outer: Optional[Group] = None
        self._calls: List[Call] = []
        self._handles: List[Handle] = []

    def add(self, communicator: Handle, call: Call) -> None:
        """Holds the arrays of a call, and waits first for what was started on its communicator."""
        if self._outer is not None:
            self._outer.add(communicator, call)
            return
        self._calls.append(call)
        if not any(known is communicator for known in self._handles):
            self._handles.append(communicator)
            lane = communicator._lane
            if lane is not None and not lane.is_own_thread():
                lane.drain()

    def _interrupt(self) -> None:
        for communicator in self._handles:
            communicator._interrupt()

    def __enter__(self) -> "Group":
        self._outer, here.group = here.group, self
        C.ncclGroupStart()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        here.group, outer = self._outer, self._outer
        if error is not None and outer is None:
            # A call that is refused makes the group's end refuse all of them.
            C.ncclAllReduce(None, None, 1, 0, 0, None, None)
        if outer is None and interrupts.is_main():
            interrupts.under_way = self._interrupt
            try:
                code = C.ncclGroupEnd()
            finally:
                interrupts.under_way = None
        else:
            code = C.ncclGroupEnd()
        rank = self._handles[0].rank if self._handles else None
        self._calls, self._handles, self._outer = [], [], None
        if code and error is None:
            raise last(code, rank)


def group() -> Group:
    """A group of calls: `with consort.group(): comm.send(...); comm.recv(...)`."""
    return Group()
