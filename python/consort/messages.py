"""Messages between two ranks, and the barrier.

Invariant: the messages of a pair match in the order of the calls; there are no tags. Absent: collectives.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

from .arrays import view
from .base import Handle
from .calls import Call, call
from .errors import wrong
from .groups import group
from .prototypes import C, DATA_TYPES, OPERATORS
from .work import Work

A = TypeVar("A")


class Messages(Handle):
    """The part of a communicator that sends to single ranks."""

    def _peer(self, peer: int) -> int:
        if not 0 <= peer < self.size:
            raise wrong(f"rank {peer} of {self.size} ranks", f"pass one between 0 and {self.size - 1}", self.rank)
        return peer

    def _send(self, array: Any, peer: int) -> Call:
        one = view(array)
        kind = one.dtype
        return call(C.ncclSend, (one.pointer, one.elements * kind.units, kind.code, self._peer(peer)), None, (one,))

    def send(self, array: Any, peer: int) -> None:
        """Sends an array to `peer`, which receives one of the same type and length.

        Two ranks that send to each other do so in a group, or with `exchange`.
        """
        self._run(self._send(array, peer))

    def start_send(self, array: Any, peer: int) -> "Work[None]":
        """Starts a `send`."""
        return self._start(self._send(array, peer))

    def _recv(self, array: Any, peer: int) -> Call:
        one = view(array, True)
        kind = one.dtype
        return call(C.ncclRecv, (one.pointer, one.elements * kind.units, kind.code, self._peer(peer)), array, (one,))

    def recv(self, array: A, peer: int) -> A:
        """Receives from `peer` into `array`, and returns it."""
        return self._run(self._recv(array, peer))

    def start_recv(self, array: A, peer: int) -> "Work[A]":
        """Starts a `recv`."""
        return self._start(self._recv(array, peer))

    def exchange(self, array: Any, to: int, out: A, source: int) -> A:
        """Sends `array` to rank `to` and receives `out` from rank `source`, at the same time. Returns `out`."""
        with group():
            self.send(array, to)
            self.recv(out, source)
        return out

    def _barrier(self) -> Call:
        one = ctypes.c_int8()
        at = ctypes.addressof(one)
        return Call(C.ncclAllReduce, (at, at, 1, DATA_TYPES["ncclInt8"], OPERATORS["ncclMax"]), None, one, 0)

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self._run(self._barrier())

    def start_barrier(self) -> "Work[None]":
        """Starts a `barrier`."""
        return self._start(self._barrier())
