"""Jobs whose ranks have a process group of PyTorch.

Processes are forked from one that has PyTorch loaded, which takes 20 ms where starting anew takes two seconds. The store
where ranks meet is in the test's own process, so that any rank may end first.
"""

from __future__ import annotations

import datetime
import multiprocessing
from typing import Any, Callable

import jobs
import pytest
import torch
import torch.distributed as dist

import consort.torch

multiprocessing.set_forkserver_preload(
    ["torch", "torch.distributed.fsdp", "torch.nn.parallel", "torch._dynamo", "torch.distributed.checkpoint", "numpy", "pytest"]
)
torch.set_num_threads(1)

#: What PyTorch takes for the group: a backend of Python (2.14 and later), or a whole group of Python (before, and still).
FORMS = ("backend", "group") if consort.torch._has_backends() else ("group",)
#: For what PyTorch before 2.14 does with its own backends only.
needs_backends = pytest.mark.skipif(FORMS[0] != "backend", reason=f"PyTorch {torch.__version__} knows no backends in Python")

_stores: "list[Any]" = []


def store() -> Any:
    """A store of the test's own process."""
    made = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _stores[:] = [made]
    return made


def _enter(rank: jobs.Rank) -> Any:
    body, port, form, timeout = rank.arguments[:4]
    rank.arguments = rank.arguments[4:]
    torch.set_num_threads(1)
    consort.torch.register(whole_group=form == "group")
    rank.store = dist.TCPStore("127.0.0.1", port, is_master=False)
    rank.timeout = datetime.timedelta(seconds=timeout)
    join(rank, "first")
    try:
        return body(rank)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def join(rank: Any, name: str, backend: str = "cpu:consort", **options: Any) -> None:
    """Makes the process group of all ranks, by a store that no other has."""
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(name, rank.store),
        rank=rank.number,
        world_size=rank.size,
        timeout=rank.timeout,
        **options,
    )


def start(body: Callable, size: int, *arguments: Any, form: str = FORMS[0], timeout: float = 60, **options: Any) -> jobs.Job:
    """A job whose ranks call `body(rank)` with the process group made."""
    port = store().port
    return jobs.Job(_enter, size, body, port, form, timeout, *arguments, method="forkserver", **options)


def run(body: Callable, size: int, *arguments: Any, **options: Any) -> "dict[int, Any]":
    """Runs a job to its end; what each rank returned."""
    return start(body, size, *arguments, **options).results()


def same(got: torch.Tensor, wanted: torch.Tensor, *what: Any) -> None:
    """Fails unless both have the same type, shape and bits."""
    if got.dtype is not wanted.dtype or got.shape != wanted.shape:
        raise AssertionError(f"{what}: {got.dtype} {tuple(got.shape)} instead of {wanted.dtype} {tuple(wanted.shape)}")
    flat, other = (one.detach().resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format) for one in (got, wanted))
    if flat.numel() and not torch.equal(flat.view(torch.uint8), other.view(torch.uint8)):
        raise AssertionError(f"{what}: {got} instead of {wanted}")
