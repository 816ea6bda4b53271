"""`python -m consort.run SCRIPT [ARGUMENT...]` or `python -m consort.run -m MODULE [ARGUMENT...]`: runs a program with the
library in the place of NCCL's, in this process and in those that it starts.

Absent: starting several processes; that is torchrun's work: `torchrun ... -m consort.run script.py`.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import List

USAGE = "usage: python -m consort.run [-m] PROGRAM [ARGUMENT...]"


def main(arguments: List[str]) -> None:
    """Runs the program that the arguments name. Does not return where the program exits."""
    is_module = bool(arguments) and arguments[0] == "-m"
    rest = arguments[1:] if is_module else arguments
    if not rest or rest[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        raise SystemExit(2)
    from . import nccl

    # Other programs that this one starts take it too.
    before = os.environ.get("LD_PRELOAD", "")
    os.environ["LD_PRELOAD"] = f"{nccl.PATH}:{before}" if before else nccl.PATH
    sys.argv = list(rest)
    if is_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        # As Python itself: the script's own directory comes first.
        sys.path[0] = os.path.dirname(os.path.realpath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
