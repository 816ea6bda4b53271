"""Operations that are started and not waited for; groups; threads."""

import concurrent.futures
import os
import threading
import time

import jobs
import numpy
import pytest

import consort


def wait_until_under_way(comm):
    """Returns when the communicator's own record has a call that is not over."""
    ends = time.monotonic() + 60
    while not any(one["ended_s"] is None for one in comm.flight_record()["operations"]):
        assert time.monotonic() < ends, "no call came"


def threads(body, size=2):
    """Runs `body(comm)` in a thread for each rank of a communicator of this process; what each returned."""
    comms = consort.local(size)
    futures = [concurrent.futures.Future() for _ in comms]

    def run(comm, future):
        try:
            future.set_result(body(comm))
        except BaseException as error:
            future.set_exception(error)

    for comm, future in zip(comms, futures):
        # One that hangs must not keep the tests from ending.
        threading.Thread(target=run, args=(comm, future), daemon=True).start()
    try:
        return [future.result(60) for future in futures]
    finally:
        for comm in comms:
            if not all(future.done() for future in futures):
                comm.abort("a rank of the test hangs")
            comm.close()


def test_started_work_is_made_in_order_and_gives_its_results():
    def body(comm):
        arrays = [numpy.full(100, comm.rank + n, numpy.int64) for n in range(20)]
        works = [comm.start_all_reduce(array) for array in arrays]
        # A call that waits comes after all that was started.
        last = comm.all_reduce(numpy.ones(3))
        assert all(work.done() and work.wait(0) for work in works) and comm.idle()
        for n, (work, array) in enumerate(zip(works, arrays)):
            assert work.result() is array and (array == 1 + 2 * n).all()
        assert (last == 2).all()
        out = comm.start_all_gather(numpy.full(2, comm.rank)).result(30)
        assert out.tolist() == [[0, 0], [1, 1]]
        comm.start_barrier().wait()
        return True

    assert threads(body) == [True, True]


def test_every_call_can_be_started():
    def body(comm):
        me, ones = comm.rank, numpy.ones(4, numpy.float32)
        works = [
            comm.start_all_reduce(ones.copy(), "max", numpy.empty_like(ones)),
            comm.start_reduce(ones.copy(), 1),
            comm.start_broadcast(ones.copy(), 1),
            comm.start_all_gather(ones),
            comm.start_reduce_scatter(ones.reshape(2, 2)),
            comm.start_all_to_all(ones),
            comm.start_gather(ones, 1),
            comm.start_scatter(ones if me == 0 else None, 0, numpy.empty(2, numpy.float32)),
            comm.start_all_gather_v(ones[: 1 + me], numpy.empty(3, numpy.float32), [1, 2]),
            comm.start_reduce_scatter_v(ones[:3], numpy.empty(1 + me, numpy.float32), [1, 2]),
            comm.start_all_to_all_v(ones, numpy.empty(4, numpy.float32), [2, 2], [2, 2]),
            comm.start_gather_v(ones[:1], numpy.empty(2, numpy.float32), [1, 1], 0),
            comm.start_scatter_v(ones, numpy.empty(2, numpy.float32), [2, 2], 0),
            comm.start_send(ones, 1) if me == 0 else comm.start_recv(numpy.empty_like(ones), 0),
        ]
        return [None if (result := work.result(30)) is None else float(result.max()) for work in works]

    first, second = threads(body)
    assert first == [1, None, 1, 1, 2, 1, None, 1, 1, 2, 1, 1, 1, None]
    assert second == [1, 2, 1, 1, 2, 1, 1, 1, 1, 2, 1, None, 1, 1]


def test_waiting_ends_with_its_time_and_the_operation_goes_on():
    comms, array = consort.local(2), numpy.ones(5)
    work = comms[0].start_all_reduce(array)
    assert not work.wait(0.05) and not work.done()
    with pytest.raises(TimeoutError):
        work.result(0.01)
    comms[1].all_reduce(numpy.ones(5))
    assert work.result(30) is array and array[0] == 2
    [comm.close() for comm in comms]


