"""Jobs whose ranks are processes.

A body is a function of a module: every rank calls it in a new process, with a `Rank`. What it returns comes back by rank.
A job that lasts too long is ended and says what its ranks wait for; a process that ends by itself with another status
than 0 fails the job, unless the job expects it.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import time
import traceback
from typing import Any, Callable, Dict, Iterable, List

import consort

#: Jobs that a test has not ended; `conftest` ends them after it.
running: "List[Job]" = []

#: Repeats a run: all random numbers of the tests come from it.
SEED = int(os.environ.get("CONSORT_TEST_SEED") or random.SystemRandom().randrange(2**32))


class Rank:
    """A rank of a job, seen from within."""

    def __init__(self, number: int, size: int, pipe: Any, id: bytes, seed: int, arguments: tuple):
        self.number, self.size, self.arguments, self.seed = number, size, arguments, seed
        #: Equal on all ranks.
        self.random = random.Random(seed)
        self._pipe, self._id = pipe, id

    def join(self, **options: Any) -> consort.Communicator:
        """The communicator of all ranks."""
        return consort.init(self.number, self.size, self._id, **options)

    def tell(self, value: Any = None) -> None:
        """Sends something to the test; see `Job.hear`."""
        self._pipe.send(("said", value))

    def hear(self) -> Any:
        """Waits for what the test says; see `Job.tell`."""
        return self._pipe.recv()


def _enter(body: Callable, number: int, size: int, pipe: Any, id: bytes, seed: int, arguments: tuple) -> None:
    faulthandler.register(signal.SIGUSR1)
    try:
        value = body(Rank(number, size, pipe, id, seed, arguments))
        pipe.send(("done", value))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


class Job:
    """A job that was started."""

    def __init__(
        self,
        body: Callable,
        size: int,
        *arguments: Any,
        limit: float = 60,
        expects: Iterable[int] = (),
        method: str = "spawn",
    ):
        context: Any = multiprocessing.get_context(method)
        # The place where ranks meet is in this process, so that any rank may end first.
        self._id = consort.unique_id()
        self.size, self._ends, self._expects = size, time.monotonic() + limit, set(expects)
        running.append(self)
        self.pipes: List[Any] = []
        self.processes: List[Any] = []
        self._said: Dict[int, List[Any]] = {}
        self._values: Dict[int, Any] = {}
        for number in range(size):
            ours, theirs = context.Pipe()
            rank = (body, number, size, theirs, self._id, SEED, arguments)
            process = context.Process(target=_enter, args=rank)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def _receive(self, rank: int) -> None:
        remaining = max(0.0, self._ends - time.monotonic())
        if not self.pipes[rank].poll(remaining):
            for process in self.processes:
                if process.is_alive():
                    os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.5)
            self.end()
            raise AssertionError(f"rank {rank} of {self.size} has said nothing in time; its threads are above")
        kind, value = self.pipes[rank].recv()
        if kind == "failed":
            # Others may fail because this one did; the first to be asked is not always the cause.
            self.end()
            raise AssertionError(f"rank {rank} of {self.size}, seed {SEED}:\n{value}")
        if kind == "done":
            self._values[rank] = value
        else:
            self._said.setdefault(rank, []).append(value)

    def hear(self, rank: int) -> Any:
        """The next thing that the rank said."""
        while not self._said.get(rank):
            self._receive(rank)
        return self._said[rank].pop(0)

    def tell(self, rank: int, value: Any = None) -> None:
        """Says something to a rank."""
        self.pipes[rank].send(value)

    def kill(self, rank: int, how: int = signal.SIGKILL) -> None:
        """Sends a signal to a rank's process."""
        os.kill(self.processes[rank].pid, how)

    def results(self) -> Dict[int, Any]:
        """Waits for all ranks but those that are expected to be ended; what each returned."""
        try:
            for rank in range(self.size):
                while rank not in self._expects and rank not in self._values:
                    self._receive(rank)
            for rank, process in enumerate(self.processes):
                process.join(max(0.1, self._ends - time.monotonic()))
                if rank not in self._expects and process.exitcode != 0:
                    raise AssertionError(f"the process of rank {rank} ended with {process.exitcode}")
            return self._values
        finally:
            self.end()

    def end(self) -> None:
        """Ends what is left of it."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        if self in running:
            running.remove(self)


def run(body: Callable, size: int, *arguments: Any, **options: Any) -> Dict[int, Any]:
    """Runs a job to its end."""
    return Job(body, size, *arguments, **options).results()
