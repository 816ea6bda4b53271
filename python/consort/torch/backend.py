"""What PyTorch takes for the backend of a process group: one of a device, or, before PyTorch 2.14, the whole group.

Invariant: a group of PyTorch has one communicator. Absent: what the operations do (`operations`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, List, Optional, Set

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ..prototypes import RESULTS
from .engine import Engine
from .meeting import seconds_of
from .operations import Operations

#: The name that PyTorch knows.
NAME = "consort"
#: Groups that were not ended. PyTorch's wrapper for its own checks keeps the C++ half of a backend alive, and not this one.
_open: "Set[_Group]" = set()
#: PyTorch's own default for groups.
_TIMEOUT = timedelta(minutes=30)


class Options(c10d.Backend.Options):
    """Settings of a group, for `pg_options=`.

    `inline_bytes`: operations with `async_op=True` of at most that size are made on the caller's thread where nothing
    is queued; they are quicker by a change of threads, and the caller then waits for the other ranks. 0 for none.
    """

    def __init__(self, timeout: timedelta = _TIMEOUT, inline_bytes: int = 0):
        super().__init__(NAME, timeout)
        self.inline_bytes = inline_bytes


class _Group(Operations):
    """What both forms have beside the operations."""

    def _begin(self, engine: Engine, timeout: timedelta) -> None:
        self.engine = engine
        self._options = Options(timeout, engine.inline_bytes)
        _open.add(self)

    @property
    def options(self) -> Options:
        """The group's settings."""
        return self._options

    def getBackendName(self) -> str:
        """`consort`."""
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        """How long operations may last."""
        self._options._timeout = timeout
        self.engine.set_timeout(seconds_of(timeout))

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self.engine.operations

    def _set_sequence_number_for_group(self) -> None:
        pass

    getSequenceNumberForGroup = _get_sequence_number_for_group
    setSequenceNumberForGroup = _set_sequence_number_for_group

    def abort(self) -> None:
        """Ends what is under way, on all ranks, and the group."""
        _open.discard(self)
        self.engine.abort()

    def shutdown(self) -> None:
        """Finishes what was started, and ends the group."""
        _open.discard(self)
        self.engine.shutdown()

    def get_error(self) -> Any:
        """What ended the group; `ErrorType.SUCCESS` while it works."""
        failure = self.engine.failure()
        if failure is None:
            return c10d.ErrorType.SUCCESS
        return c10d.ErrorType.TIMEOUT if failure == RESULTS["ncclTimeout"] else c10d.ErrorType.REMOTE_ERROR


class Backend(_Group, c10d.Backend):
    """The backend of a group for one or several devices (PyTorch 2.14 and later)."""

    def __init__(self, engine: Engine, timeout: timedelta):
        c10d.Backend.__init__(self, engine.comm.rank, engine.comm.size)
        self._begin(engine, timeout)

    # PyTorch asks for each of these, and finds no default of its own behind a class of Python.
    @property
    def supports_splitting(self) -> bool:
        """Yes."""
        return True

    @property
    def supports_coalescing(self) -> bool:
        """No: batched messages go by themselves, each on its pair's own communicator."""
        return False

    @property
    def supports_shrinking(self) -> bool:
        """No."""
        return False

    @property
    def supports_reconfigure(self) -> bool:
        """No."""
        return False

    @property
    def supports_window(self) -> bool:
        """No."""
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

    def supports_tensor_alloc(self, device: Any) -> bool:
        """No."""
        return False

    def split(self, store: Any, ranks: List[int], opts: Any) -> "Optional[Backend]":
        """A backend of some of this group's ranks, which call it with the same list; None for others."""
        own = self.engine.comm.rank
        if own not in ranks:
            return None
        names = self.engine.ranks or range(self.engine.comm.size)
        timeout: timedelta = getattr(opts, "_timeout", None) or self._options._timeout
        engine = Engine(
            store,
            ranks.index(own),
            len(ranks),
            seconds_of(timeout),
            [names[rank] for rank in ranks],
            getattr(opts, "group_name", ""),
            getattr(opts, "inline_bytes", self.engine.inline_bytes),
        )
        return Backend(engine, timeout)


class Group(_Group, dist.ProcessGroup):
    """A whole process group (before PyTorch 2.14, which knows no backends in Python)."""

    def __init__(self, engine: Engine, timeout: timedelta):
        dist.ProcessGroup.__init__(self, engine.comm.rank, engine.comm.size)
        self._begin(engine, timeout)
        self._group_name = self._group_desc = ""

    def setGroupName(self, name: str) -> None:
        """PyTorch's name of the group."""
        self._group_name = name

    def getGroupName(self) -> str:
        """PyTorch's name of the group."""
        return self._group_name

    def setGroupDesc(self, text: str) -> None:
        """PyTorch's description of the group."""
        self._group_desc = text

    def getGroupDesc(self) -> str:
        """PyTorch's description of the group."""
        return self._group_desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def group_name(self) -> str:
        """PyTorch's name of the group."""
        return self._group_name

    @property
    def group_desc(self) -> str:
        """PyTorch's description of the group."""
        return self._group_desc

    def _get_backend(self, device: torch.device) -> "Group":
        return self

    # What PyTorch's pipelines and torchft ask; PyTorch's own answers fail for a group without backends.
    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False


def create(kind: Any, opts: Any, options: Any) -> Any:
    """What PyTorch calls for a new group, on its members: `opts` has the store, rank and size, `options` the program's."""
    timeout = opts.timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=float(timeout))
    engine = Engine(
        opts.store,
        opts.group_rank,
        opts.group_size,
        seconds_of(timeout),
        opts.global_ranks_in_group,
        str(opts.group_id),
        getattr(options, "inline_bytes", 0),
    )
    return kind(engine, timeout)
