"""A communicator's handle: how calls on it are made, interrupted and started, and how it ends.

Invariant: one handle is freed once, by `close`, by the end of the interpreter, or with the object; in a forked child
never. Absent: which calls there are (`collectives`, `variable`, `messages`, `membership`, `observability`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from typing import Any, Callable, List, Optional, TypeVar

from . import interrupts
from .calls import Call
from .dtypes import DataType, ScaledSum, operator
from .errors import Closed, Error, Forked, check, last, wrong
from .prototypes import C, RESULTS, SCALAR_HOST_IMMEDIATE, TIMEOUT_INHERIT, TIMEOUT_NONE
from .scalars import packed
from .work import Lane, Work

T = TypeVar("T")
Self = TypeVar("Self", bound="Handle")

#: Operators with a factor that a communicator keeps.
_SCALED_MAX = 64
#: Seconds that the end of the interpreter waits for a thread whose operations were ended.
_EXIT_SECONDS = 2.0

_live: "weakref.WeakSet[Handle]" = weakref.WeakSet()


class ThreadState(threading.local):
    """What a thread has under way: the group that it is in, and its deadline in seconds."""

    group: Optional[Any] = None
    deadline: float = TIMEOUT_INHERIT


here = ThreadState()


class Handle:
    """The part of a communicator that is the same for all calls."""

    def __init__(self, handle: int):
        self._handle: Optional[int] = handle
        self._forked = False
        self._lane: Optional[Lane] = None
        # A handler of a signal may come back in.
        self._lane_lock = threading.RLock()
        self._scaled: "dict[tuple[float, int], int]" = {}
        number = ctypes.c_int()
        check(C.ncclCommUserRank(handle, ctypes.byref(number)))
        #: This process's rank, from 0.
        self.rank: int = number.value
        check(C.ncclCommCount(handle, ctypes.byref(number)))
        #: The number of ranks.
        self.size: int = number.value
        _live.add(self)
        interrupts.watch()

    # How calls are made.

    def _open(self) -> int:
        """The handle. Raises `Closed` and `Forked`."""
        if self._handle is None:
            raise self._gone()
        return self._handle

    def _gone(self) -> Error:
        code = RESULTS["ncclInvalidUsage"]
        if self._forked:
            cause = "this communicator belongs to the parent process"
            remedy = "a forked child cannot use it: make a new communicator in the child"
            return Forked(f"{cause}; {remedy}", rank=self.rank, cause=cause, remedy=remedy, code=code)
        cause, remedy = "the communicator was closed", "make all calls before close()"
        return Closed(f"{cause}; {remedy}", rank=self.rank, cause=cause, remedy=remedy, code=code)

    def _make(self, call: Call) -> Any:
        """Makes a data call on this thread, now."""
        handle = self._handle
        if handle is None:
            raise self._gone()
        if interrupts.is_main():
            interrupts.under_way = self._interrupt
            try:
                code = call.function(*call.arguments, handle, call.stream)
            finally:
                interrupts.under_way = None
        else:
            code = call.function(*call.arguments, handle, call.stream)
        if code:
            raise last(code, self.rank)
        return call.result

    def _run(self, call: Call) -> Any:
        """Makes a data call and waits for it, after all that was started before."""
        group = here.group
        if group is not None:
            group.add(self, call)
            return self._make(call)
        lane = self._lane
        if lane is not None and lane.busy():
            return self._settle(self._queue(lambda: self._make(call)))
        return self._make(call)

    def _settle(self, work: "Work[T]") -> T:
        """Waits for work whose arrays belong to the caller again afterwards, whatever happens."""
        try:
            return work.result()
        except BaseException:
            if not work.done():
                self._interrupt()
                work.future().exception()
            raise

    def _start(self, call: Call) -> "Work[Any]":
        """Queues a data call."""
        if here.group is not None:
            raise wrong("a start_ call in a group", "start the whole group: start(function)", self.rank)
        return self._queue(lambda: self._make(call))

    def _queue(self, body: "Callable[[], T]") -> "Work[T]":
        self._open()
        deadline = here.deadline
        if deadline != TIMEOUT_INHERIT:
            inner = body

            def body() -> T:
                with Deadline(deadline):
                    return inner()

        work = Work(body)
        with self._lane_lock:
            # Another thread may have closed it since.
            self._open()
            if self._lane is None:
                self._lane = Lane(f"consort-rank-{self.rank}")
            self._lane.submit(work)
        return work

    def start(self: Self, body: "Callable[[Self], T]") -> "Work[T]":
        """Runs `body(communicator)` in the communicator's own thread, after all that was started before.

        For several calls that are to be one piece of work, such as a group. What it returns is the work's result.
        """

        def on_lane() -> T:
            return body(self)

        return self._queue(on_lane)

    def idle(self) -> bool:
        """Whether nothing that was started is still under way. Does not wait."""
        lane = self._lane
        return lane is None or not lane.busy()

    def drain(self, timeout: Optional[float] = None) -> bool:
        """Waits until all that was started is over; False when `timeout` seconds passed before. Raises no error of it."""
        lane = self._lane
        return lane is None or lane.drain(timeout)

    def _operator(self, op: "str | ScaledSum", dtype: DataType) -> int:
        """The code of an operator, which belongs to this communicator where it has a factor."""
        if not isinstance(op, ScaledSum):
            return operator(op, dtype)
        if dtype.kind not in ("number", "complex"):
            raise wrong(f"a scaled sum of {dtype.name}", "convert the array to a number first", self.rank)
        key = (op.factor, dtype.code)
        code = self._scaled.get(key)
        if code is None:
            if len(self._scaled) >= _SCALED_MAX and self.idle():
                for old in self._scaled.values():
                    C.ncclRedOpDestroy(old, self._open())
                self._scaled.clear()
            scalar, made = packed(op.factor, dtype.code), ctypes.c_int()
            check(
                C.ncclRedOpCreatePreMulSum(
                    ctypes.byref(made), scalar, dtype.code, SCALAR_HOST_IMMEDIATE, self._open()
                ),
                self.rank,
            )
            code = self._scaled[key] = made.value
        return code

    # How it ends.

    def _interrupt(self) -> None:
        handle = self._handle
        if handle is not None:
            C.consortCommAbort(handle, b"KeyboardInterrupt")

    def abort(self, reason: str = "no reason was given") -> None:
        """Ends all operations on all ranks, which raise `Aborted` with `reason`; any thread, at any time.

        The communicator is still to be closed. Raises `Closed` and `Forked`.
        """
        check(C.consortCommAbort(self._open(), reason.encode()), self.rank)

    def revoke(self, reason: str = "no reason was given") -> None:
        """As `abort`, but calls raise `Revoked`, and `split` and `shrink` stay possible."""
        check(C.consortCommRevoke(self._open(), reason.encode()), self.rank)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the parent of this process."""
        return self._handle is None

    def close(self) -> None:
        """Finishes what was started and frees the communicator. Does not wait for other ranks. May be called again."""
        if self._handle is None:
            return
        lane = self._lane
        if lane is not None and not lane.is_own_thread():
            lane.drain()
        self._free(C.ncclCommDestroy)

    def _free(self, end: Any) -> None:
        with self._lane_lock:
            handle, self._handle = self._handle, None
            lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()
        if handle is not None:
            end(handle)

    def __enter__(self: Self) -> Self:
        self._open()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None and self._handle is not None and not isinstance(error, Error):
            # Ranks that wait for this one must not wait for ever.
            C.consortCommAbort(self._handle, f"{kind.__name__}: {error}".encode())
        self.close()

    def __del__(self) -> None:
        # Nothing is under way: what is queued holds the communicator.
        if getattr(self, "_handle", None) is not None:
            self._free(C.ncclCommDestroy)

    # Deadlines.

    @property
    def timeout(self) -> Optional[float]:
        """Seconds until an operation on this communicator fails on all ranks; None for no deadline."""
        seconds = ctypes.c_double()
        check(C.consortCommGetTimeout(self._open(), ctypes.byref(seconds)), self.rank)
        return None if seconds.value == TIMEOUT_NONE else seconds.value

    @timeout.setter
    def timeout(self, seconds: Optional[float]) -> None:
        check(
            C.consortCommSetTimeout(self._open(), TIMEOUT_NONE if seconds is None else float(seconds)), self.rank
        )


