"""torchft's own manager, with our process group. torchft is no part of the tests' environment: without 0.2 this skips.

The wrappers of DDP in torchft 0.2 are left out: one raises in the backward pass of a step that failed, whatever the process
group, and the other waits for no operation. Later versions ask for process groups that have `reconfigure`.
"""

import datetime

import jobs
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchft", reason="torchft is not installed")

import torch.distributed as dist  # noqa: E402
import torchjobs  # noqa: E402, F401
from torchft import Manager, Optimizer  # noqa: E402
from torchft import process_group as torchft_groups  # noqa: E402
from torchft._torchft import LighthouseServer  # noqa: E402

from consort.torch import recovery  # noqa: E402

if "configure" not in dir(torchft_groups.ProcessGroup):
    pytest.skip("this torchft has process groups that have reconfigure", allow_module_level=True)

#: The steps after which a replica dies, another one comes, and all end.
DIES, COMES, LAST = 4, 10, 16


def trains(rank):
    """One replica: trains to the last step, of those that the managers count together."""
    address, comes = rank.arguments[0], rank.number == rank.size - 1
    torch.set_num_threads(1)
    if comes:
        rank.hear()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(rank.number)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    inner = torch.optim.SGD(net.parameters(), 0.05)

    def state():
        return {"net": net.state_dict(), "optimizer": inner.state_dict()}

    def load(found):
        net.load_state_dict(found["net"])
        inner.load_state_dict(found["optimizer"])

    limit = datetime.timedelta(seconds=20)
    manager = Manager(
        pg=recovery.ProcessGroupConsort(limit),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=2,
        replica_id=f"replica {rank.number}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=address,
        hostname="127.0.0.1",
        timeout=limit,
        quorum_timeout=3 * limit,
        use_async_quorum=False,
    )
    optimizer = Optimizer(manager, inner)
    if comes:
        # From now on the others' next step waits for it.
        rank.tell("here")
    sizes = []
    while manager.current_step() < LAST:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(1000 * rank.number + manager.current_step())
        batch = torch.randn(4, 8, generator=generator)
        (net(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        for work in [manager.allreduce(one.grad) for one in net.parameters()]:
            work.wait()
        optimizer.step()
        sizes.append(manager.num_participants())
        rank.tell(manager.current_step())
        if manager.current_step() == COMES and not comes:
            rank.hear()
    manager.shutdown()
    return sizes, [one.detach().tolist() for one in net.parameters()]


def reached(job, rank, step):
    while job.hear(rank) < step:
        pass


def test_a_replica_dies_and_another_one_comes():
    house = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=5000, quorum_tick_ms=50, heartbeat_timeout_ms=1000
    )
    try:
        address = "http://127.0.0.1:" + house.address().rsplit(":", 1)[1]
        job = jobs.Job(trains, 4, address, method="spawn", expects=[1], limit=120)
        reached(job, 1, DIES)
        job.kill(1)
        for rank in (0, 2):
            reached(job, rank, COMES)
        job.tell(3)
        assert job.hear(3) == "here"
        for rank in (0, 2):
            job.tell(rank)
        found = job.results()
    finally:
        house.shutdown()
    assert found[0][1] == found[2][1] == found[3][1]
    assert 2 in found[0][0] and found[0][0][-1] == found[3][0][-1] == 3, found
