"""Arrays of any library as address, count and element type, without a copy.

Asked in this order: PyTorch's tensors, NumPy's arrays, `__cuda_array_interface__`, DLPack, the buffer protocol. A library
is never imported: an array of it is only there where it was.

Invariant: a `View` is of contiguous elements in row-major order, in memory that lives as long as the view's `keep`.
Absent: what is done with them.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import addressof, c_char
from typing import Any, Callable, NamedTuple, Optional

from . import dlpack
from .dtypes import TYPES, DataType, of_torch
from .errors import InvalidArgument, wrong


class View(NamedTuple):
    """Where an array's elements are."""

    #: The address of the first element; 0 where there is none.
    pointer: int
    #: Elements of the array's own type.
    elements: int
    dtype: DataType
    #: What keeps the memory alive.
    keep: Any
    #: The CUDA stream in which calls on it run; 0 on host memory.
    stream: int = 0


_Reader = Callable[[Any, bool], View]
_readers: "dict[type, _Reader]" = {}


def view(array: Any, writable: bool = False) -> View:
    """Where the elements of `array` are: of a tensor, an array, or an object with DLPack or the buffer protocol.

    Raises `InvalidArgument` for elements that do not lie one after the other, for types that the library does not have,
    and, with `writable`, for an array that must not be written to.
    """
    reader = _readers.get(type(array))
    if reader is None:
        reader = _readers[type(array)] = _reader(array)
    return reader(array, writable)


def _reader(array: Any) -> _Reader:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(array, torch.Tensor):
        return _torch
    if numpy is not None and isinstance(array, numpy.ndarray):
        return _numpy
    if hasattr(type(array), "__cuda_array_interface__"):
        return _cuda
    return _host_reader(array)


def _host_reader(array: Any) -> _Reader:
    return _dlpack if hasattr(type(array), "__dlpack__") else _buffer


def _scattered(array: Any, copy: str) -> InvalidArgument:
    return wrong(
        f"the elements of this {type(array).__name__} do not lie one after the other in row-major order",
        f"pass a contiguous copy ({copy})",
    )


def _read_only(array: Any) -> InvalidArgument:
    return wrong(
        f"the result cannot be written to this {type(array).__name__}: it is read-only",
        "pass a writable array as the output",
    )


def _unknown(array: Any, name: object) -> InvalidArgument:
    return wrong(f"{type(array).__name__} of {name}", "convert it to one of " + ", ".join(TYPES))


_torch_types: "dict[Any, Optional[DataType]]" = {}


def _torch(tensor: Any, writable: bool) -> View:
    dtype = _torch_types.get(tensor.dtype)
    if dtype is None:
        dtype = _torch_types[tensor.dtype] = of_torch(tensor.dtype)
        if dtype is None:
            raise _unknown(tensor, tensor.dtype)
    if tensor.is_cpu:
        stream = 0
    elif tensor.is_cuda:
        stream = sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
    else:
        raise wrong(f"a tensor on {tensor.device}", "move it to the CPU or to a CUDA device")
    if tensor.is_sparse or not tensor.is_contiguous():
        raise _scattered(tensor, "tensor.contiguous()")
    if tensor.is_neg() or (dtype.kind == "complex" and tensor.is_conj()):
        raise wrong("a tensor that is negated or conjugated when it is read", "pass tensor.resolve_conj().resolve_neg()")
    return View(tensor.data_ptr(), tensor.numel(), dtype, tensor, stream)


_char_of = c_char.from_buffer
_numpy_types: "dict[Any, DataType]" = {}


def _numpy(array: Any, writable: bool) -> View:
    dtype = _numpy_types.get(array.dtype)
    if dtype is None:
        # In the machine's own order of bytes, or of one byte.
        native = array.dtype.isnative
        found = TYPES.get(array.dtype.name) if native else None
        if found is None:
            raise _unknown(array, array.dtype if native else f"{array.dtype} in the other order of bytes")
        dtype = _numpy_types[array.dtype] = found
    count = array.size
    try:
        # The quickest way to an address. It refuses what is scattered, read-only or empty, and types without a format.
        keep = _char_of(array)
        return View(addressof(keep), count, dtype, keep)
    except (TypeError, ValueError, BufferError):
        pass
    flags = array.flags
    if not flags.c_contiguous:
        raise _scattered(array, "numpy.ascontiguousarray(array)")
    if writable and not flags.writeable:
        raise _read_only(array)
    return View(array.ctypes.data, count, dtype, array)


_CUDA_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}


