#!/usr/bin/env python3
"""ddp-time.py [WIDTH LAYERS HEADS HIDDEN SEQUENCE BATCH STEPS BUCKET_KIB LOSSES]: PyTorch's side of a data-parallel step.

The model, beginning, text and order of sequences of the trainer (`make-fixture.py`), by DistributedDataParallel over Gloo on one
thread a rank, in float32. Steps with sums and steps without (`no_sync`) take turns in blocks of ten, so that the difference of their
medians is the communication that backward does not hide. Then, in a second run from the beginning, LOSSES steps (10) print the mean of
the ranks' losses, which the trainer's `--losses` must equal within rounding.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who is where; CONSORT_RANK and CONSORT_SIZE stand in for the first two.
Needs torch and numpy.
"""

import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HERE = Path(__file__).resolve().parent
BLOCK = 10


class Wrapped(torch.nn.Module):
    """The loss of make-fixture.py as a module, which DistributedDataParallel wants."""

    def __init__(self, fixture, values):
        super().__init__()
        self.fixture, self.names = fixture, list(values)
        for name, value in values.items():
            self.register_parameter(name.replace(".", "/"), torch.nn.Parameter(value.detach().clone()))

    def forward(self, tokens, targets):
        values = {name: getattr(self, name.replace(".", "/")) for name in self.names}
        return self.fixture.loss(values, tokens, targets)


def main():
    torch.set_num_threads(1)
    for name in ("RANK", "SIZE"):
        target = "WORLD_SIZE" if name == "SIZE" else name
        if "CONSORT_" + name in os.environ:
            os.environ.setdefault(target, os.environ["CONSORT_" + name])
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    spec = importlib.util.spec_from_file_location("fixture", HERE / "make-fixture.py")
    fixture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixture)
    numbers = [128, 4, 4, 352, 128, 8, 100, 1024, 10]
    numbers[:len(sys.argv) - 1] = map(int, sys.argv[1:])
    width, layers, heads, hidden, sequence, batch, steps, bucket_kib, checked = numbers
    fixture.SHAPE.update(width=width, layers=layers, heads=heads, kv_heads=heads, hidden=hidden, sequence=sequence)
    fixture.RUN.update(batch=batch, seed=1, matrix_factor=1.0, rate=3e-3, least=3e-4, warmup=20, steps=checked, clip=1.0)
    text = (HERE.parent / "text" / "training.txt").read_bytes()
    text = text[:len(text) - len(text) // 10]
    begun = fixture.parameters(False, torch.float32)
    own = slice(batch * rank // ranks, batch * (rank + 1) // ranks)

    def fresh():
        module = Wrapped(fixture, begun)
        wrapped = DistributedDataParallel(module, bucket_cap_mb=bucket_kib / 1024, gradient_as_bucket_view=True)
        values = list(module.parameters())
        groups = [{"params": [v for v in values if v.dim() == 2], "weight_decay": 0.1},
                  {"params": [v for v in values if v.dim() == 1], "weight_decay": 0.0}]
        return wrapped, torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step(wrapped, optimizer, number):
        tokens, targets = (part[own] for part in fixture.batch(text, number))
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        loss = wrapped(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(wrapped.parameters()), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = fixture.rate(min(number, checked - 1))
        optimizer.step()
        return loss.item(), time.perf_counter() - begin

    wrapped, optimizer = fresh()
    times = {True: [], False: []}
    for number in range(2 * steps):
        summed = number // BLOCK % 2 == 0
        if number % BLOCK == 0:
            dist.barrier()
        if summed:
            taken = step(wrapped, optimizer, number)[1]
        else:
            with wrapped.no_sync():
                taken = step(wrapped, optimizer, number)[1]
        # The first of a block has caches and peers that are cold.
        if number % BLOCK and number >= 2 * BLOCK:
            times[summed].append(taken * 1e3)
    both = [statistics.median(times[summed]) for summed in (True, False)]
    losses, (wrapped, optimizer) = [], fresh()
    for number in range(checked):
        mean = torch.tensor(step(wrapped, optimizer, number)[0])
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
    if rank == 0:
        print("DDP over Gloo, %d ranks: a step %.2f ms, without sums %.2f ms, exposed %.2f ms" % (ranks, *both, both[0] - both[1]))
        print("losses", *("%.6f" % loss for loss in losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
