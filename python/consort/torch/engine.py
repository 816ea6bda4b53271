"""How the operations of a process group are made, and how the group ends.

```
   on the caller's thread, at once:  the program waits for it (`async_op=False`) and nothing is queued
   by the communicator's thread:     everything else, in order
```

Invariant: calls on the communicator are made one at a time, in the order in which the program asked for them. Tensors
are held until their operation is over. Absent: which operations there are (`operations`), messages (`peers`).
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Any, Callable, List, Optional, Sequence

from torch import Tensor

from ..base import Deadline
from ..calls import Call
from ..communicator import Communicator
from ..errors import Closed, wrong
from ..groups import group
from ..prototypes import RESULTS
from . import leaving, meeting
from .failures import raised
from .peers import Channels
from .tensors import Copies, copy_out
from .work import Work, done

_live: "weakref.WeakSet[Engine]" = weakref.WeakSet()
#: Seconds that the end of the interpreter waits for the threads of messages that were ended.
_EXIT_SECONDS = 5.0


class Plan:
    """An operation whose arguments were checked."""

    __slots__ = ("calls", "copies", "after", "result")

    def __init__(self, result: List[Tensor]):
        #: Made together.
        self.calls: List[Call] = []
        #: Made after the calls.
        self.copies: Copies = []
        #: Made between the calls and the copies.
        self.after: List[Callable[[], None]] = []
        self.result = result


class Engine:
    """One group's communicator, and the threads that make its calls."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: Optional[float],
        ranks: Sequence[int] = (),
        name: str = "",
        inline_bytes: int = 0,
        comm: Optional[Communicator] = None,
        joining: Optional[meeting.Joining] = None,
    ):
        self.store, self.name, self.timeout = store, name, timeout
        #: The job's ranks by the group's, None where they are the same.
        self.ranks = list(ranks) if ranks and list(ranks) != list(range(size)) else None
        self.inline_bytes = inline_bytes
        #: Made here unless it is passed; this object closes it in both cases.
        self.comm: Communicator = comm or meeting.join(store, "group", rank, size, timeout, name or None, joining)
        self.channels = Channels(store, rank, name)
        self._turn = threading.RLock()
        self._process = os.getpid()
        #: Works whose wait Ctrl-C ended.
        self._interrupted: "List[weakref.ref[Work]]" = []
        #: How many operations were asked for, without messages.
        self.operations = 0
        _live.add(self)

    # Operations.

    def submit(self, plan: Plan, opts: Any, size: int) -> Work:
        """Makes an operation of `size` bytes, or queues it."""
        self.operations += 1
        seconds = meeting.seconds_of(getattr(opts, "timeout", None))
        waits = not getattr(opts, "asyncOp", True)
        # What a callback of an operation makes has that operation's place in the order, and must not wait for the queue.
        nested = self._on_own_thread()
        if (waits or size <= self.inline_bytes or nested) and self._turn.acquire(blocking=nested):
            try:
                if nested or self.comm.idle():
                    with leaving.inside:
                        return self._now(plan, seconds)
            finally:
                self._turn.release()
        work = Work(plan.result, True, self._interrupt)

        def body() -> None:
            try:
                with self._turn:
                    self._make(plan, seconds)
            except BaseException as error:
                work.finish(raised(error, self.ranks))
            else:
                work.finish()

        self.comm._queue(body)
        return work

    def _on_own_thread(self) -> bool:
        """Whether a callback of an operation asks."""
        lane = self.comm._lane
        return lane is not None and lane.is_own_thread()

    def _now(self, plan: Plan, seconds: Optional[float]) -> Work:
        try:
            self._make(plan, seconds)
        except Exception as error:
            return done(plan.result, raised(error, self.ranks))
        return done(plan.result)

    def _make(self, plan: Plan, seconds: Optional[float]) -> None:
        if seconds is None:
            self._calls(plan)
        else:
            with Deadline(seconds):
                self._calls(plan)
        for step in plan.after:
            step()
        if plan.copies:
            copy_out(plan.copies)

    def _calls(self, plan: Plan) -> None:
        if len(plan.calls) == 1:
            self.comm._make(plan.calls[0])
        elif plan.calls:
            with group():
                for call in plan.calls:
                    self.comm._run(call)

    def message(self, tensor: Tensor, result: Tensor, copies: Copies, peer: int, receives: bool) -> Work:
        """Queues a message to or from `peer`."""
        if not 0 <= peer < self.comm.size or peer == self.comm.rank:
            raise wrong(f"a message between rank {self.comm.rank} and rank {peer}", "pass another rank of the group")
        self._check_open()
        work = _Message([result], copies, self._interrupt)
        self.channels.start(peer, receives, tensor, work, self._named_pair, self.comm, self.timeout)
        return work

    def _named_pair(self, error: BaseException, pair: "tuple[int, int]") -> BaseException:
        return raised(error, [self.ranks[rank] for rank in pair] if self.ranks else pair)

    def _check_open(self) -> None:
        if self.comm.closed:
            raise self.comm._gone()

    # How it ends.

    def set_timeout(self, seconds: Optional[float]) -> None:
        """Seconds until an operation fails on all ranks."""
        self.timeout = seconds
        if not self.comm.closed:
            self.comm.timeout = seconds
        self.channels.set_timeout(seconds)

    def abort(self) -> None:
        """Ends everything on all ranks, and frees the communicator. Any thread; may be called again."""
        if self.comm.closed or self._process != os.getpid():
            return
        reason = "the process group was aborted"
        self._abort(reason)
        self.channels.abort(reason)
        self._close(None)

    def _abort(self, reason: str) -> None:
        try:
            self.comm.abort(reason)
        except Closed:
            # By another thread.
            pass

    def _interrupt(self, work: Work) -> None:
        self._interrupted = [*self._under_way(), weakref.ref(work)]

    def _under_way(self) -> "List[weakref.ref[Work]]":
        """The interrupted works that are not over."""
        works = [(ref, ref()) for ref in self._interrupted]
        return [ref for ref, work in works if work is not None and not work.is_completed()]

    def shutdown(self) -> None:
        """Finishes what was started, for as long as the group's timeout, and frees the communicator.

        While an operation is under way whose wait Ctrl-C ended, it waits for nothing: that may never end.
        """
        if self.comm.closed or self._process != os.getpid():
            return
        self._close(0.0 if self._under_way() else self.timeout)

    def _close(self, timeout: Optional[float]) -> None:
        self.channels.close(timeout)
        if not self._on_own_thread() and not self.comm.drain(timeout):
            self._abort("the process group was destroyed before its operations were over")
        self.comm.close()

    def failure(self) -> Optional[int]:
        """The result of what ended the communicator; None while it works."""
        if self.comm.closed or not self.comm.failed():
            return None
        text = self.comm.status()
        return RESULTS["ncclTimeout"] if "did not finish within" in text else RESULTS["ncclRemoteError"]


class _Message(Work):
    """A message, whose buffer is copied into its tensor."""

    def __init__(self, result: List[Tensor], copies: Copies, interrupted: Callable[[Work], None]):
        super().__init__(result, True, interrupted)
        self._copies = copies

    def finish(self, error: Optional[BaseException] = None) -> None:
        if error is None:
            try:
                copy_out(self._copies)
            except Exception as refused:
                # A tensor whose elements share memory, for one: the message came, and its tensor cannot have it.
                error = raised(refused)
        super().finish(error)


def _at_exit() -> None:
    """Before the package frees its communicators: no thread may come back into PyTorch after the interpreter's end."""
    engines = [engine for engine in list(_live) if engine._process == os.getpid() and not engine.comm.closed]
    if not engines:
        return
    leaving.begin()
    reason = "the interpreter of this rank ended"
    for engine in engines:
        for channel in engine.channels._all():
            channel.abort(reason)
        if not engine._turn.acquire(blocking=False):
            engine.comm.abort(reason)
        else:
            engine._turn.release()
    leaving.wait(_EXIT_SECONDS)
    for engine in engines:
        for channel in engine.channels._all():
            channel._lane.drain(_EXIT_SECONDS)


atexit.register(_at_exit)