def test_futures_and_callbacks_that_raise():
    comms, seen = consort.local(2), threading.Event()

    def wrong(_):
        raise RuntimeError("a callback that fails")

    work = comms[0].start_all_reduce(numpy.ones(5))
    work.future().add_done_callback(wrong)
    work.future().add_done_callback(lambda future: seen.set())
    comms[1].all_reduce(numpy.ones(5))
    assert seen.wait(30) and work.future().result()[0] == 2 and not work.future().cancel()
    # The thread goes on.
    second = comms[0].start_all_reduce(numpy.ones(5))
    comms[1].all_reduce(numpy.ones(5))
    assert concurrent.futures.wait([second.future()], 30).done and second.exception() is None
    [comm.close() for comm in comms]


def test_errors_of_started_work():
    comms = consort.local(2)
    work = comms[0].start_all_reduce(numpy.ones(5))
    comms[1].abort("on purpose")
    with pytest.raises(consort.Aborted, match="on purpose") as caught:
        work.wait(30)
    assert caught.value.peer == 1 and isinstance(work.exception(), consort.Aborted)
    with pytest.raises(consort.Aborted):
        comms[0].start_barrier().result(30)
    with pytest.raises(consort.InvalidArgument):
        comms[0].start_all_reduce(b"abc")
    [comm.close() for comm in comms]
    with pytest.raises(consort.Closed, match="closed"):
        comms[0].start_barrier()
    with pytest.raises(consort.Closed):
        comms[0].barrier()
    comms[0].close()


def test_a_group_is_one_piece_of_work_and_several_communicators_are_one_group():
    def body(comm):
        mine, theirs = numpy.full(3, comm.rank), numpy.zeros(3, int)

        def both(it):
            with consort.group():
                it.send(mine, 1 - it.rank)
                it.recv(theirs, 1 - it.rank)
                with consort.group():
                    it.all_reduce(mine.copy())
            return "over"

        work = comm.start(both)
        assert work.result(30) == "over" and (theirs == 1 - comm.rank).all()
        with pytest.raises(consort.InvalidArgument):
            with consort.group():
                comm.start_barrier()
        # A group that raises makes none of its calls.
        with pytest.raises(ZeroDivisionError):
            with consort.group():
                comm.all_reduce(mine)
                1 / 0
        assert (mine == comm.rank).all()
        comm.all_reduce(mine)
        return (mine == 1).all()

    assert threads(body) == [True, True]
    comms, arrays = consort.local(3), [numpy.full(2, n) for n in range(3)]
    with consort.group():
        for comm, array in zip(comms, arrays):
            comm.all_reduce(array)
    assert all((array == 3).all() for array in arrays)
    [comm.close() for comm in comms]


def test_two_threads_in_one_communicator_are_refused_and_it_goes_on():
    comms = consort.local(2)
    inside = threading.Thread(target=comms[0].all_reduce, args=(numpy.ones(3),), daemon=True)
    inside.start()
    wait_until_under_way(comms[0])
    with pytest.raises(consort.ConcurrentUse):
        comms[0].barrier()
    comms[1].all_reduce(numpy.ones(3))
    inside.join(30)
    assert not inside.is_alive() and comms[0].status() == ""
    [comm.close() for comm in comms]


def test_a_thread_has_deadlines_of_its_own():
    comms = consort.local(2)
    with consort.deadline(0.2):
        with consort.deadline(None):
            pass
        work = comms[0].start_all_reduce(numpy.ones(3))
    with pytest.raises(consort.Timeout) as caught:
        work.wait(30)
    assert caught.value.peer == 1
    [comm.close() for comm in comms]
    comms = consort.local(2)
    assert comms[0].timeout is None
    with consort.deadline(0.2), pytest.raises(consort.Timeout):
        comms[0].barrier()
    [comm.close() for comm in comms]


