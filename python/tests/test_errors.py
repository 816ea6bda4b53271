"""What goes wrong, and what the exceptions say."""

import signal

import jobs
import numpy
import pytest

import consort
from consort import errors


def killed(rank):
    comm = rank.join()
    array = numpy.ones(4, numpy.float32)
    comm.all_reduce(array)
    rank.tell("joined")
    if rank.number == 1:
        signal.pause()
    with pytest.raises(consort.LostRank) as caught:
        comm.all_reduce(array)
    error = caught.value
    assert (error.rank, error.peer, error.kind) == (rank.number, 1, "lost_rank")
    assert "rank 1" in error.cause and "was lost" in error.cause and "look at that rank's own output" in error.remedy
    # Every later call says the same.
    with pytest.raises(consort.LostRank):
        comm.barrier()
    assert comm.failed() and "rank 1" in comm.status()
    comm.close()


@pytest.mark.parametrize("size", [2, 3])
def test_a_killed_rank_is_named(size):
    job = jobs.Job(killed, size, expects=[1])
    for rank in range(size):
        job.hear(rank)
    job.kill(1)
    assert set(job.results()) == set(range(size)) - {1}


def mismatched(rank):
    comm = rank.join()
    with pytest.raises(consort.Mismatch) as caught:
        comm.all_reduce(numpy.ones(4 + rank.number, numpy.float32))
    error = caught.value
    assert set(error.peers) == {0, 1} and isinstance(error, consort.InvalidUsage)
    assert "4 float" in error.cause and "5 float" in error.cause and "same order" in error.remedy


def test_ranks_that_differ_are_named():
    jobs.run(mismatched, 2)


def late(rank):
    comm = rank.join(timeout=0.3)
    assert comm.timeout == 0.3
    if rank.number == 1:
        rank.hear()
        return
    with pytest.raises(consort.Timeout) as caught:
        comm.all_reduce(numpy.ones(4, numpy.float32))
    error = caught.value
    assert isinstance(error, TimeoutError) and error.peer == 1
    assert "rank 1" in error.cause and "last_report()" in error.remedy and "nccl" not in error.remedy
    assert comm.last_report() is not None
    rank.tell()


def test_a_deadline_names_the_rank_that_did_not_come():
    job = jobs.Job(late, 2)
    job.hear(0)
    job.tell(1)
    job.results()


def test_a_failure_of_a_shrink_names_the_rank():
    text = 'ncclCommShrink on rank 0 of 4 of "a job": rank 2 (host a, process 7) was lost during shrink #1: it died; look there'
    error = errors.parse(text, 6, 0)
    assert isinstance(error, consort.LostRank) and error.peer == 2 and error.remedy == "look there"
    assert str(error) == 'rank 0 of 4 of "a job": rank 2 (host a, process 7) was lost during shrink #1: it died; look there'
