"""Communicators made of others: split, shrunk and grown.

Invariant: the communicator that a new one is made of stays and is closed by itself. Absent: how the first is made
(`joining`).
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional, Sequence, TypeVar

from . import interrupts
from .base import Handle, here
from .errors import last, wrong
from .prototypes import C, SHRINK_ABORT, SHRINK_DEFAULT, SPLIT_NO_COLOR, UNIQUE_ID_BYTES, Config, UniqueId

Self = TypeVar("Self", bound="Membership")


def id_of(raw: bytes) -> UniqueId:
    """The C form of an id."""
    if len(raw) != UNIQUE_ID_BYTES:
        raise wrong(f"an id of {len(raw)} bytes", f"pass the {UNIQUE_ID_BYTES} of consort.unique_id()")
    return UniqueId.from_buffer_copy(raw)


def made(
    call: "Callable[[Any], int]",
    end: "Callable[[Any], object]",
    rank: Optional[int],
    begins: "Optional[Callable[[Callable[[], object]], None]]" = None,
) -> Optional[int]:
    """The handle that `call` writes to the place that it is given; Ctrl-C calls `end` with the place.

    Args:
        begins: is given a function that does the same for another thread, until `made` returns; without effect before the
            ranks begin to join.
    """
    if here.group is not None:
        raise wrong("a communicator made in a group", "make it before or after", rank)
    place = ctypes.c_void_p()
    if begins is not None:
        begins(lambda: end(place))
    if interrupts.is_main():
        interrupts.watch()
        interrupts.under_way = lambda: end(place)
        try:
            code = call(ctypes.byref(place))
        finally:
            interrupts.under_way = None
    else:
        code = call(ctypes.byref(place))
    if code:
        raise last(code, rank)
    return place.value


class Membership(Handle):
    """The part of a communicator that makes others of it."""

    def _child(self: Self, call: "Callable[[Any], int]") -> Optional[Self]:
        self._open()
        self.drain()
        handle = made(call, lambda _: self._interrupt(), self.rank)
        return None if handle is None else type(self)(handle)

    def split(self: Self, color: Optional[int], key: int = 0, name: Optional[str] = None) -> Optional[Self]:
        """Divides the communicator: ranks of one `color` (0 or more) form a new one, in the order of `key`, then of rank.

        All ranks call it. Returns None for a rank whose `color` is None. `name` is for reports.
        """
        number = SPLIT_NO_COLOR if color is None else color
        if color is not None and color < 0:
            raise wrong(f"a color of {color}", "pass 0 or more, or None", self.rank)
        config = ctypes.byref(Config(name))
        return self._child(lambda place: C.ncclCommSplit(self._open(), number, key, place, config))

    def shrink(self: Self, exclude: Sequence[int], abort: bool = False, name: Optional[str] = None) -> Self:
        """A communicator without the ranks `exclude`; the others call, with the same list.

        Args:
            exclude: ranks that died, stopped or are not wanted.
            abort: end first what is under way; for a communicator that has failed.
        """
        ranks = [int(rank) for rank in exclude]
        listed = (ctypes.c_int * len(ranks))(*ranks)
        flags, config = SHRINK_ABORT if abort else SHRINK_DEFAULT, ctypes.byref(Config(name))
        child = self._child(
            lambda place: C.ncclCommShrink(self._open(), listed, len(ranks), place, config, flags)
        )
        assert child is not None
        return child

    def growth_id(self) -> bytes:
        """An id for one `grow` of this communicator: one rank asks, and gives it to those who are to join. Secret."""
        made_id = UniqueId()
        code = C.ncclCommGetUniqueId(self._open(), ctypes.byref(made_id))
        if code:
            raise last(code, self.rank)
        return bytes(made_id)

    def grow(self: Self, size: int, id: Optional[bytes] = None, name: Optional[str] = None) -> Self:
        """A communicator of `size` ranks: these, which keep their numbers, and new ones, which call `consort.join_grown`.

        All ranks call it, and the one that asked for the `growth_id` passes it.
        """
        passed = None if id is None else ctypes.byref(id_of(id))
        config = ctypes.byref(Config(name))
        child = self._child(lambda place: C.ncclCommGrow(self._open(), size, passed, -1, place, config))
        assert child is not None
        return child