def _cuda(array: Any, writable: bool) -> View:
    said = getattr(array, "__cuda_array_interface__", None)
    if said is None:
        # JAX's arrays have one type for all devices, and the attribute only on one.
        return _host_reader(array)(array, writable)
    pointer, read_only = said["data"]
    order, kind, size = said["typestr"][0], said["typestr"][1], int(said["typestr"][2:])
    name = "bool" if kind == "b" else f"{_CUDA_KINDS.get(kind, '?')}{8 * size}"
    # What the interface has no name for comes as raw bytes, with the type that the array itself names.
    if kind in "Vu" and hasattr(array, "dtype"):
        name = str(getattr(array.dtype, "name", name))
    dtype = TYPES.get(name)
    if dtype is None or (order == ">" and size > 1):
        raise _unknown(array, said["typestr"])
    if writable and read_only:
        raise _read_only(array)
    count = 1
    for length in said["shape"]:
        count *= length
    expected = dtype.bytes
    for length, step in zip(reversed(said["shape"]), reversed(said.get("strides") or ())):
        if count and length != 1 and step != expected:
            raise _scattered(array, "cupy.ascontiguousarray(array)")
        expected *= length
    # 1 is the legacy default stream, which the library knows as 0.
    stream = said.get("stream") or 0
    return View(pointer if count else 0, count, dtype, array, 0 if stream == 1 else stream)


def _dlpack(array: Any, writable: bool) -> View:
    said = dlpack.export(array)
    if writable and said.read_only:
        raise _read_only(array)
    if writable and type(array).__module__.startswith("jax"):
        raise wrong("a JAX array as an output: JAX's arrays never change", "pass out=numpy.empty_like(array)")
    return View(said.pointer, said.elements, said.dtype, (array, said.capsule))


def _formats() -> "dict[str, DataType]":
    names = {"e": "float16", "f": "float32", "d": "float64", "?": "bool", "c": "uint8"}
    names.update({"Zf": "complex64", "Zd": "complex128"})
    for code in "bhilqn":
        bits = 8 * ctypes.sizeof(
            {"b": ctypes.c_byte, "h": ctypes.c_short, "i": ctypes.c_int, "l": ctypes.c_long, "q": ctypes.c_longlong}.get(
                code, ctypes.c_ssize_t
            )
        )
        names[code], names[code.upper()] = f"int{bits}", f"uint{bits}"
    return {code: TYPES[name] for code, name in names.items()}


_FORMATS = _formats()


class _PyBuffer(ctypes.Structure):
    """`Py_buffer`; released with the object."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]

    def __del__(self, release: Any = ctypes.pythonapi.PyBuffer_Release, by: Any = ctypes.byref) -> None:
        release(by(self))


def _read_only_address(memory: memoryview) -> "tuple[int, Any]":
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(buffer), 0)
    return buffer.buf or 0, buffer


def _buffer(array: Any, writable: bool) -> View:
    try:
        memory = memoryview(array)
    except TypeError:
        raise wrong(
            f"a {type(array).__name__} is no array", "pass a tensor, an array, or an object with DLPack or a buffer"
        ) from None
    except (ValueError, BufferError) as error:
        raise wrong(f"the buffer of this {type(array).__name__} is not to be had: {error}", "pass a copy") from None
    form = memory.format
    if form[:1] == ">" and memory.itemsize > 1:
        raise _unknown(array, "elements in the other order of bytes")
    dtype = _FORMATS.get(form.lstrip("@=<>|"))
    if dtype is None or dtype.bytes != memory.itemsize:
        raise _unknown(array, f"elements of the format {form!r}")
    if not memory.c_contiguous:
        raise _scattered(array, "bytearray(array)")
    if writable and memory.readonly:
        raise _read_only(array)
    if not memory.nbytes:
        return View(0, 0, dtype, memory)
    if memory.readonly:
        address, keep = _read_only_address(memory)
    else:
        keep = c_char.from_buffer(memory)
        address = addressof(keep)
    return View(address, memory.nbytes // dtype.bytes, dtype, keep)


def like(array: Any, shape: "tuple[int, ...]") -> Any:
    """A new array of that shape, of the library, type and device of `array`.

    Raises `InvalidArgument` for arrays of other libraries than NumPy and PyTorch.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(array, torch.Tensor):
        return array.new_empty(shape)
    if numpy is not None and isinstance(array, numpy.ndarray):
        return numpy.empty(shape, array.dtype)
    raise wrong(f"no output was passed beside a {type(array).__name__}", "pass out=")
