"""Groups of PyTorch that come and go leave neither threads nor descriptors behind."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
import torchjobs  # noqa: E402

from consort.torch.recovery import ProcessGroupConsort  # noqa: E402

#: How often a group is made before and while it is counted.
WARM, COUNTED = 4, 12


def held():
    """Threads and descriptors of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def settled(most):
    """What is held, once it is at most that; threads that were ended may take a moment to be gone."""
    ends = time.monotonic() + 20
    now = held()
    while any(one > other for one, other in zip(now, most)) and time.monotonic() < ends:
        time.sleep(0.01)
        now = held()
    return now


def counted(once):
    for _ in range(WARM):
        once()
    before = held()
    for _ in range(COUNTED):
        once()
    after = settled(before)
    assert all(one <= other for one, other in zip(after, before)), f"{before} threads and descriptors became {after}"


def groups(rank):
    def once():
        group = dist.new_group()
        tensor = torch.ones(5)
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        assert tensor[0] == rank.size
        other = 1 - rank.number
        works = [dist.isend(torch.ones(3), other, group=group), dist.irecv(torch.zeros(3), other, group=group)]
        for work in works:
            work.wait()
        dist.barrier(group=group)
        dist.destroy_process_group(group)

    counted(once)


def test_groups_that_were_destroyed_leave_nothing():
    torchjobs.run(groups, 2, limit=120)


def configured(rank):
    port = rank.store.port
    group = ProcessGroupConsort(timedelta(seconds=30))
    turns = iter(range(1000))

    def once():
        group.configure(f"127.0.0.1:{port}/turn{next(turns)}", "replica", rank.number, rank.size)
        tensor = torch.ones(4)
        group.allreduce([tensor]).wait()
        assert tensor[0] == rank.size
        dist.barrier()
        group.abort()

    counted(once)
    group.shutdown()


def test_groups_that_are_configured_again_and_again_leave_nothing():
    torchjobs.run(configured, 2, limit=120)
