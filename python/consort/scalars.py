"""The factor of a scaled sum in the bits of an element type.

Invariant: rounded to the nearest, ties to even, as the library's own conversions. Absent: other numbers.
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

from .errors import wrong
from .prototypes import DATA_TYPES

_FORMATS = {
    "ncclInt8": "b",
    "ncclUint8": "B",
    "ncclInt32": "i",
    "ncclUint32": "I",
    "ncclInt64": "q",
    "ncclUint64": "Q",
    "ncclFloat16": "e",
    "ncclFloat32": "f",
    "ncclFloat64": "d",
}
#: Bits of exponent and mantissa, and the greatest finite number, of floats that `struct` does not have.
_SMALL = {
    "ncclBfloat16": (8, 7, 3.3895313892515355e38),
    "ncclFloat8e4m3": (4, 3, 448.0),
    "ncclFloat8e5m2": (5, 2, 57344.0),
}


def _bits(value: float, exponent_bits: int, mantissa_bits: int, greatest: float) -> int:
    """The bits of a float with that layout; `greatest` is its greatest finite number."""
    sign = int(math.copysign(1.0, value) < 0) << (exponent_bits + mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    size = abs(value)
    if not size:
        return sign
    exponent = max(math.frexp(size)[1] - 1, 1 - bias)
    # Python rounds halves to even; the quotient is exact.
    steps = round(math.ldexp(size, mantissa_bits - exponent))
    if math.ldexp(steps, exponent - mantissa_bits) > greatest:
        raise wrong(f"a factor of {value}", f"pass one of at most {greatest:g} for this element type")
    if steps >> mantissa_bits == 0:
        return sign | steps
    return sign | (exponent + bias - 1 << mantissa_bits) + steps


def packed(factor: float, code: int) -> "ctypes.Array[Any]":
    """The factor as an element of the type with that `ncclDataType_t`.

    Raises `InvalidArgument` for a factor that the type does not have: too great, not whole for integers, or not finite.
    """
    name = next(name for name, known in DATA_TYPES.items() if known == code)
    if not math.isfinite(factor):
        raise wrong(f"a factor of {factor}", "pass a finite number")
    if name in _SMALL:
        width = 2 if name == "ncclBfloat16" else 1
        raw = _bits(factor, *_SMALL[name]).to_bytes(width, "little")
    else:
        form = _FORMATS[name]
        if form not in "efd" and factor != int(factor):
            raise wrong(f"a factor of {factor} for integers", "pass a whole number")
        try:
            raw = struct.pack("<" + form, factor if form in "efd" else int(factor))
        except (struct.error, OverflowError) as error:
            raise wrong(f"a factor of {factor}: {error}", "pass one that the element type has") from None
    return ctypes.create_string_buffer(raw, len(raw))
