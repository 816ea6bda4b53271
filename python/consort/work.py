"""Operations that were started and not waited for, and the thread that makes them.

```
  start_*             the lane's thread takes it        it returned or raised
  ───────► queued ──────────────────────────► running ──────────────────────► done
```

Invariant: a communicator's calls are made one after the other, in the order in which they were started; arrays are held
until their call is over. Absent: what is called.
"""

from __future__ import annotations

import concurrent.futures
import threading
from queue import SimpleQueue
from typing import Any, Callable, Generic, Optional, TypeVar

T = TypeVar("T")


class Work(Generic[T]):
    """An operation that goes on by itself. Its arrays must stay as they are until it is done."""

    __slots__ = ("_future", "_body")

    def __init__(self, body: Callable[[], T]):
        self._body: Optional[Callable[[], T]] = body
        self._future: "concurrent.futures.Future[T]" = concurrent.futures.Future()

    def done(self) -> bool:
        """Whether it is over, well or not. Does not wait."""
        return self._future.done()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until it is over; False when `timeout` seconds passed before, and then it still goes on.

        Raises the operation's error. `KeyboardInterrupt` ends the wait and not the operation.
        """
        try:
            self._future.result(timeout)
        except concurrent.futures.TimeoutError:
            if self._future.done():
                self._future.result()
                return True
            return False
        return True

    def result(self, timeout: Optional[float] = None) -> T:
        """As `wait`, but returns the array that holds the result, and raises `TimeoutError` when `timeout` passed."""
        if not self.wait(timeout):
            raise TimeoutError(f"the operation is still under way after {timeout} s")
        return self._future.result()

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """The operation's error, None where it went well. Raises `TimeoutError` when `timeout` seconds passed."""
        return self._future.exception(timeout)

    def future(self) -> "concurrent.futures.Future[T]":
        """A future of the result, for `add_done_callback`, `concurrent.futures.wait` and `asyncio.wrap_future`.

        Callbacks run in the communicator's own thread: they must not wait for other work of it. It cannot be cancelled;
        `Communicator.abort` ends operations.
        """
        return self._future

    def _run(self, settled: Callable[[], None]) -> None:
        body, self._body = self._body, None
        assert body is not None
        try:
            value = body()
        except BaseException as error:
            settled()
            self._future.set_exception(error)
        else:
            settled()
            self._future.set_result(value)


class LaneClosed(Exception):
    """The lane takes no more work."""


class Lane:
    """One communicator's started operations, and their thread. The thread ends with `close`."""

    def __init__(self, name: str):
        self._jobs: "SimpleQueue[Optional[Work[Any]]]" = SimpleQueue()
        # A handler of a signal may come back in.
        self._lock = threading.RLock()
        self._pending = 0
        self._closed = False
        self._thread = threading.Thread(target=_serve, args=(self._jobs, self._settled), name=name, daemon=True)
        self._thread.start()

    def busy(self) -> bool:
        """Whether an operation is queued or running."""
        return self._pending > 0

    def submit(self, work: "Work[Any]") -> None:
        """Queues it. Raises `LaneClosed` after `close`."""
        with self._lock:
            if self._closed:
                raise LaneClosed("the thread of these operations ends")
            # Not to be cancelled by those who get the future.
            work.future().set_running_or_notify_cancel()
            self._pending += 1
            self._jobs.put(work)

    def is_own_thread(self) -> bool:
        """Whether the caller is the lane's own thread, as callbacks are."""
        return threading.current_thread() is self._thread

    def drain(self, timeout: Optional[float] = None) -> bool:
        """Waits until all that was queued before is over; False when `timeout` seconds passed."""
        if not self.busy():
            return True
        marker: "Work[None]" = Work(lambda: None)
        try:
            self.submit(marker)
        except LaneClosed:
            # The thread ends after what was queued.
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return marker.wait(timeout)

    def close(self) -> None:
        """Lets the thread end after what is queued. Does not wait. May be called again."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)

    def _settled(self) -> None:
        with self._lock:
            self._pending -= 1


def _serve(jobs: "SimpleQueue[Optional[Work[Any]]]", settled: Callable[[], None]) -> None:
    while True:
        work = jobs.get()
        if work is None:
            return
        work._run(settled)
        # Arrays must not be held while the thread waits.
        del work
