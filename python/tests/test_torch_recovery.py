"""The process group that goes on when ranks die, hang and come."""

import datetime
import re
import signal
import sys
import threading
import time
from pathlib import Path

import jobs
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torchjobs  # noqa: E402

from consort.torch import recovery  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import recovery as example  # noqa: E402

#: Seconds within which calls must return that a failure ends.
DEADLINE = 20


def start(body, size, *arguments, **options):
    return jobs.Job(body, size, torchjobs.store().port, *arguments, method="forkserver", **options)


def group_of(rank, seconds=60):
    torch.set_num_threads(1)
    rank.port = rank.arguments[0]
    rank.store = dist.TCPStore("127.0.0.1", rank.port, is_master=False)
    return recovery.ProcessGroupConsort(datetime.timedelta(seconds=seconds))


def configure(group, rank, name, number=None, size=None):
    number, size = rank.number if number is None else number, size or rank.size
    group.configure(f"127.0.0.1:{rank.port}/{name}", f"process {rank.number}", number, size)


def total(group):
    """What all ranks' ones are together."""
    tensor = torch.ones(1000)
    group.allreduce([tensor]).wait()
    assert (tensor == tensor[0]).all()
    return int(tensor[0])


def again_and_again(rank):
    group = group_of(rank)
    assert (group.size(), group.getBackendName(), group.errored()) == (1, "consort", None)
    with pytest.raises(dist.DistBackendError, match="no ranks yet"):
        group.allreduce([torch.ones(1)])
    found = []
    for turn in range(6):
        # Another rank stays away each time, and the numbers change.
        away = turn % (rank.size + 1)
        members = [number for number in reversed(range(rank.size)) if number != away]
        if rank.number in members:
            configure(group, rank, f"turn/{turn}", members.index(rank.number), len(members))
            assert group.errored() is None
            found.append((group.rank(), group.size(), total(group)))
    configure(group, rank, "last")
    group.set_timeout(datetime.timedelta(seconds=50))
    assert group.engine.comm.timeout == 50
    total(group)
    group.shutdown()
    group.shutdown()
    group.abort()
    with pytest.raises(dist.DistBackendError):
        group.allreduce([torch.ones(1)])
    configure(group, rank, "after the end")
    assert total(group) == rank.size
    group.shutdown()
    return found


def test_a_group_is_configured_again_and_again():
    found = start(again_and_again, 3).results()
    for number, turns in found.items():
        expected = []
        for turn in range(6):
            members = [one for one in (2, 1, 0) if one != turn % 4]
            if number in members:
                expected.append((members.index(number), len(members), len(members)))
        assert turns == expected


def aborts(rank):
    group = group_of(rank)
    configure(group, rank, "first")
    total(group)
    if rank.number == 1:
        rank.tell("ready")
        rank.hear()
    else:
        caught = []
        entered = threading.Event()

        def waits():
            works = [group.allreduce([torch.ones(10)]), group.broadcast([torch.ones(10)])]
            entered.set()
            for work in works:
                try:
                    work.wait()
                except dist.DistBackendError as error:
                    caught.append(str(error))

        thread = threading.Thread(target=waits)
        thread.start()
        entered.wait(DEADLINE)
        assert group.errored() is None
        began = time.monotonic()
        group.abort()
        thread.join(DEADLINE)
        assert not thread.is_alive() and time.monotonic() - began < DEADLINE
        assert len(caught) == 2 and "abort" in caught[0], caught
        assert "abort" in str(group.errored())
        rank.tell("ready")
        rank.hear()
    if rank.number == 1:
        with pytest.raises(dist.DistBackendError, match="aborted by rank 0"):
            total(group)
        assert "aborted by rank 0" in str(group.errored())
    configure(group, rank, "second")
    assert group.errored() is None and total(group) == 2
    group.shutdown()


def test_an_abort_ends_the_calls_of_other_threads():
    job = start(aborts, 2)
    job.hear(0), job.hear(1)
    job.tell(0), job.tell(1)
    job.results()


def aborts_while_ranks_meet(rank):
    group, failed = group_of(rank), []

    def meets():
        with pytest.raises(dist.DistBackendError, match="was ended while its ranks met") as caught:
            # The other rank meets elsewhere.
            configure(group, rank, f"only rank {rank.number}")
        failed.append(caught.value)

    thread = threading.Thread(target=meets)
    thread.start()
    while group._joining is None:
        time.sleep(0.001)
    began = time.monotonic()
    group.abort()
    thread.join(DEADLINE)
    assert failed and time.monotonic() - began < DEADLINE
    assert group.errored() is failed[0] and group.size() == 1
    configure(group, rank, "together")
    assert group.errored() is None and total(group) == 2
    group.shutdown()


def test_an_abort_ends_that_ranks_meet():
    start(aborts_while_ranks_meet, 2).results()


