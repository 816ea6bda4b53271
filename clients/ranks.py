"""Jobs whose ranks are processes, for the Python clients.

A body is a function of the module that is run, called in a fresh process for every rank with a `Rank`. A job has
succeeded when every body returned and at least one thing was checked; the first failure ends it.
"""

import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import traceback


class Rank:
    """One rank of a job, seen from within."""

    def __init__(self, number, size, pipe):
        self.number = number
        self.size = size
        self.checked = 0
        # What the library says of its last failure, if the body can ask it.
        self.explain = lambda: "unknown"
        self._pipe = pipe

    def share(self, value=None):
        """What rank 0 passed, on all ranks."""
        if self.number == 0:
            self._pipe.send(("share", value))
            return value
        return self._pipe.recv()

    def meet(self):
        """Returns when all ranks have come here: not by the library that is looked at."""
        self._pipe.send(("meet", None))
        self._pipe.recv()

    def check(self, what, holds, saw=""):
        """Fails the job unless it holds."""
        if not holds:
            raise AssertionError(f"rank {self.number} of {self.size}: {what}{': saw ' if saw else ''}{saw}")
        self.checked += 1

    def equal(self, what, got, want):
        """Fails the job unless both are equal."""
        self.check(what, got == want, f"{got!r} instead of {want!r}")

    def raises(self, what, kind, body):
        """Fails the job unless `body` raises a `kind`, which is returned."""
        try:
            body()
        except kind as error:
            self.checked += 1
            return error
        raise AssertionError(f"rank {self.number} of {self.size}: {what}: no {kind.__name__} was raised")


def loaded():
    """The files named libnccl that this process has loaded, and the one that LIBNCCL says it should have."""
    with open("/proc/self/maps") as maps:
        paths = {os.path.realpath(line.split()[-1]) for line in maps if "libnccl" in line.rsplit("/", 1)[-1]}
    return paths, os.path.realpath(os.environ["LIBNCCL"])


def only_ours():
    """The one libnccl in this process, which must be the file that LIBNCCL names."""
    paths, want = loaded()
    if paths != {want}:
        raise AssertionError(f"this process has {sorted(paths)} and not {want} alone")
    return want


def _enter(body, number, size, pipe):
    rank = Rank(number, size, pipe)
    try:
        body(rank)
        pipe.send(("done", rank.checked))
    except BaseException:
        pipe.send(("failed", f"{traceback.format_exc()}the library's last error: {rank.explain()}"))


def _counted(size):
    return "1 process" if size == 1 else f"{size} processes"


def run(name, body, size, limit=60):
    """Runs `body` as a job, prints a line, and returns whether all was well. `limit` is in seconds."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for number in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_enter, args=(body, number, size, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes[ours] = number
        processes.append(process)
    ends, checked, failure = time.monotonic() + limit, 0, None
    others, met = list(pipes)[1:], []
    while pipes and failure is None:
        ready = multiprocessing.connection.wait(list(pipes), timeout=max(0, ends - time.monotonic()))
        if not ready:
            failure = f"ranks {sorted(pipes.values())} have not ended after {limit} s"
        for pipe in ready:
            try:
                kind, value = pipe.recv()
            except EOFError:
                failure = f"rank {pipes[pipe]}: the process ended without a word"
                break
            if kind == "share":
                for other in others:
                    other.send(value)
            elif kind == "meet":
                met.append(pipe)
                if len(met) == size:
                    for other in met:
                        other.send(None)
                    met = []
            elif kind == "done":
                checked += value
                del pipes[pipe]
            else:
                failure = value
                break
    for process in processes:
        if failure is not None:
            process.kill()
        process.join()
    if failure is None:
        # What happens after the body, when handles and libraries are torn down, counts too.
        codes = [process.exitcode for process in processes]
        if any(codes):
            failure = f"the processes ended with {codes}"
        elif checked == 0:
            failure = "nothing was checked"
    if failure is not None:
        print(f"{name}, {_counted(size)}: failed:\n{failure}", file=sys.stderr)
        return False
    print(f"{name}, {_counted(size)}: {checked} checks")
    return True
