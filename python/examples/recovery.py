"""A training that loses a rank and goes on, and that a new rank joins later.

    python recovery.py [--ranks 3] [--steps 60]

Starts its own processes: a launcher such as torchrun ends all ranks when one dies. Rank 1 is killed after a third of the
steps; after two thirds a new process joins. Each step divides the same batch among the ranks that there are, so that the
losses are those of a training that lost no rank, but for rounding. The run without a loss is made too, in one process,
and both are compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from consort.torch import recovery

#: Divisible by 1, 2, 3 and 4 ranks.
BATCH = 48
FEATURES = 64
#: Seconds that an operation may last; a rank that dies is noticed at once.
TIMEOUT = datetime.timedelta(seconds=30)
#: Seconds that the whole run may last.
LIMIT = 120.0


def model_and_optimizer() -> Tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batch(step: int, rank: int, size: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of the step's batch."""
    random = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(BATCH, FEATURES, generator=random)
    targets = torch.tanh(inputs[:, :4].sum(1, keepdim=True))
    rows = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    return inputs[rows], targets[rows]


def step_loss(model: torch.nn.Module, step: int, rank: int = 0, size: int = 1) -> torch.Tensor:
    inputs, targets = batch(step, rank, size)
    return torch.nn.functional.mse_loss(model(inputs), targets)


def without_a_loss(steps: int) -> List[float]:
    """The losses of a training in one process."""
    model, optimizer = model_and_optimizer()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = step_loss(model, step)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


class Trainer:
    """One rank's training."""

    def __init__(self, group: recovery.ProcessGroupConsort, store: Any, steps: int):
        self.group, self.store, self.steps = group, store, steps
        self.step = 0
        self.model, self.optimizer = model_and_optimizer()
        self.losses: Dict[int, float] = {}

    def state(self) -> Dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def meet(self) -> None:
        """After each change of the ranks: all go on from the state of the one that is foremost."""
        self.step, state = self.group.resume(self.step, self.state)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        # Ranks must agree about DDP's buckets, which DDP makes anew after its first step.
        self.ddp = DistributedDataParallel(self.model, process_group=self.group)
        self.ddp.register_comm_hook(self.group, recovery.average)

    def one_step(self) -> bool:
        self.optimizer.zero_grad()
        loss = step_loss(self.ddp, self.step, self.group.rank(), self.group.size())
        loss.backward()
        if not self.group.commit():
            return False
        self.optimizer.step()
        self.losses[self.step] = float(loss.detach())
        self.step += 1
        return True

    def run(self) -> None:
        self.meet()
        while self.step < self.steps:
            try:
                if self.group.admit(dist.PrefixStore("newcomers", self.store)):
                    self.meet()
                    # The new rank begins here too.
                    continue
                if self.one_step():
                    if self.group.rank() == 0:
                        self.store.set("step", str(self.step))
                        if self.step in self.pauses():
                            self.store.wait([f"go on from {self.step}"])
                    continue
            except RuntimeError as error:
                if self.group.errored() is None:
                    raise
                print(f"rank {self.group.rank()}: {error}", flush=True)
            began = time.monotonic()
            gone = self.group.shrink()
            print(
                f"without {gone}, {self.group.size()} ranks go on from step {self.step}, after "
                f"{1000 * (time.monotonic() - began):.1f} ms",
                flush=True,
            )
            self.meet()

    def pauses(self) -> Tuple[int, int]:
        """Steps at which the program that kills and starts ranks is waited for, so that each run is the same."""
        return self.steps // 3, 2 * self.steps // 3


def work(number: int, ranks: int, steps: int, port: int, results: Any) -> None:
    """What a process does."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=LIMIT))
    group = recovery.ProcessGroupConsort(TIMEOUT)
    if number < ranks:
        group.configure(f"127.0.0.1:{port}/first", f"process {number}", number, ranks)
    else:
        rank = group.apply(dist.PrefixStore("newcomers", store))
        print(f"a new process is rank {rank} of {group.size()}", flush=True)
    trainer = Trainer(group, store, steps)
    trainer.run()
    results.put((number, group.size(), trainer.losses))
    group.shutdown()


class Run:
    """The processes of a run, which the program kills and starts."""

    def __init__(self, ranks: int, steps: int, method: str = "spawn"):
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context: Any = multiprocessing.get_context(method)
        self.results = context.SimpleQueue()
        arguments = [(number, ranks, steps, self.store.port, self.results) for number in range(ranks + 1)]
        self.processes = [context.Process(target=work, args=each) for each in arguments]
        self.ranks, self.steps, self._ends, self._killed = ranks, steps, time.monotonic() + LIMIT, -1

    def until(self, holds: Callable[[], bool], what: str) -> None:
        while not holds():
            failed = [n for n, process in enumerate(self.processes) if process.exitcode and n != self._killed]
            if failed or time.monotonic() > self._ends:
                raise RuntimeError(f"{what}: not within {LIMIT:g} s, or process {failed} failed")
            time.sleep(0.01)

    def at(self, step: int) -> None:
        self.until(lambda: self.store.check(["step"]) and int(self.store.get("step")) >= step, f"step {step}")

    def losses(self) -> Tuple[Dict[int, Dict[int, float]], int]:
        """Makes the run: the losses of each process by step, and the ranks at its end."""
        first, second = self.steps // 3, 2 * self.steps // 3
        try:
            for process in self.processes[: self.ranks]:
                process.start()
            self.at(first)
            self._killed = 1
            os.kill(self.processes[1].pid or 0, signal.SIGKILL)
            self.processes[1].join()
            self.store.set(f"go on from {first}", "")
            self.at(second)
            self.processes[self.ranks].start()
            newcomers = dist.PrefixStore("newcomers", self.store)
            self.until(lambda: newcomers.add(recovery.APPLIED, 0) > 0, "a new rank")
            self.store.set(f"go on from {second}", "")
            found: Dict[int, Dict[int, float]] = {}
            size = 0
            for _ in range(self.ranks):
                self.until(lambda: not self.results.empty(), "the end")
                number, size, losses = self.results.get()
                found[number] = losses
            return found, size
        finally:
            for process in self.processes:
                if process.pid is not None:
                    process.kill()
                    process.join()


def compared(found: Dict[int, Dict[int, float]], ranks: int, steps: int) -> float:
    """The largest difference of a step's loss from that of a training that lost no rank.

    Ranks have equal shares of a batch, so that the mean of their losses is the batch's. What the killed rank saw is gone
    with it, so that its steps are not compared.
    """
    whole, worst = without_a_loss(steps), 0.0
    for step in range(steps):
        of_ranks = [losses[step] for losses in found.values() if step in losses]
        present = ranks - 1 if steps // 3 <= step < 2 * steps // 3 else ranks
        if len(of_ranks) == present:
            worst = max(worst, abs(sum(of_ranks) / present - whole[step]))
        elif step >= steps // 3:
            raise RuntimeError(f"{len(of_ranks)} ranks made step {step}, and not {present}")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3, choices=(2, 3, 4))
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args()
    found, size = Run(asked.ranks, asked.steps).losses()
    worst = compared(found, asked.ranks, asked.steps)
    last = max(max(losses) for losses in found.values())
    end = sum(losses[last] for losses in found.values()) / len(found)
    print(json.dumps({"ranks at the end": size, "steps": last + 1, "last loss": end, "differs at most by": worst}))
    return 0 if worst < 1e-4 and size == asked.ranks else 1


if __name__ == "__main__":
    sys.exit(main())
