"""Importing this puts the library in the place of NCCL's, for everything that is loaded afterwards.

```python
import consort.nccl                        # before torch, CuPy and the like
import torch
```

The loader gives a library that asks for `libnccl.so.2` the one of that name that is there already. Nothing of NVIDIA's is
written over. Absent: programs that were not started by this one (`python -m consort.run`).
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings

from . import library

#: The file that is loaded.
PATH = library.path()


def _others() -> "list[str]":
    """Other files of that name in this process, by the kernel's list."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.rstrip("\n").split(None, 5)[-1] for line in maps if "libnccl.so" in line}
    except OSError:
        return []
    return sorted(path for path in paths if os.path.realpath(path) != os.path.realpath(PATH))


_before = _others()
library.load(ctypes.RTLD_GLOBAL)
if _before:
    warnings.warn(
        f"{', '.join(_before)} was loaded before consort.nccl: those who already use it stay with it; import consort.nccl "
        "first" + (", before torch" if "torch" in sys.modules else ""),
        RuntimeWarning,
        stacklevel=2,
    )
# vLLM and SGLang open a file by this name; processes that this one starts see it too.
os.environ.setdefault("VLLM_NCCL_SO_PATH", PATH)
