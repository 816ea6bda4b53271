"""Collectives of blocks that are equally long.

Arrays are described in `docs/PYTHON.md`; "elements" are of the array's own type. Every call waits until this rank's part
is done; its `start_` twin returns `Work` at once, and its arrays must stay untouched until that is done. All ranks make
the same calls in the same order. Calls raise `InvalidArgument` for arrays that do not fit, `Mismatch` where ranks differ,
`LostRank`, `Aborted`, `Timeout` and the others of `consort.errors` when something breaks.

Invariant: no array is copied. Absent: blocks that differ in length (`variable`).
"""

from __future__ import annotations

from typing import Any, Optional, TypeVar

from .arrays import View, view
from .base import Handle
from .calls import Call, Operator, as_long, call, pair, root_checked, same_type
from .errors import wrong
from .prototypes import C
from .work import Work

A = TypeVar("A")


class Collectives(Handle):
    """The part of a communicator that moves and folds equally long blocks."""

    def _all_reduce(self, array: Any, op: Operator, out: Any) -> Call:
        if out is None:
            source = target = view(array, True)
            out = array
        else:
            source, target = view(array), view(out, True)
            same_type(source, target)
            as_long("the output", target.elements, source.elements)
        kind = source.dtype
        return Call(
            C.ncclAllReduce,
            (source.pointer, target.pointer, source.elements * kind.units, kind.code, self._operator(op, kind)),
            out,
            (source, target),
            source.stream or target.stream,
        )

    def all_reduce(self, array: A, op: Operator = "sum", out: Optional[A] = None) -> A:
        """Folds the arrays of all ranks, element by element, and gives the result to all.

        Args:
            array: of any shape, equally long on all ranks. Becomes the result where `out` is None.
            op: `sum`, `prod`, `max`, `min`, `avg`, or `consort.scaled_sum(factor)`.
            out: as long as `array`; then `array` stays as it is.
        Returns: the array that has the result.
        """
        return self._run(self._all_reduce(array, op, out))

    def start_all_reduce(self, array: A, op: Operator = "sum", out: Optional[A] = None) -> "Work[A]":
        """Starts an `all_reduce`."""
        return self._start(self._all_reduce(array, op, out))

    def _reduce(self, array: Any, root: int, op: Operator, out: Any) -> Call:
        root_checked(root, self.size)
        source = view(array, self.rank == root and out is None)
        target = source
        if self.rank == root and out is not None:
            target = view(out, True)
            same_type(source, target)
            as_long("the output", target.elements, source.elements)
        kind = source.dtype
        arguments = (source.pointer, target.pointer, source.elements * kind.units, kind.code, self._operator(op, kind), root)
        result = (array if out is None else out) if self.rank == root else None
        return call(C.ncclReduce, arguments, result, (source, target))

    def reduce(self, array: A, root: int = 0, op: Operator = "sum", out: Optional[A] = None) -> Optional[A]:
        """Folds the arrays of all ranks and gives the result to `root`, in `out` or else in `array`.

        Arguments as `all_reduce`; other ranks' arrays stay as they are, and their `out` is not looked at.
        Returns: the array that has the result; None on other ranks than `root`.
        """
        return self._run(self._reduce(array, root, op, out))

    def start_reduce(self, array: A, root: int = 0, op: Operator = "sum", out: Optional[A] = None) -> "Work[Optional[A]]":
        """Starts a `reduce`."""
        return self._start(self._reduce(array, root, op, out))

    def _broadcast(self, array: Any, root: int) -> Call:
        root_checked(root, self.size)
        one = view(array, self.rank != root)
        kind = one.dtype
        arguments = (one.pointer, one.pointer, one.elements * kind.units, kind.code, root)
        return call(C.ncclBroadcast, arguments, array, (one,))

    def broadcast(self, array: A, root: int = 0) -> A:
        """Copies the array of `root` into those of all other ranks, which are equally long. Returns `array`."""
        return self._run(self._broadcast(array, root))

    def start_broadcast(self, array: A, root: int = 0) -> "Work[A]":
        """Starts a `broadcast`."""
        return self._start(self._broadcast(array, root))

    def _all_gather(self, array: Any, out: Any) -> Call:
        source, target, out = pair(array, out, grow=self.size)
        kind = source.dtype
        arguments = (source.pointer, target.pointer, source.elements * kind.units, kind.code)
        return call(C.ncclAllGather, arguments, out, (source, target))

    def all_gather(self, array: A, out: Optional[A] = None) -> A:
        """Gives the arrays of all ranks, one after the other in the order of ranks, to all.

        Args:
            array: equally long on all ranks. May be this rank's block of `out` (in place).
            out: `size` times as long; where it is None, a new NumPy array or tensor of the shape `(size, *array.shape)`.
        Returns: the array that has the result.
        """
        return self._run(self._all_gather(array, out))

    def start_all_gather(self, array: A, out: Optional[A] = None) -> "Work[A]":
        """Starts an `all_gather`."""
        return self._start(self._all_gather(array, out))

    def _reduce_scatter(self, array: Any, op: Operator, out: Any) -> Call:
        source, target, out = pair(array, out, shrink=self.size)
        kind = source.dtype
        arguments = (source.pointer, target.pointer, target.elements * kind.units, kind.code, self._operator(op, kind))
        return call(C.ncclReduceScatter, arguments, out, (source, target))

    def reduce_scatter(self, array: A, op: Operator = "sum", out: Optional[A] = None) -> A:
        """Folds the arrays of all ranks and gives block r of the result to rank r.

        Args:
            array: of `size` blocks, equally long on all ranks. `out` may be this rank's block of it (in place).
            op: as in `all_reduce`.
            out: as long as a block; where it is None, a new array of `array`'s shape without the first axis, which has to
                be `size` long.
        Returns: the array that has the result.
        """
        return self._run(self._reduce_scatter(array, op, out))

    def start_reduce_scatter(self, array: A, op: Operator = "sum", out: Optional[A] = None) -> "Work[A]":
        """Starts a `reduce_scatter`."""
        return self._start(self._reduce_scatter(array, op, out))

    def _all_to_all(self, array: Any, out: Any) -> Call:
        source, target, out = pair(array, out)
        kind = source.dtype
        if source.elements % self.size:
            raise wrong(
                f"{source.elements} elements cannot be divided among {self.size} ranks",
                "pass a multiple, or use all_to_all_v",
                self.rank,
            )
        arguments = (source.pointer, target.pointer, source.elements // self.size * kind.units, kind.code)
        return call(C.ncclAlltoAll, arguments, out, (source, target))

    def all_to_all(self, array: A, out: Optional[A] = None) -> A:
        """Gives block r of `array` to rank r; block r of the result is from rank r.

        Args:
            array: of `size` blocks, equally long on all ranks.
            out: as long as `array`, and apart from it; where it is None, a new array of its shape.
        Returns: the array that has the result.
        """
        return self._run(self._all_to_all(array, out))

    def start_all_to_all(self, array: A, out: Optional[A] = None) -> "Work[A]":
        """Starts an `all_to_all`."""
        return self._start(self._all_to_all(array, out))

    def _gather(self, array: Any, root: int, out: Any) -> Call:
        root_checked(root, self.size)
        if self.rank == root:
            source, target, out = pair(array, out, grow=self.size)
        else:
            source, out = view(array), None
            target = View(0, 0, source.dtype, None)
        kind = source.dtype
        arguments = (source.pointer, target.pointer, source.elements * kind.units, kind.code, root)
        return call(C.ncclGather, arguments, out, (source, target))

    def gather(self, array: A, root: int = 0, out: Optional[A] = None) -> Optional[A]:
        """As `all_gather`, with the result on `root` alone; None is returned elsewhere, and `out` is not looked at."""
        return self._run(self._gather(array, root, out))

    def start_gather(self, array: A, root: int = 0, out: Optional[A] = None) -> "Work[Optional[A]]":
        """Starts a `gather`."""
        return self._start(self._gather(array, root, out))

    def _scatter(self, array: Any, root: int, out: Any) -> Call:
        root_checked(root, self.size)
        if self.rank == root:
            source, target, out = pair(array, out, shrink=self.size)
        else:
            if out is None:
                raise wrong("no output for a scatter", "pass out= on all ranks but the root", self.rank)
            target = view(out, True)
            source = View(0, 0, target.dtype, None)
        kind = target.dtype
        arguments = (source.pointer, target.pointer, target.elements * kind.units, kind.code, root)
        return call(C.ncclScatter, arguments, out, (source, target))

    def scatter(self, array: Optional[A] = None, root: int = 0, out: Optional[A] = None) -> A:
        """Gives block r of the root's `array` to rank r.

        Args:
            array: on `root`, of `size` blocks; elsewhere not looked at.
            out: as long as a block; on `root` it may be its block of `array` (in place), or None for a new array.
        Returns: the array that has this rank's block.
        """
        return self._run(self._scatter(array, root, out))

    def start_scatter(self, array: Optional[A] = None, root: int = 0, out: Optional[A] = None) -> "Work[A]":
        """Starts a `scatter`."""
        return self._start(self._scatter(array, root, out))
