"""What a data call needs: checked views of its arrays, counts, and the C function.

Invariant: a `Call` that was made can be run at any time until its communicator is closed, by any thread; what is wrong
with its arguments was raised before. Absent: when and by which thread it runs (`communicator`).
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

from .arrays import View, like, view
from .dtypes import DataType, ScaledSum
from .errors import wrong

Operator = Union[str, ScaledSum]


class Call(NamedTuple):
    """A data call, but for the handle and the stream that end its arguments."""

    function: Any
    arguments: Tuple[Any, ...]
    #: The array that has the result.
    result: Any
    #: What must live until the call is over.
    keep: Any
    stream: int


def call(function: Any, arguments: "tuple[Any, ...]", result: Any, views: "tuple[View, ...]") -> Call:
    """A call on these views."""
    stream = 0
    for one in views:
        stream = stream or one.stream
    return Call(function, arguments, result, views, stream)


def same_type(source: View, target: View) -> None:
    """Refuses two arrays of different types in one call."""
    if source.dtype is not target.dtype:
        raise wrong(
            f"an input of {source.dtype.name} and an output of {target.dtype.name}", "pass arrays of one type"
        )


def as_long(what: str, got: int, wanted: int) -> None:
    """Refuses an array that has another number of elements than the call needs."""
    if got != wanted:
        raise wrong(f"{what} has {got} elements and not {wanted}", "pass an array of that length")


def pair(source: Any, target: Any, grow: int = 1, shrink: int = 1) -> "tuple[View, View, Any]":
    """Views of an input and of an output with `grow / shrink` times as many elements, and the output: a new one where none
    is passed, of the input's shape with an axis of `grow` in front, or without its first axis of `shrink`."""
    first = view(source)
    if target is None:
        shape = tuple(getattr(source, "shape", ()))
        if shrink > 1:
            if not shape or shape[0] != shrink:
                raise wrong(
                    f"the first axis of the input is not the {shrink} ranks, and no output was passed",
                    f"pass out=, or an input of the shape ({shrink}, ...)",
                )
            shape = shape[1:]
        target = like(source, (grow, *shape) if grow > 1 else shape)
    second = view(target, True)
    same_type(first, second)
    if first.elements * grow != second.elements * shrink:
        raise wrong(
            f"the output has {second.elements} elements where the input has {first.elements}",
            f"pass an output of {first.elements * grow / shrink:g} elements",
        )
    return first, second, target


def root_checked(root: int, size: int) -> int:
    """The root, if it is a rank."""
    if not 0 <= root < size:
        raise wrong(f"root {root} of {size} ranks", f"pass a rank between 0 and {size - 1}")
    return root


def counts(values: Optional[Sequence[int]], size: int, what: str, dtype: DataType) -> "Optional[ctypes.Array[Any]]":
    """One number for each rank, as C wants them, in units of the type's code; None stays."""
    if values is None:
        return None
    numbers = [int(value) for value in values]
    if len(numbers) != size:
        raise wrong(f"{len(numbers)} {what} for {size} ranks", "pass one for each rank, in the order of ranks")
    if min(numbers, default=0) < 0:
        raise wrong(f"{what} of {min(numbers)}", "pass 0 or more")
    return (ctypes.c_size_t * size)(*(number * dtype.units for number in numbers))


def reaches(values: Sequence[int], displacements: Optional[Sequence[int]], array: View, what: str) -> None:
    """Refuses blocks that reach beyond their array; the library cannot know where it ends."""
    if displacements is None:
        end = sum(int(value) for value in values)
    else:
        if len(displacements) != len(values):
            raise wrong(f"{len(displacements)} displacements for {len(values)} counts", "pass one for each rank")
        ends = (int(at) + int(value) for at, value in zip(displacements, values) if value)
        end = max(ends, default=0)
    if end > array.elements:
        raise wrong(f"the blocks of {what} end at element {end}, and it has {array.elements}", "pass a longer array")