def test_many_communicators_leave_nothing_behind():
    def count(what):
        return len(os.listdir(f"/proc/self/{what}"))

    def some(number):
        for n in range(number):
            comms = consort.local(2)
            work = comms[0].start_all_reduce(numpy.ones(2)) if n % 10 == 0 else None
            if work is not None:
                comms[1].all_reduce(numpy.ones(2))
                work.wait(30)
            if n % 2:
                [comm.close() for comm in comms]
            del comms, work

    def settled(before):
        # A lane's thread ends by itself when its communicator is gone.
        for _ in range(3000):
            now = count("fd"), count("task")
            if now <= before or (now[0] <= before[0] and now[1] <= before[1]):
                break
            threading.Event().wait(0.01)
        return now

    def memory():
        with open("/proc/self/statm") as said:
            return int(said.read().split()[1]) * 4096

    some(60)
    before, held = (count("fd"), count("task")), memory()
    some(500)
    after = settled(before)
    assert after[0] <= before[0] and after[1] <= before[1], (before, after)
    assert memory() - held < 32 << 20, (held, memory())


def grows_and_shrinks(rank):
    comm = rank.join(timeout=60)
    half = comm.split(rank.number % 2 if rank.number else None, -rank.number, name="half")
    if rank.number == 0:
        assert half is None
    else:
        assert half.size == 1 and half.all_reduce(numpy.ones(1))[0] == 1
        half.close()
    pair = comm.split(0 if rank.number else 1)
    assert pair.size == (2 if rank.number else 1)
    pair.close()
    smaller = None
    if rank.number == 2:
        rank.tell("ready")
        rank.hear()
    else:
        rank.tell("ready")
        with pytest.raises(consort.LostRank) as caught:
            comm.all_reduce(numpy.ones(3))
        smaller = comm.shrink([caught.value.peer], abort=True)
        assert (smaller.rank, smaller.size) == (rank.number, 2)
        assert (smaller.all_reduce(numpy.ones(3)) == 2).all()
        rank.tell(smaller.growth_id() if rank.number == 0 else None)
        id = rank.hear()
        grown = smaller.grow(3, id if rank.number == 0 else None)
        assert (grown.rank, grown.size) == (rank.number, 3)
        return float(grown.all_reduce(numpy.ones(1))[0])


def newcomer(rank):
    grown = consort.join_grown(rank.hear(), 2, 3)
    return grown.rank, float(grown.all_reduce(numpy.ones(1))[0])


def test_ranks_go_on_without_a_dead_one_and_with_a_new_one():
    job = jobs.Job(grows_and_shrinks, 3, expects=[2])
    for rank in range(3):
        job.hear(rank)
    job.kill(2)
    id = job.hear(0)
    job.hear(1)
    new = jobs.Job(newcomer, 1)
    new.tell(0, id)
    job.tell(0, id)
    job.tell(1)
    assert job.results() == {0: 3.0, 1: 3.0} and new.results() == {0: (2, 3.0)}


def test_what_it_says_of_itself():
    comms = consort.local(2)
    (work := comms[0].start_all_reduce(numpy.ones(1000)), comms[1].all_reduce(numpy.ones(1000)))
    work.wait(30)
    comm = comms[0]
    report, record, why = comm.report(), comm.flight_record(), comm.explain("all_reduce", 4096)
    assert len(report["ranks"]) == 2 and "rank 0" in comm.report_text()
    assert record["rank"] == 0 and record["operations"][-1]["call"]["name"] == "all_reduce"
    assert why["ranks"] == 2 and why["candidates"] and "all_reduce" in comm.explain_text("all_reduce", 4096)
    assert isinstance(comm.stragglers(), dict) and comm.last_report() is None
    assert comm.status() == "" and not comm.failed() and comm.memory()["total"] > 0
    assert "rank 0 of 2, ready" in repr(comm)
    with pytest.raises(consort.InvalidArgument, match="no collective 'gossip'"):
        comm.explain("gossip", 1)
    # While an operation is under way on another thread.
    work = comm.start_all_reduce(numpy.ones(7))
    wait_until_under_way(comm)
    assert "rank 1" in comm.report_text()
    comms[1].revoke("enough")
    with pytest.raises(consort.Revoked, match="enough"):
        work.wait(30)
    [comm.close() for comm in comms]
