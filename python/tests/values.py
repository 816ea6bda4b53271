"""Values whose folds are exact in every element type, and the folds by NumPy's arithmetic in float64 and int64."""

from __future__ import annotations

import random
from typing import Any, List

import ml_dtypes
import numpy

#: Every element type that has folds as a number, with NumPy's type.
NUMBERS = {
    **{name: numpy.dtype(name) for name in "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64".split()},
    "bfloat16": numpy.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": numpy.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": numpy.dtype(ml_dtypes.float8_e5m2),
}
COMPLEX = {name: numpy.dtype(name) for name in ("complex64", "complex128")}
BYTES = {name: numpy.dtype(name) for name in ("int16", "uint16")}
TYPES = {**NUMBERS, **COMPLEX, **BYTES, "bool": numpy.dtype("bool")}
OPERATORS = ("sum", "prod", "max", "min", "avg")


def operators(dtype: str) -> "tuple[str, ...]":
    """The operators that an element type has."""
    if dtype in COMPLEX:
        return ("sum", "avg")
    if dtype in BYTES:
        return ()
    return OPERATORS[:4] if dtype == "bool" else OPERATORS


def arrays(generator: random.Random, dtype: str, ranks: int, length: int) -> "List[Any]":
    """An array for each rank. The sum over the ranks can be divided by their number, so that averages of integers are
    exact; those of floats round each rank's contribution when it is scaled."""
    seed = numpy.random.default_rng(generator.randrange(2**32))
    if dtype == "bool":
        return [seed.integers(0, 2, length).astype(bool) for _ in range(ranks)]

    def part() -> "List[Any]":
        middle, step = seed.integers(1, 3, length), seed.integers(0, 2, length)
        order = seed.permutation(ranks)
        away = [0] * ranks
        away[order[0]], away[order[-1]] = (-1, 1) if ranks > 1 else (0, 0)
        return [middle + sign * step for sign in away]

    whole = part()
    if dtype in COMPLEX:
        whole = [real + 1j * imaginary for real, imaginary in zip(whole, part())]
    return [one.astype(TYPES[dtype]) for one in whole]


def folded(op: str, inputs: "List[Any]") -> Any:
    """What a fold of the arrays of all ranks gives."""
    dtype = inputs[0].dtype
    if dtype == bool:
        return (numpy.logical_or if op in ("sum", "max") else numpy.logical_and).reduce(inputs)
    wide = [one.astype(complex if dtype.kind == "c" else float) for one in inputs]
    by = {"sum": numpy.add, "avg": numpy.add, "prod": numpy.multiply, "max": numpy.maximum, "min": numpy.minimum}[op]
    result = by.reduce(wide)
    return (result / len(inputs) if op == "avg" else result).astype(dtype)


def as_folded(got: Any, inputs: "List[Any]", op: str, begin: int, end: int, *what: Any) -> None:
    """Fails unless `got` is elements `begin` to `end` of the fold: to the bit, or within rounding for averages of floats."""
    wanted = folded(op, inputs)[begin:end]
    if op != "avg" or got.dtype.kind in "iu" or got.dtype != wanted.dtype or len(inputs) == 2:
        return same(got, wanted, op, *what)
    one = got.dtype if got.dtype.kind != "c" else got.real.dtype
    exact = complex if got.dtype.kind == "c" else float
    # Each contribution, and each partial sum, is rounded once; none is greater than 3 times a value of at most 3.
    allowed = 3.0 * len(inputs) * float(ml_dtypes.finfo(one).eps)
    if len(got) != len(wanted) or (len(got) and numpy.max(abs(got.astype(exact) - wanted.astype(exact))) > allowed):
        raise AssertionError(f"{op} {what}: {got!r} instead of {wanted!r} within {allowed}")


def same(got: Any, wanted: Any, *what: Any) -> None:
    """Fails unless both have the same bits."""
    if got.dtype != wanted.dtype or got.tobytes() != wanted.tobytes():
        raise AssertionError(f"{what}: {got!r} instead of {wanted!r}")
