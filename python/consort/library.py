"""Where the one `libnccl.so.2` is, and how it is opened.

Invariant: a process opens one file. Absent: what the library's functions are (`prototypes`).
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Optional

_HERE = Path(__file__).resolve().parent
_lock = threading.Lock()
_opened: Optional[ctypes.CDLL] = None


def _candidates() -> "list[Path]":
    named = os.environ.get("CONSORT_LIBRARY")
    if named:
        return [Path(named)]
    target = Path(os.environ.get("CARGO_TARGET_DIR") or _HERE.parents[1] / "target")
    return [_HERE / "lib" / "libnccl.so.2", target / "release" / "libnccl.so"]


def path() -> str:
    """The file of the library: that of `CONSORT_LIBRARY`, or the wheel's own, or the release build of a checkout.

    Raises `FileNotFoundError` naming the places where it was looked for.
    """
    candidates = _candidates()
    for candidate in candidates:
        if candidate.is_file():
            return str(candidate.resolve())
    places = " and ".join(map(str, candidates))
    raise FileNotFoundError(
        f"there is no consort library at {places}; install the wheel, build a checkout with "
        "`cargo build --release -p consort-ffi`, or name the file in CONSORT_LIBRARY"
    )


def load(mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """The library, opened by the first call. Later calls with `RTLD_GLOBAL` make its names global.

    Calls through it release the GIL. Raises `FileNotFoundError`, and `OSError` where the loader refuses the file.
    """
    global _opened
    with _lock:
        if _opened is None:
            _opened = ctypes.CDLL(path(), mode=mode)
        elif mode & ctypes.RTLD_GLOBAL:
            ctypes.CDLL(_opened._name, mode=mode)
        return _opened
