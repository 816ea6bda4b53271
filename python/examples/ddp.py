"""Trains a small network on several processes, with DistributedDataParallel on consort.

    torchrun --nproc-per-node 2 python/examples/ddp.py
    torchrun --nproc-per-node 2 python/examples/ddp.py --backend gloo --steps 200

The network learns to tell two spirals apart. Each process has its part of the points; the losses are the same on each run
with the same `--seed` and number of processes.
"""

import argparse
import math
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def spirals(points: int, seed: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Points of two spirals, of shape (points, 2), and which of the two each belongs to."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(0, 2, (points,), generator=generator)
    radius = torch.rand(points, generator=generator).sqrt()
    angle = 3 * math.pi * radius + math.pi * which
    noise = 0.02 * torch.randn(points, 2, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + noise, which.float()


def main() -> None:
    """Trains, and prints the loss of all processes together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="consort")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=256, help="points of one process in a step")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    if arguments.backend == "consort":
        # PyTorch before 2.14, and a checkout that is not installed, do not find the backend by its name.
        import consort.torch  # noqa: F401
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    width = arguments.width
    layers = [torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    points, which = spirals(16 * arguments.batch * size, arguments.seed)
    mine, wanted = points[rank::size], which[rank::size]

    began = time.perf_counter()
    for step in range(arguments.steps + 1):
        begin = step % 16 * arguments.batch
        answers = model(mine[begin : begin + arguments.batch]).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(answers, wanted[begin : begin + arguments.batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step:4d}  loss {shown.item() / size:.6f}", flush=True)
    seconds = time.perf_counter() - began

    with torch.no_grad():
        right = ((model(mine).squeeze(1) > 0) == (wanted > 0)).sum()
    dist.all_reduce(right)
    if rank == 0:
        print(f"{100 * right.item() / len(points):.1f} % of {len(points)} points are right")
        print(f"{size} processes, {1e3 * seconds / (arguments.steps + 1):.2f} ms a step on {arguments.backend}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
