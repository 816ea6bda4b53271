"""Threads that are in a call of a process group when the interpreter ends.

A thread that comes back from C into an interpreter that is being taken down is ended where it stands, and PyTorch's
frames below it do not bear that: the process crashes. Such threads stop for good before that, where they hold nothing.

Invariant: the main thread never stops here. Absent: how their calls are ended (`engine`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

_main = threading.main_thread()
_exiting = False
_lock = threading.Lock()
_inside = 0
_stopped = 0


class Inside:
    """A context of calls that the end of the interpreter ends."""

    def __enter__(self) -> None:
        global _inside
        if threading.current_thread() is not _main:
            with _lock:
                _inside += 1

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        global _inside, _stopped
        if threading.current_thread() is _main:
            return
        if _exiting:
            pause = ctypes.CDLL(None).pause
            with _lock:
                _stopped += 1
            while True:
                pause()
        with _lock:
            _inside -= 1


#: Holds nothing, and may be entered by many threads.
inside = Inside()


def begin() -> None:
    """From now on threads stop at the end of their calls."""
    global _exiting
    _exiting = True


def wait(seconds: float) -> None:
    """Waits until all threads that are in calls have stopped, for at most `seconds`."""
    ends = time.monotonic() + seconds
    while _stopped < _inside and time.monotonic() < ends:
        time.sleep(0.001)


def _in_child() -> None:
    """In a forked child: the threads in calls are the parent's, and the thread that forked is the main one."""
    global _main, _exiting, _lock, _inside, _stopped
    _main, _exiting, _lock, _inside, _stopped = threading.main_thread(), False, threading.Lock(), 0, 0


os.register_at_fork(after_in_child=_in_child)
