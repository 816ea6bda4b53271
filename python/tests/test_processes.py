"""Forks, signals, and how processes end."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import jobs
import numpy
import pytest

import consort


def forks(rank):
    comm = rank.join(timeout=60)
    comm.start_barrier().wait()
    child = os.fork()
    if child == 0:
        # A child must neither hang nor disturb its parent's communicator, whatever it does with it.
        try:
            for use in (comm.barrier, comm.start_barrier, comm.report, comm.abort, lambda: comm.split(0)):
                try:
                    use()
                except consort.Forked as error:
                    assert "parent" in str(error) and error.remedy
                else:
                    os._exit(3)
            comm.close()
            (own,) = consort.local(1)
            assert own.all_reduce(numpy.ones(2))[0] == 1
            own.start_barrier().wait(30)
            del comm
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert comm.all_reduce(numpy.ones(2))[0] == rank.size
    comm.start_barrier().wait()
    comm.close()


def test_a_forked_child_is_refused():
    jobs.run(forks, 2)


def workers(rank):
    import multiprocessing

    comm = rank.join(timeout=60)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        asked = pool.map_async(abs, range(-50, 0))
        for _ in range(200):
            comm.all_reduce(numpy.ones(100))
        assert len(asked.get(30)) == 50
    comm.barrier()
    comm.close()


def test_data_loaders_that_fork_disturb_nothing():
    jobs.run(workers, 2)


CALLS = {
    "all_reduce": lambda comm: comm.all_reduce(numpy.ones(3)),
    "group": lambda comm: exchange_in_group(comm),
    "queued": lambda comm: (comm.start_barrier(), comm.all_reduce(numpy.ones(3))),
    "work": lambda comm: comm.start_barrier().wait(),
}


def exchange_in_group(comm):
    with consort.group():
        comm.send(numpy.ones(3), 0)
        comm.recv(numpy.ones(3), 0)


def interrupted(rank):
    comm = rank.join(timeout=60)
    which = rank.arguments[0]
    if rank.number == 0:
        # This rank never makes the call; it learns of the end of the communicator from it, or closes it.
        rank.hear()
        if which != "work":
            with pytest.raises(consort.Aborted, match="KeyboardInterrupt") as caught:
                comm.barrier()
            assert caught.value.peer == 1
        return
    with pytest.raises(KeyboardInterrupt):
        try:
            rank.tell("calls")
            CALLS[which](comm)
        finally:
            # The test may have sent another one meanwhile.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    if which == "work":
        # The wait ended, and not the operation.
        assert comm.status() == ""
        comm.abort()
    rank.tell("interrupted")
    with pytest.raises(consort.Aborted):
        comm.barrier()
    comm.close()


@pytest.mark.parametrize("which", CALLS)
def test_ctrl_c_ends_a_wait(which):
    job = jobs.Job(interrupted, 2, which)
    job.hear(1)
    # Until the call waits: the rank's own record would need a thread of it, so it is asked again.
    while not job.pipes[1].poll(0.3):
        job.kill(1, signal.SIGINT)
    assert job.hear(1) == "interrupted"
    job.tell(0)
    job.results()


def script(text, *arguments, check=True, limit=60, **environment):
    """Runs a program; its output."""
    here = os.path.dirname(os.path.dirname(consort.__file__))
    path = os.pathsep.join([here, os.path.dirname(__file__)])
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(text), *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    if check:
        assert run.returncode == 0, run.stdout + run.stderr
    return run


def test_ctrl_c_ends_joining():
    program = """
        import consort, sys
        print("joins", flush=True)
        try:
            consort.init(0, 2, consort.unique_id())
        except KeyboardInterrupt:
            print("interrupted")
    """
    here = os.path.dirname(os.path.dirname(consort.__file__))
    running = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": here},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline() == "joins\n"
    ends = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < ends:
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        try:
            running.wait(0.1)
        except subprocess.TimeoutExpired:
            pass
    running.kill()
    assert "interrupted" in running.stdout.read()


ENDS = {
    "work in flight": "work = comms[0].start_all_reduce(numpy.ones(5))",
    "a call in a daemon thread": """
