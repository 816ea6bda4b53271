"""What a program of PyTorch sees when a rank dies, does something else, or does not come."""

import datetime
import os
import re
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torchjobs  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

#: Seconds within which the survivors must have their exception.
DEADLINE = 30


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 1))


def step(ddp):
    loss = ddp(torch.ones(4, 20)).square().mean()
    loss.backward()
    return loss.item()


def ddp_backward():
    ddp = DistributedDataParallel(model())
    step(ddp)
    step(ddp)
    yield
    while True:
        step(ddp)


def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    step(sharded)
    yield
    while True:
        step(sharded)


def repeated(call):
    def body():
        call()
        yield
        while True:
            call()

    return body


def messages():
    tensor = torch.zeros(100000)
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)
    elif dist.get_rank() == 1:
        dist.send(tensor, 0)
    dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)
    else:
        dist.barrier()


def first_message():
    """One that comes to no pair that has met."""
    dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(10), 1)
    else:
        dist.barrier()


def functional():
    from torch.distributed import _functional_collectives as collectives

    group = dist.group.WORLD
    collectives.all_reduce(torch.ones(5), "sum", group).sum()
    yield
    while True:
        collectives.all_reduce(torch.ones(5), "sum", group).sum().item()


KILLED = {
    "all_reduce": repeated(lambda: dist.all_reduce(torch.ones(100))),
    "all_reduce, async": repeated(lambda: dist.all_reduce(torch.ones(100), async_op=True).wait()),
    "future": repeated(lambda: dist.all_reduce(torch.ones(100), async_op=True).get_future().wait()),
    "all_gather": repeated(lambda: dist.all_gather([torch.ones(5) for _ in range(dist.get_world_size())], torch.ones(5))),
    "all_gather_into_tensor": repeated(
        lambda: dist.all_gather_into_tensor(torch.ones(5 * dist.get_world_size()), torch.ones(5))
    ),
    "barrier": repeated(dist.barrier),
    "objects": repeated(lambda: dist.all_gather_object([None] * dist.get_world_size(), {"a": 1})),
    "DDP": ddp_backward,
    "FSDP2": fsdp,
    "message": messages,
    "first message": first_message,
    "functional": functional,
}


def killed(rank):
    work = KILLED[rank.arguments[0]]()
    next(work)
    rank.tell("ready")
    rank.hear()
    if rank.number == 1:
        time.sleep(3600)
    began = time.monotonic()
    try:
        next(work)
    except RuntimeError as error:
        # C++ makes errors of futures anew, as `RuntimeError` with the text.
        assert isinstance(error, dist.DistBackendError) or "DistBackendError: " in str(error), repr(error)
        return str(error), time.monotonic() - began
    raise AssertionError("no error came")


@pytest.mark.parametrize("form", torchjobs.FORMS)
@pytest.mark.parametrize("what", KILLED)
def test_a_killed_rank_is_named(what, form):
    if form == "group" and what == "FSDP2":
        # Both of its collectives are among the others.
        return
    job = torchjobs.start(killed, 3, what, form=form, expects=[1])
    for rank in range(3):
        assert job.hear(rank) == "ready"
    for rank in range(3):
        job.tell(rank)
    job.kill(1)
    found = job.results()
    assert set(found) == {0, 2}
    for text, seconds in found.values():
        assert re.search(r"rank (1 \(.*\) was lost|.*\brank 0 is rank 1 of the job)", text) and "look at that rank" in text, text
        assert seconds < DEADLINE, seconds