class Deadline:
    """Within it, calls of this thread fail when they last longer, whatever their communicator's timeout is."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._outer: List[float] = []

    def __enter__(self) -> "Deadline":
        before = ctypes.c_double()
        check(C.consortThreadSetTimeout(self._seconds, ctypes.byref(before)))
        self._outer.append(before.value)
        here.deadline = self._seconds
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        here.deadline = self._outer.pop()
        C.consortThreadSetTimeout(here.deadline, None)


def deadline(seconds: Optional[float]) -> Deadline:
    """A context in which data calls of this thread, and those that it starts, have `seconds`; None for no deadline.

    A call that lasts longer raises `Timeout`, and its communicator ends on all ranks.
    """
    return Deadline(TIMEOUT_NONE if seconds is None else float(seconds))


def _at_exit() -> None:
    """Nothing may hang the end of the interpreter: what is under way is ended, on all ranks."""
    lanes = []
    for communicator in list(_live):
        if communicator._handle is None:
            continue
        lane = communicator._lane
        if lane is not None and lane.busy():
            C.consortCommAbort(communicator._handle, b"the interpreter of this rank ended")
            lanes.append(lane)
    ends = time.monotonic() + _EXIT_SECONDS
    for lane in lanes:
        lane.drain(max(0.0, ends - time.monotonic()))
    for communicator in list(_live):
        # It ends a call of a daemon thread too, where `ncclCommDestroy` would wait for it.
        communicator._free(C.ncclCommAbort)


def _in_child() -> None:
    """In a forked child: the communicators, and the threads of their lanes, are the parent's."""
    here.group = None
    for communicator in list(_live):
        communicator._handle, communicator._forked, communicator._lane = None, True, None
        communicator._lane_lock = threading.RLock()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
