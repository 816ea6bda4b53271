"""What a program of PyTorch sees when a rank dies, does something else, or does not come."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback

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
    "monitored_barrier": repeated(dist.monitored_barrier),
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


#: In the other form only what differs: the ways in which an error comes back.
FORMS = [
    pytest.param(what, torchjobs.FORMS[0], marks=torchjobs.needs_backends if what.startswith("monitored") else ())
    for what in KILLED
]
FORMS += [(what, form) for what in ("all_reduce, async", "DDP", "barrier") for form in torchjobs.FORMS[1:]]


@pytest.mark.parametrize("what, form", FORMS)
def test_a_killed_rank_is_named(what, form):
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


def late(rank):
    """Rank 1 does not come to an operation, and then to a group."""
    own = rank.number
    if own == 1:
        rank.store.wait(["given up 0", "given up 2"])
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(2))
    else:
        with pytest.raises(dist.DistBackendError, match=r"did not finish within .*rank 1\b") as caught:
            dist.all_reduce(torch.ones(2))
        assert isinstance(caught.value.__cause__, torchjobs.consort.Timeout) or caught.value.__cause__ is None
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.get_error() == torch._C._distributed_c10d.ErrorType.TIMEOUT
        rank.store.set(f"given up {own}", "1")
    dist.destroy_process_group()
    if own != 1:
        with pytest.raises(RuntimeError, match="rank 1 of 3 did not come to the process group"):
            torchjobs.join(rank, "without rank 1")
        assert not dist.is_initialized()


def test_a_rank_that_does_not_come_in_time_is_named():
    torchjobs.run(late, 3, timeout=1)


def disagrees(rank):
    with pytest.raises(dist.DistBackendError, match="ranks disagree about operation"):
        dist.all_reduce(torch.ones(2 + rank.number))


def test_ranks_that_disagree():
    torchjobs.run(disagrees, 2)


def shared_elements(rank):
    """Rank 0 receives into a tensor whose elements are one place of memory."""
    if rank.number:
        dist.send(torch.ones(3), 0)
        dist.send(torch.full((3,), 2.0), 0)
        return
    with pytest.raises(RuntimeError, match="single memory location"):
        dist.recv(torch.zeros(1).expand(3), 1)
    # The next message is another one.
    tensor = torch.zeros(3)
    dist.recv(tensor, 1)
    assert tensor.tolist() == [2.0] * 3


def test_a_message_that_its_tensor_cannot_have_fails():
    torchjobs.run(shared_elements, 2, limit=40)


def subgroup(rank):
    group = dist.new_group([1, 3])
    if rank.number == 3:
        rank.tell("ready")
        time.sleep(3600)
    if rank.number == 1:
        rank.tell("ready")
        with pytest.raises(dist.DistBackendError, match=r"rank 1 \(.*\) was lost.*rank 1 is rank 3 of the job"):
            dist.all_reduce(torch.ones(2), group=group)


def test_a_rank_of_a_group_is_named_by_its_number_in_the_job_too():
    job = torchjobs.start(subgroup, 4, expects=[3])
    job.hear(1)
    job.hear(3)
    job.kill(3)
    job.results()


def until_under_way():
    backend = dist.group.WORLD
    backend = getattr(backend._get_backend(torch.device("cpu")), "engine", None) or backend.engine
    while all(one["ended_s"] is not None for one in backend.comm.flight_record()["operations"]):
        time.sleep(0.001)


def aborted(rank):
    dist.barrier()
    if rank.number == 0:
        ended = []

        def end():
            until_under_way()
            dist.distributed_c10d._abort_process_group()
            ended.append(True)

        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        with pytest.raises(RuntimeError, match="aborted"):
            dist.all_reduce(torch.ones(5))
        thread.join(30)
        assert ended
        rank.store.set("aborted", "1")
    else:
        rank.store.wait(["aborted"])
        with pytest.raises(dist.DistBackendError, match="aborted by rank 0"):
            dist.all_reduce(torch.ones(5))


@pytest.mark.parametrize("form", torchjobs.FORMS)
def test_an_abort_in_another_thread_ends_a_call(form):
    torchjobs.run(aborted, 2, form=form)


def aborted_amid_starts(rank):
    """Each round a thread starts messages and operations without end, while the main thread ends the group."""
    for turn in range(12):
        group = dist.new_group()
        backend = getattr(group, "_get_backend", lambda device: group)(torch.device("cpu"))
        works, refused, some = [], [], threading.Event()
        # The first are on the way while the pair meets.
        enough = rank.random.choice([1, 2, 5, 40])

        def starts():
            try:
                while True:
                    works.append(backend.send([torch.ones(3)], 1 - rank.number))
                    works.append(backend.recv([torch.ones(3)], 1 - rank.number))
                    works.append(backend.allreduce([torch.ones(3)]))
                    if len(works) >= enough:
                        some.set()
            except RuntimeError as error:
                refused.append(error)
            finally:
                some.set()

        thread = threading.Thread(target=starts, daemon=True)
        thread.start()
        assert some.wait(30)
        (backend.abort if turn % 3 else backend.shutdown)()
        thread.join(30)
        assert not thread.is_alive() and refused, (rank.seed, turn)
        late = [number for number, work in enumerate(works) if not work._over.wait(30)]
        assert not late, (rank.seed, turn, enough, late, len(works))
        assert all(work.is_completed() for work in works)


def test_all_work_completes_that_is_started_while_the_group_is_ended():
    torchjobs.run(aborted_amid_starts, 2, timeout=5, limit=90)


WAITS = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(5)),
    "started": lambda: dist.all_reduce(torch.ones(5), async_op=True).wait(),
    "message": lambda: dist.recv(torch.ones(5), 1),
    "monitored_barrier": lambda: dist.monitored_barrier(),
    "new group": lambda: dist.new_group(),
}


def interrupted(rank):
    which = rank.arguments[0]
    if rank.number == 0:
        with pytest.raises(KeyboardInterrupt):
            try:
                rank.tell("waits")
                WAITS[which]()
            finally:
                # The test may have sent another one meanwhile.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        rank.tell("interrupted")
    rank.hear()


@pytest.mark.parametrize(
    "which", [pytest.param(one, marks=torchjobs.needs_backends if one.startswith("monitored") else ()) for one in WAITS]
)
def test_ctrl_c_ends_a_wait(which):
    job = torchjobs.start(interrupted, 2, which, timeout=20)
    assert job.hear(0) == "waits"
    while not job.pipes[0].poll(0.3):
        job.kill(0, signal.SIGINT)
    assert job.hear(0) == "interrupted"
    for rank in range(2):
        job.tell(rank)
    job.results()


def interrupted_before(rank):
    """A wait of rank 0 was interrupted, and its operation went well later: the group's end waits as ever."""
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    if rank.number == 0:
        work = backend.allreduce([torch.ones(3)])
        backend.engine._interrupt(work)
        assert backend.engine._under_way()
        rank.store.set("interrupted", "1")
        assert work.wait() and not backend.engine._under_way()
        tensor = torch.zeros(3)
        work = backend.recv([tensor], 1)
        rank.store.set("ends", "1")
        dist.destroy_process_group()
        assert work.wait() and tensor.tolist() == [4.0] * 3
    else:
        rank.store.wait(["interrupted"])
        dist.all_reduce(torch.ones(3))
        rank.store.wait(["ends"])
        dist.send(torch.full((3,), 4.0), 0)


