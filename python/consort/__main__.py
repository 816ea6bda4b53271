"""`consort --lib` prints the file of the library, `consort --version` the versions.

Absent: running programs (`python -m consort.run`).
"""

from __future__ import annotations

import ctypes
import sys
from typing import List, Optional

from . import library
from .prototypes import C
from .version import VERSION

USAGE = "usage: consort --lib | --version"


def main(arguments: Optional[List[str]] = None) -> int:
    """Answers one question. Returns the exit status: 2 for wrong usage."""
    asked = sys.argv[1:] if arguments is None else arguments
    if asked == ["--lib"]:
        print(library.path())
    elif asked == ["--version"]:
        code = ctypes.c_int()
        C.ncclGetVersion(ctypes.byref(code))
        print(f"consort {VERSION}, which speaks NCCL {code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}")
    else:
        print(USAGE, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
