"""Arrays by DLPack, read with ctypes alone.

Invariant: a capsule is looked at and never consumed: it stays the exporter's, and its memory lives as long as the capsule
that is returned. Absent: other ways to an array (`arrays`).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from .dtypes import TYPES, DataType
from .errors import wrong

#: `DLDeviceType`s whose memory the processor reaches, and those that are a GPU's.
_HOST, _GPU = {1: "cpu", 3: "cuda host", 11: "rocm host"}, {2: "cuda", 13: "cuda managed"}
_READ_ONLY = 1

#: `DLDataTypeCode` and bits, for one lane.
_TYPES = {
    **{(0, 8 * size): f"int{8 * size}" for size in (1, 2, 4, 8)},
    **{(1, 8 * size): f"uint{8 * size}" for size in (1, 2, 4, 8)},
    **{(2, 8 * size): f"float{8 * size}" for size in (2, 4, 8)},
    (4, 16): "bfloat16",
    **{(5, 8 * size): f"complex{8 * size}" for size in (4, 8, 16)},
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class Exported(NamedTuple):
    """What a capsule says."""

    pointer: int
    elements: int
    dtype: DataType
    read_only: bool
    on_device: bool
    capsule: Any


def export(array: Any) -> Exported:
    """What `array.__dlpack__` gives: contiguous elements in row-major order, of one of the library's types.

    Raises `InvalidArgument` for memory of other devices, other layouts and other element types.
    """
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = array.__dlpack__()
    except (BufferError, RuntimeError) as error:
        raise wrong(f"{type(array).__name__}.__dlpack__ refused: {error}", "pass the array's buffer, or a copy") from error
    if _is_valid(capsule, b"dltensor_versioned"):
        whole = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if whole.major != 1:
            raise wrong(f"an array of DLPack {whole.major}.{whole.minor}", "pass one of DLPack 1, or its buffer")
        tensor, read_only = whole.tensor, bool(whole.flags & _READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        tensor, read_only = _Tensor.from_address(_pointer_of(capsule, b"dltensor")), False
    else:
        raise wrong(f"{type(array).__name__}.__dlpack__ gave no DLPack capsule", "pass the array's buffer")
    on_device = tensor.device_type in _GPU
    if not on_device and tensor.device_type not in _HOST:
        raise wrong(
            f"an array on a device of DLPack's type {tensor.device_type}", "copy it to host memory or to a CUDA device"
        )
    name = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    dtype = TYPES.get(name or "")
    if dtype is None:
        raise wrong(
            f"elements of DLPack's code {tensor.code} with {tensor.bits} bits in {tensor.lanes} lanes",
            "convert the array to one of " + ", ".join(TYPES),
        )
    count, stride = 1, 1
    shape = tensor.shape[: tensor.ndim] if tensor.ndim else []
    for length in shape:
        count *= length
    if tensor.strides and count:
        for length, step in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim])):
            if length != 1 and step != stride:
                raise wrong("the array's elements do not lie one after the other", "make a contiguous copy first")
            stride *= length
    pointer = (tensor.data or 0) + tensor.byte_offset if count else 0
    return Exported(pointer, count, dtype, read_only, on_device, capsule)