def survives(rank):
    group = group_of(rank)
    configure(group, rank, "first")
    total(group)
    rank.tell("ready")
    rank.hear()
    if rank.number in rank.arguments[1]:
        time.sleep(3600)
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="was lost"):
        while True:
            total(group)
    assert not group.commit()
    gone = group.shrink()
    assert group.errored() is None and group.commit()
    # Messages have communicators of their own.
    if group.size() > 1:
        tensor = torch.full((5,), float(rank.number))
        works = [group.send([tensor.clone()], (group.rank() + 1) % group.size(), 0)]
        works.append(group.recv([tensor], (group.rank() - 1) % group.size(), 0))
        for work in works:
            work.wait()
        assert tensor[0] != rank.number
    assert time.monotonic() - began < DEADLINE
    found = (gone, group.rank(), group.size(), total(group))
    group.shutdown()
    return found


@pytest.mark.parametrize("size, killed", [(2, [1]), (3, [0]), (4, [1, 2])])
def test_a_group_goes_on_without_ranks_that_died(size, killed):
    job = start(survives, size, killed, expects=killed)
    for number in range(size):
        job.hear(number)
    for number in killed:
        job.kill(number)
    for number in set(range(size)) - set(killed):
        job.tell(number)
    found = job.results()
    living = [number for number in range(size) if number not in killed]
    assert found == {number: (killed, index, len(living), len(living)) for index, number in enumerate(living)}


def hangs(rank):
    group = group_of(rank, 60)
    configure(group, rank, "first")
    total(group)
    newcomers = dist.PrefixStore("newcomers", rank.store)
    rank.tell("ready")
    rank.hear()
    step, value = 1, torch.zeros(3)
    if rank.number == 1:
        # The others went on meanwhile.
        with pytest.raises(dist.DistBackendError):
            while True:
                total(group)
        group.apply(newcomers)
        step = 0
    else:
        group.set_timeout(datetime.timedelta(seconds=2))
        with pytest.raises(dist.DistBackendError, match="did not finish within"):
            total(group)
        assert group.shrink() == [1] and group.size() == 2
        group.set_timeout(datetime.timedelta(seconds=60))
        value = torch.arange(3.0)
        rank.tell("went on")
        while not group.admit(newcomers):
            time.sleep(0.01)
        step = 7
    reached, state = group.resume(step, lambda: {"value": value})
    assert reached == 7 and (state is None) == (rank.number != 1)
    found = (value if state is None else state["value"]).tolist(), group.size(), total(group)
    group.shutdown()
    return found


def test_a_rank_that_hung_is_left_out_and_comes_back():
    job = start(hangs, 3)
    for number in range(3):
        job.hear(number)
    job.kill(1, signal.SIGSTOP)
    job.tell(0), job.tell(2)
    job.hear(0), job.hear(2)
    job.tell(1)
    job.kill(1, signal.SIGCONT)
    assert job.results() == {number: ([0.0, 1.0, 2.0], 3, 3) for number in range(3)}


def waits_for_a_newcomer(rank):
    group = group_of(rank, 3)
    newcomers = dist.PrefixStore("newcomers", rank.store)
    if rank.number == 2:
        rank.tell("ready")
        rank.hear()
        return group.apply(newcomers)
    configure(group, rank, "first", rank.number, 2)
    assert group.admit(newcomers) == 0
    rank.tell("ready")
    rank.hear()
    assert group.admit(newcomers) == 0 and group.errored() is None
    found = total(group)
    group.shutdown()
    return found


def test_a_newcomer_that_died_is_not_admitted():
    job = start(waits_for_a_newcomer, 3, expects=[2])
    for number in range(3):
        job.hear(number)
    job.tell(2)
    applied = dist.PrefixStore("newcomers", torchjobs._stores[0])
    ends = time.monotonic() + DEADLINE
    while applied.add(recovery.APPLIED, 0) < 1:
        assert time.monotonic() < ends
        time.sleep(0.01)
    job.kill(2)
    job.processes[2].join(DEADLINE)
    job.tell(0), job.tell(1)
    assert job.results() == {0: 2, 1: 2}


def comes_alone(rank):
    group = group_of(rank, 1)
    with pytest.raises(dist.DistBackendError, match="no group admitted this rank within 1 s"):
        group.apply(rank.store)
    with pytest.raises(dist.DistBackendError, match=re.escape("rank 0 of 2 did not come")):
        configure(group, rank, "first", 1, 2)
    with pytest.raises(dist.DistBackendError, match=re.escape("ranks 1, 2 of 3 did not come within 1 s")):
        configure(group, rank, "other", 0, 3)
    assert "did not come" in str(group.errored())
    with pytest.raises(dist.DistBackendError, match="did not come"):
        group.allreduce([torch.ones(1)])
    configure(group, rank, "second", 0, 1)
    assert group.errored() is None and total(group) == 1
    with pytest.raises(dist.DistBackendError, match="no rank is known to be gone"):
        group.shrink()


def test_a_group_that_is_not_complete_can_be_made_anew():
    start(comes_alone, 1).results()


def test_a_training_loses_a_rank_and_gains_one():
    run = example.Run(3, 12, "forkserver")
    found, size = run.losses()
    assert size == 3 and sorted(map(len, found.values())) == [4, 12, 12]
    assert example.compared(found, 3, 12) < 1e-5
