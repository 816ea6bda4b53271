"""PyTorch on several hosts, which are network namespaces of this machine (scripts/hosts)."""

import ctypes
import datetime
import os
import subprocess
import time
from pathlib import Path

import jobs
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torchjobs  # noqa: E402,F401  (its settings for processes)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import consort.torch  # noqa: E402

HOSTS = Path(__file__).resolve().parents[2] / "scripts" / "hosts"
#: Of `setns`.
CLONE_NEWNET = 0x40000000
STEPS = 4
#: Seconds that a step which makes or removes hosts may last.
LIMIT = 60


def hosts(prefix, *arguments):
    environment = {**os.environ, "HOSTS_PREFIX": prefix}
    return subprocess.run([HOSTS, *arguments], env=environment, capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture
def two_hosts():
    prefix = f"consort-py{os.getpid()}-"
    permitted = hosts(prefix, "permitted")
    if permitted.returncode:
        pytest.skip(f"no two hosts: {permitted.stdout.strip()}")
    made = hosts(prefix, "up", "2")
    try:
        assert made.returncode == 0, made.stderr
        yield prefix
    finally:
        hosts(prefix, "down")


def received(interface):
    """Bytes that came to this host."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            return int(counts.split()[0])
    raise AssertionError(f"no {interface}")


def trains(rank):
    prefix, places = rank.arguments
    with open(f"/run/netns/{prefix}{places[rank.number]}") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        # Before there is a second thread.
        assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    torch.set_num_threads(1)
    consort.torch.register()
    limit = datetime.timedelta(seconds=LIMIT)
    store = dist.TCPStore("10.77.0.1", 29500, rank.size, rank.number == 0, limit)
    dist.init_process_group("cpu:consort", store=store, rank=rank.number, world_size=rank.size, timeout=limit)
    torch.manual_seed(rank.number)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    before = received("eth0")
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    came = received("eth0") - before
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    rows = [torch.empty_like(flat) for _ in range(rank.size)]
    dist.all_gather(rows, flat)
    assert all(torch.equal(row, flat) for row in rows)
    # The rank that holds the store must be the last to go.
    dist.barrier()
    store.add("over", 1)
    if rank.number == 0:
        while store.add("over", 0) < rank.size:
            time.sleep(0.01)
    dist.destroy_process_group()
    return came, 4 * flat.numel()


@pytest.mark.parametrize("places", [(0, 1), (0, 0, 1, 1)], ids=["2x1", "2x2"])
def test_a_training_on_two_hosts(two_hosts, places):
    found = jobs.run(trains, len(places), two_hosts, places, method="forkserver", limit=120)
    # What one host has to learn of the other's gradients goes over the wire, for all of its ranks together.
    for place in (0, 1):
        came, size = found[places.index(place)]
        assert came > STEPS * size / 2, (place, came, size)