threading.Thread(target=comms[0].all_reduce, args=(numpy.ones(5),), daemon=True).start()
while not comms[0].flight_record()["operations"]: pass""",
    "much work in flight": "works = [comms[0].start_all_reduce(numpy.ones(5)) for _ in range(1000)]",
    "an exception": "comms[0].start_barrier(); raise SystemExit(0)",
    "nothing": "",
    "a group that was not left": "consort.group().__enter__(); comms[0].all_reduce(numpy.ones(2))",
}


@pytest.mark.parametrize("what", ENDS)
def test_the_interpreter_ends_whatever_is_under_way(what):
    run = script("import consort, numpy, threading\ncomms = consort.local(2)\n" + ENDS[what])
    assert "Traceback" not in run.stderr and "ResourceWarning" not in run.stderr, run.stderr


def leaves(rank):
    comm = rank.join(timeout=60)
    if rank.number == 1:
        comm.start_all_reduce(numpy.ones(4))
        return
    rank.hear()
    with pytest.raises(consort.Aborted, match="the interpreter of this rank ended") as caught:
        comm.barrier()
    assert caught.value.peer == 1


def test_others_learn_of_an_interpreter_that_ended_with_work_in_flight():
    job = jobs.Job(leaves, 2)
    job.processes[1].join(60)
    job.tell(0)
    job.results()


def raises_within(rank):
    if rank.number == 1:
        with pytest.raises(ZeroDivisionError):
            with rank.join(timeout=60) as comm:
                comm.barrier()
                1 / 0
        assert comm.closed
        return
    with rank.join(timeout=60) as comm:
        comm.barrier()
        with pytest.raises(consort.Aborted, match="ZeroDivisionError: division by zero"):
            comm.barrier()


def test_an_exception_in_the_block_ends_the_other_ranks():
    jobs.run(raises_within, 2)


def test_a_handler_of_the_programs_own_keeps_its_meaning():
    run = script("""
        import consort, numpy, os, signal, threading
        seen = []
        comms = consort.local(2)
        signal.signal(signal.SIGINT, lambda *_: seen.append("mine"))
        def other():
            while not comms[0].flight_record()["operations"]: pass
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)
            comms[1].barrier()
        threading.Thread(target=other).start()
        comms[0].barrier()
        print(seen, repr(comms[0].status()))
    """)
    assert run.stdout.strip() == "['mine'] ''"


def launched(rank):
    os.environ.update(RANK=str(rank.number), WORLD_SIZE=str(rank.size), LOCAL_RANK=str(rank.number), LOCAL_WORLD_SIZE=str(rank.size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID=rank.arguments[0])
    with consort.init() as comm:
        assert (comm.rank, comm.size) == (rank.number, rank.size)
        first = comm.all_reduce(numpy.ones(1))[0]
    # A second one of the same launch.
    with consort.init(name="again") as comm:
        return first + comm.all_reduce(numpy.ones(1))[0]


def test_a_launcher_says_who_this_is():
    assert jobs.run(launched, 2, f"run-{os.getpid()}") == {0: 4.0, 1: 4.0}
    for variable in ("RANK", "WORLD_SIZE", "CONSORT_RANK"):
        assert variable not in os.environ
    with pytest.raises(consort.InvalidArgument, match="no launcher"):
        consort.init()
    with pytest.raises(consort.InvalidArgument, match="some of rank, size and id"):
        consort.init(rank=0)
    with pytest.raises(consort.InvalidArgument, match="an id of 3 bytes"):
        consort.init(0, 1, b"abc")
    with pytest.raises(consort.InvalidArgument, match="rank 2 does not exist"):
        consort.init(2, 2, consort.unique_id())
