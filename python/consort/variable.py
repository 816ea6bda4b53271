"""Collectives of blocks that differ in length.

Counts and displacements are in elements of the arrays' type, one for each rank in the order of ranks. Without
displacements the blocks lie one after the other. Elements between blocks are not touched. Calls wait, and have a `start_`
twin, as those in `collectives`.

Invariant: blocks are checked to lie within their arrays before C sees them. Absent: blocks that are equally long.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, TypeVar

from .arrays import View, view
from .base import Handle
from .calls import Call, Operator, as_long, call, counts, reaches, root_checked, same_type
from .errors import wrong
from .prototypes import C
from .work import Work

A = TypeVar("A")
Numbers = Sequence[int]


class VariableCollectives(Handle):
    """The part of a communicator that moves and folds blocks of different lengths."""

    def _blocks(self, values: Optional[Numbers], at: Optional[Numbers], array: View, what: str) -> Any:
        """Counts and displacements for C, checked against the array of all blocks."""
        if values is None:
            raise wrong(f"no counts of {what}", "pass one count for each rank", self.rank)
        lengths = counts(values, self.size, "counts", array.dtype)
        places = counts(at, self.size, "displacements", array.dtype)
        reaches(values, at, array, what)
        return lengths, places

    def _all_gather_v(self, array: Any, out: Any, values: Numbers, at: Optional[Numbers]) -> Call:
        source, target = view(array), view(out, True)
        same_type(source, target)
        lengths, places = self._blocks(values, at, target, "the output")
        as_long("the input", source.elements, int(values[self.rank]))
        arguments = (source.pointer, target.pointer, lengths, places, source.dtype.code)
        return call(C.consortAllGatherV, arguments, out, (source, target))

    def all_gather_v(self, array: A, out: A, counts: Numbers, displacements: Optional[Numbers] = None) -> A:
        """Gives the arrays of all ranks to all: that of rank r becomes block r of `out`.

        Args:
            array: `counts[rank]` elements. May be this rank's block of `out` (in place).
            out: the blocks of all ranks.
            counts: equal on all ranks.
            displacements: where each block begins in `out`; each rank's own.
        Returns: `out`.
        """
        return self._run(self._all_gather_v(array, out, counts, displacements))

    def start_all_gather_v(
        self, array: A, out: A, counts: Numbers, displacements: Optional[Numbers] = None
    ) -> "Work[A]":
        """Starts an `all_gather_v`."""
        return self._start(self._all_gather_v(array, out, counts, displacements))

    def _reduce_scatter_v(self, array: Any, out: Any, values: Numbers, op: Operator, at: Optional[Numbers]) -> Call:
        source, target = view(array), view(out, True)
        same_type(source, target)
        lengths, places = self._blocks(values, at, source, "the input")
        as_long("the output", target.elements, int(values[self.rank]))
        kind = source.dtype
        arguments = (source.pointer, target.pointer, lengths, places, kind.code, self._operator(op, kind))
        return call(C.consortReduceScatterV, arguments, out, (source, target))

    def reduce_scatter_v(
        self, array: A, out: A, counts: Numbers, op: Operator = "sum", displacements: Optional[Numbers] = None
    ) -> A:
        """Folds the arrays of all ranks and gives block r of the result to rank r.

        Args:
            array: the blocks of all ranks. Unspecified afterwards where `out` is this rank's block of it (in place).
            out: `counts[rank]` elements.
            counts: equal on all ranks.
            op: as in `all_reduce`.
            displacements: where each block begins in `array`; each rank's own.
        Returns: `out`.
        """
        return self._run(self._reduce_scatter_v(array, out, counts, op, displacements))

    def start_reduce_scatter_v(
        self, array: A, out: A, counts: Numbers, op: Operator = "sum", displacements: Optional[Numbers] = None
    ) -> "Work[A]":
        """Starts a `reduce_scatter_v`."""
        return self._start(self._reduce_scatter_v(array, out, counts, op, displacements))

    def _all_to_all_v(
        self, array: Any, out: Any, sent: Numbers, received: Numbers, at: Optional[Numbers], to: Optional[Numbers]
    ) -> Call:
        source, target = view(array), view(out, True)
        same_type(source, target)
        out_lengths, out_places = self._blocks(sent, at, source, "the input")
        in_lengths, in_places = self._blocks(received, to, target, "the output")
        arguments = (source.pointer, target.pointer, out_lengths, out_places, in_lengths, in_places, source.dtype.code)
        return call(C.consortAllToAllV, arguments, out, (source, target))

    def all_to_all_v(
        self,
        array: A,
        out: A,
        send_counts: Numbers,
        recv_counts: Numbers,
        send_displacements: Optional[Numbers] = None,
        recv_displacements: Optional[Numbers] = None,
    ) -> A:
        """Gives block r of `array` to rank r; block r of `out` is from rank r.

        Args:
            array: blocks of `send_counts` elements; apart from `out`.
            out: blocks of `recv_counts` elements; what a rank sends to another is what that one receives from it.
        Returns: `out`.
        """
        return self._run(
            self._all_to_all_v(array, out, send_counts, recv_counts, send_displacements, recv_displacements)
        )

    def start_all_to_all_v(
        self,
        array: A,
        out: A,
        send_counts: Numbers,
        recv_counts: Numbers,
        send_displacements: Optional[Numbers] = None,
        recv_displacements: Optional[Numbers] = None,
    ) -> "Work[A]":
        """Starts an `all_to_all_v`."""
        return self._start(
            self._all_to_all_v(array, out, send_counts, recv_counts, send_displacements, recv_displacements)
        )

    def _gather_v(self, array: Any, out: Any, values: Optional[Numbers], root: int, at: Optional[Numbers]) -> Call:
        root_checked(root, self.size)
        source = view(array)
        target, lengths, places = View(0, 0, source.dtype, None), None, None
        if self.rank == root:
            target = view(out, True)
            same_type(source, target)
            lengths, places = self._blocks(values, at, target, "the output")
            as_long("the input", source.elements, int((values or ())[self.rank]))
        kind = source.dtype
        arguments = (source.pointer, target.pointer, source.elements * kind.units, lengths, places, kind.code, root)
        return call(C.consortGatherV, arguments, out if self.rank == root else None, (source, target))

    def gather_v(
        self,
        array: A,
        out: Optional[A] = None,
        counts: Optional[Numbers] = None,
        root: int = 0,
        displacements: Optional[Numbers] = None,
    ) -> Optional[A]:
        """As `all_gather_v`, with the result on `root` alone. Elsewhere `out`, `counts` and `displacements` are not looked
        at, and None is returned."""
        return self._run(self._gather_v(array, out, counts, root, displacements))

    def start_gather_v(
        self,
        array: A,
        out: Optional[A] = None,
        counts: Optional[Numbers] = None,
        root: int = 0,
        displacements: Optional[Numbers] = None,
    ) -> "Work[Optional[A]]":
        """Starts a `gather_v`."""
        return self._start(self._gather_v(array, out, counts, root, displacements))

    def _scatter_v(self, array: Any, out: Any, values: Optional[Numbers], root: int, at: Optional[Numbers]) -> Call:
        root_checked(root, self.size)
        target = view(out, True)
        source, lengths, places = View(0, 0, target.dtype, None), None, None
        if self.rank == root:
            source = view(array)
            same_type(source, target)
            lengths, places = self._blocks(values, at, source, "the input")
            as_long("the output", target.elements, int((values or ())[self.rank]))
        kind = target.dtype
        arguments = (source.pointer, target.pointer, lengths, places, target.elements * kind.units, kind.code, root)
        return call(C.consortScatterV, arguments, out, (source, target))

    def scatter_v(
        self,
        array: Optional[A],
        out: A,
        counts: Optional[Numbers] = None,
        root: int = 0,
        displacements: Optional[Numbers] = None,
    ) -> A:
        """Gives block r of the root's `array` to rank r, in `out`. Elsewhere `array`, `counts` and `displacements` are not
        looked at. Returns `out`."""
        return self._run(self._scatter_v(array, out, counts, root, displacements))

    def start_scatter_v(
        self,
        array: Optional[A],
        out: A,
        counts: Optional[Numbers] = None,
        root: int = 0,
        displacements: Optional[Numbers] = None,
    ) -> "Work[A]":
        """Starts a `scatter_v`."""
        return self._start(self._scatter_v(array, out, counts, root, displacements))