def test_an_interrupted_wait_whose_operation_went_well_leaves_nothing():
    torchjobs.run(interrupted_before, 2, timeout=30)


def forks_amid_calls(rank):
    """A child that is forked while another thread is in a call has no such thread, and ends at once."""
    from consort.torch import engine, leaving

    if rank.number == 0:
        thread = threading.Thread(target=lambda: dist.recv(torch.ones(3), 1), daemon=True)
        thread.start()
        while leaving._inside < 1:
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            try:
                assert leaving._inside == leaving._stopped == 0 and leaving._main is threading.main_thread()
                # The parent's may have been held.
                assert leaving._lock.acquire(timeout=5)
                leaving._lock.release()
                engine._at_exit()
                assert not leaving._exiting
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rank.store.set("forked", "1")
        thread.join(30)
        assert not thread.is_alive()
    else:
        rank.store.wait(["forked"])
        dist.send(torch.ones(3), 0)


def test_a_child_that_is_forked_amid_calls_has_none():
    torchjobs.run(forks_amid_calls, 2, limit=60)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((20,), float(index))


def loads(rank):
    ddp = DistributedDataParallel(model())
    loader = torch.utils.data.DataLoader(Numbers(), 4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for batch in loader:
            work = dist.all_reduce(torch.ones(1000), async_op=True)
            ddp(batch).mean().backward()
            work.wait()
    child = os.fork()
    if child == 0:
        # The parent's group is refused, and its end is not the child's.
        try:
            with pytest.raises(RuntimeError, match="parent process"):
                dist.all_reduce(torch.ones(3))
            dist.destroy_process_group()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0] == 2


@pytest.mark.parametrize("form", torchjobs.FORMS)
def test_workers_of_data_loaders_that_fork_disturb_nothing(form):
    torchjobs.run(loads, 2, form=form)


ENDS = {
    "work": "works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(100)]",
    "work with a callback, and an exception": """
    dist.all_reduce(torch.ones(5), async_op=True).get_future().then(lambda future: print(future))
    raise SystemExit(7)""",
    "a first message": "works = [dist.isend(torch.ones(5), 1), dist.irecv(torch.ones(5), 1)]",
    "threads in calls": """
    calls = [dist.barrier, lambda: dist.recv(torch.ones(3), 1)]
    [threading.Thread(target=call, daemon=True).start() for call in calls]
    # A thread on its way into a call may be ended anywhere; that is so for all of PyTorch.
    while consort.torch.leaving._inside < 2 or not engine.comm.flight_record()["operations"]:
        time.sleep(0.01)""",
}

PROGRAM = """
import datetime, os, sys, threading, time, torch, torch.distributed as dist, consort.torch
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
store = dist.PrefixStore("program", store)
dist.init_process_group("cpu:consort", store=store, rank=0, world_size=2, timeout=datetime.timedelta(seconds=20))
engine = dist.group.WORLD._get_backend(torch.device("cpu")).engine
if True:
    {}
"""


def beside(rank):
    dist.destroy_process_group()
    (text,) = rank.arguments
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(torchjobs.consort.__file__))}
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", text, str(rank.store.port)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        rank.number, rank.size = 1, 2
        torchjobs.join(rank, "program")
        _, said = program.communicate(timeout=60)
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(7))
            dist.barrier()
        return program.returncode, said
    finally:
        program.kill()


@pytest.mark.parametrize("what", ENDS)
def test_the_interpreter_ends_whatever_is_under_way(what):
    job = torchjobs.start(beside, 1, PROGRAM.format(ENDS[what]))
    (status, said), = job.results().values()
    assert status == (7 if "SystemExit" in ENDS[what] else 0), said
    assert "Fatal" not in said and "terminate" not in said and "Error" not in said, said
