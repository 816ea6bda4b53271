"""Host memory that the other ranks of the host can map: collectives on it move nothing through staging.

Invariant: the library forgets the memory before it is unmapped. Absent: memory of devices.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import Any, Optional, Sequence, Union

from .dtypes import DataType, data_type
from .errors import check, wrong
from .prototypes import C

# Not in every version of Python.
_ADD_SEALS, _SEAL_SHRINK = 1033, 0x0002
#: The formats of memoryviews; types that have none are shown as numbers of the same width.
_FORMATS = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
    "bool": "?",
}


class _Registered(mmap.mmap):
    """A mapping that the library knows, until it is freed."""

    handle: Optional[int] = None
    process: int = 0

    def __del__(self) -> None:
        if self.handle is not None and self.process == os.getpid():
            C.consortMemDeregister(self.handle)


def empty(shape: "Union[int, Sequence[int]]", dtype: "Union[str, DataType]" = "float32") -> memoryview:
    """Zeroed host memory that the other ranks of this host can map and write, as a `memoryview` of that shape.

    NumPy and PyTorch use it without a copy: `numpy.asarray(consort.empty((4, 5)))`, `torch.frombuffer(memory,
    dtype=torch.bfloat16)`. It lives as long as what is made of it. Element types that a memoryview does not have (float16,
    bfloat16, FP8, complex) are raw bytes in one axis, for `torch.frombuffer` or `numpy.frombuffer`.
    """
    kind = data_type(dtype)
    lengths = [int(length) for length in ([shape] if isinstance(shape, int) else shape)]
    if any(length < 0 for length in lengths):
        raise wrong(f"a shape of {lengths}", "pass lengths of 0 or more")
    count = 1
    for length in lengths:
        count *= length
    bytes_used = count * kind.bytes
    mapped = _map(max(bytes_used, 1))
    whole = memoryview(mapped)[:bytes_used]
    form: Any = _FORMATS.get(kind.name)
    if form is None or not count:
        return whole
    return whole.cast(form, lengths) if lengths else whole.cast(form)


def _map(bytes_used: int) -> Any:
    pages = -(-bytes_used // mmap.PAGESIZE) * mmap.PAGESIZE
    file = os.memfd_create("consort-python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, pages)
        fcntl.fcntl(file, _ADD_SEALS, _SEAL_SHRINK)
        mapped = _Registered(file, pages)
        base, handle = ctypes.addressof(ctypes.c_char.from_buffer(mapped)), ctypes.c_void_p()
        check(C.consortMemRegisterFd(base, pages, file, 0, ctypes.byref(handle)))
    finally:
        os.close(file)
    mapped.handle, mapped.process = handle.value, os.getpid()
    return mapped
