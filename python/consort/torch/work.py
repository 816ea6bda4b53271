"""Work as PyTorch knows it, for operations that are over and for those that a communicator's thread makes.

Invariant: `wait` raises the operation's error, each time; the future is completed by the thread that made the operation,
and `wait` returns when it is done. Absent: what is done.
"""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import Any, Callable, List, Optional

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from . import leaving

_FOREVER = timedelta(0)


class Work(dist._Work):
    """An operation of one group. `async_op=True` gives the program a wrapper of it that has `wait` and `get_future`."""

    # What most works never change: those that are over when they are made.
    _interrupted: "Optional[Callable[[Work], None]]" = None
    _error: Optional[BaseException] = None
    _over: Optional[threading.Event] = None
    # A future made with the work is completed by the operation's thread; one made later, at once.
    _ended: Any = None
    _future: Any = None

    def __init__(self, result: List[Tensor], pending: bool, interrupted: "Optional[Callable[[Work], None]]" = None):
        super().__init__()
        self._result = result
        if pending:
            self._interrupted, self._over = interrupted, threading.Event()
            self._make_future()

    def _make_future(self) -> None:
        # C++ takes an exception in a future of Python for its value, and DDP crashes on it. What a callback raises is an
        # error in C++ too.
        self._ended = Future()
        self._future = self._ended.then(self._value)

    def _value(self, ended: Any) -> List[Tensor]:
        if self._error is not None:
            raise self._error
        return self._result

    # For those who make the operation.

    def finish(self, error: Optional[BaseException] = None) -> None:
        """Says that it is over. Callbacks run in the calling thread."""
        self._error = error
        if self._over is not None:
            self._over.set()
            self._ended.set_result(self._result)

    # For PyTorch and the program.

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Returns when it is over; raises its error, and `DistBackendError` when `timeout` passed before."""
        if self._over is not None and not self._waited(self._over, timeout.total_seconds() or None):
            raise dist.DistBackendError(
                f"the operation is still under way after {timeout.total_seconds():g} s; it goes on: wait again, or "
                "abort the process group"
            )
        if self._over is not None:
            # The future is completed just behind: a program that asks it next finds it done. Its error is raised below.
            with contextlib.suppress(RuntimeError):
                self._future.wait()
        if self._error is not None:
            raise self._error
        return True

    def _waited(self, over: threading.Event, seconds: Optional[float]) -> bool:
        with leaving.inside:
            try:
                return over.wait(seconds)
            except BaseException:
                # Ctrl-C: the operation goes on, perhaps for ever.
                if self._interrupted is not None:
                    self._interrupted(self)
                raise

    def get_future(self) -> Any:
        """A future of the list of result tensors. Its callbacks run in the thread that makes this group's operations."""
        if self._future is None:
            self._make_future()
            self._ended.set_result(self._result)
        return self._future

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`: the tensors are of the host."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is over, well or not. Does not wait."""
        return self._over is None or self._over.is_set()

    def is_success(self) -> bool:
        """Whether it is over and went well. Does not wait."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """The operation's error; None where there is none, or not yet."""
        return self._error

    def result(self) -> List[Tensor]:
        """The tensors that have the result. Waits."""
        self.wait()
        return self._result


def done(result: List[Tensor], error: Optional[BaseException] = None) -> Work:
    """Work that is over."""
    work = Work(result, False)
    if error is not None:
        work.finish(error)
    return work
