"""Collective communication between processes or threads: arrays of any library, without a copy.

```python
import numpy, consort

with consort.init() as comm:               # under torchrun, mpirun or srun
    gradients = numpy.ones(1 << 20, numpy.float32)
    comm.all_reduce(gradients, "avg")      # in place
```

`docs/PYTHON.md` of the project has a table of all calls. Importing this imports neither NumPy nor PyTorch, and opens no
library: the first call does.
"""

from .base import Deadline, deadline
from .communicator import Communicator, init, join_grown, local, unique_id
from .dtypes import ScaledSum, scaled_sum
from .errors import (
    Aborted,
    Closed,
    ConcurrentUse,
    DeviceFailure,
    DifferentSettings,
    Error,
    Forked,
    InternalError,
    InvalidArgument,
    InvalidUsage,
    JoinFailed,
    LeftRank,
    LinkFailed,
    LostRank,
    Mismatch,
    MissingRanks,
    RemoteError,
    Revoked,
    SystemFailure,
    Timeout,
)
from .groups import Group, group
from .library import path as library_path
from .memory import empty
from .version import VERSION as __version__
from .work import Work

__all__ = [
    "Aborted",
    "Closed",
    "Communicator",
    "ConcurrentUse",
    "Deadline",
    "DeviceFailure",
    "DifferentSettings",
    "Error",
    "Forked",
    "Group",
    "InternalError",
    "InvalidArgument",
    "InvalidUsage",
    "JoinFailed",
    "LeftRank",
    "LinkFailed",
    "LostRank",
    "Mismatch",
    "MissingRanks",
    "RemoteError",
    "Revoked",
    "ScaledSum",
    "SystemFailure",
    "Timeout",
    "Work",
    "deadline",
    "empty",
    "group",
    "init",
    "join_grown",
    "library_path",
    "local",
    "scaled_sum",
    "unique_id",
]
