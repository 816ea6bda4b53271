"""The backend "consort" of `torch.distributed`, for tensors of the host.

```python
import torch.distributed as dist

dist.init_process_group("consort")         # under torchrun
```

PyTorch 2.14 and later find it by themselves where the package is installed; before, and in a checkout, `import
consort.torch` makes it known. `docs/PYTHON.md` of the project says what works.
"""

from __future__ import annotations

import functools
from typing import Optional

import torch
import torch.distributed as dist

from .backend import NAME, Backend, Group, Options
from .work import Work

__all__ = ["Backend", "Group", "Options", "Work", "register"]


def _has_backends() -> bool:
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 14)


def register(whole_group: Optional[bool] = None) -> None:
    """Makes "consort" known to `torch.distributed`. May be called again.

    Args:
        whole_group: make whole process groups of Python, as PyTorch before 2.14 needs them, and not backends. None for what
            this PyTorch needs.
    """
    from .backend import create

    kind = Group if (not _has_backends() if whole_group is None else whole_group) else Backend
    # Tensors of devices come here for the sentence that says where to take them. A group that names a device which is not
    # there is asked for its streams by PyTorch's flight recorder, and fails.
    devices = ["cpu", "cuda"] if torch.cuda.device_count() else ["cpu"]
    dist.Backend.register_backend(NAME, functools.partial(create, kind), extended_api=True, devices=devices)


register()
