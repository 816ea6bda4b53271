"""How Ctrl-C ends a call that the main thread waits in.

Python's own handler of signals runs in the main thread, between two steps of the interpreter; a C call is one step.
A thread of this module reads the numbers of signals from a pipe into which Python writes them at once (its wakeup
descriptor), and ends the call that is under way. The call then returns, and Python raises `KeyboardInterrupt`.

Invariant: nothing is ended where a handler of the program's own takes SIGINT: that one may mean something else by it.
Absent: waits for started work, which Python interrupts by itself.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Callable, Optional

_main = threading.main_thread()
#: What ends the call of the main thread that is under way; None between calls.
under_way: Optional[Callable[[], object]] = None
_write: Optional[int] = None
#: The wakeup descriptor that was set before, which still gets every number; -1 for none.
_before = -1


def is_main() -> bool:
    """Whether the calling thread is the one that signals interrupt."""
    return threading.get_ident() == _main.ident


def _watch(read: int) -> None:
    while True:
        numbers = os.read(read, 512)
        if not numbers:
            return
        if _before >= 0:
            try:
                os.write(_before, numbers)
            except OSError:
                pass
        end = under_way
        if end is None or signal.SIGINT not in numbers:
            continue
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                end()
            except Exception:
                # The call is over already, or its communicator is.
                pass


def watch() -> None:
    """Begins to watch for SIGINT, once; does nothing in other threads than the main one."""
    global _write, _before
    if _write is not None or not is_main():
        return
    read, _write = os.pipe()
    os.set_blocking(_write, False)
    threading.Thread(target=_watch, args=(read,), name="consort-interrupts", daemon=True).start()
    _before = signal.set_wakeup_fd(_write, warn_on_full_buffer=False)


def _leave_to_parent() -> None:
    """In a forked child: the pipe is the parent's."""
    global _write, under_way, _main
    _main, under_way = threading.main_thread(), None
    if _write is not None:
        if is_main():
            current = signal.set_wakeup_fd(_before)
            if current not in (_write, -1):
                signal.set_wakeup_fd(current)
        # The reading end stays open, unread; only the thread knew it.
        os.close(_write)
        _write = None


os.register_at_fork(after_in_child=_leave_to_parent)
