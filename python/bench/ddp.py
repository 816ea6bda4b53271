"""Steps of distributed data parallel training on Gloo and on consort, in one run on one host.

    python ddp.py --ranks 2 [--model transformer|resnet50] [--rounds 10]

A step is a forward and a backward pass with DDP's own all-reduces, until all ranks have made it. Exposed communication is
what a step lasts longer than the one within `no_sync` beside it, which makes none: the median of these differences. All
ways take turns, each with its own copy of the model; the program fails where the gradients of Gloo and consort differ.
`inline` makes the all-reduces on the thread of the backward pass, and not on one of their own (`Options(inline_bytes=)`).
`no communication` is DDP with a hook that does nothing: what it exposes is DDP's own work.

`transformer` has 8 layers of width 512 (27 million parameters). `resnet50` has the 161 gradients of ResNet-50 (25.6
million parameters), which come one by one as in its backward pass, each after a product of two matrices that takes the
place of its convolution: real convolutions take seconds a step on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from typing import Any, Dict, List, Tuple

import ranks
import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket

#: The order of the matrix whose product takes the place of a convolution.
ORDER = 256
#: Rows of the transformer's batch, and their length.
ROWS, LENGTH, WIDTH = 2, 64, 512


class Transformer(nn.Module):
    """An encoder with a classifier on top."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(inputs).mean(1)).square().mean()  # type: ignore[no-any-return]


class Gradient(torch.autograd.Function):
    """Passes a value through; backwards, works for a while and gives its parameter a gradient."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, parameter: torch.Tensor, work: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(parameter, work)
        return value + 0

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, None]:
        parameter, work = context.saved_tensors
        scale = float((work @ work)[0, 0]) * 1e-3
        return gradients[0], torch.full_like(parameter, scale) * gradients[0], None


def resnet50_shapes() -> List[Tuple[int, ...]]:
    """The shapes of ResNet-50's parameters, in order."""
    shapes: List[Tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers = [(width, inside, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                layers.append((4 * width, inside, 1, 1))
            for layer in layers:
                shapes += [layer, layer[:1], layer[:1]]
            inside = 4 * width
    return shapes + [(1000, inside), (1000,)]


class ResNet50(nn.Module):
    """The gradients of ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters_ = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in resnet50_shapes()])

    def forward(self, work: torch.Tensor) -> torch.Tensor:
        value = torch.ones((), requires_grad=True)
        for parameter in self.parameters_:
            value = Gradient.apply(value, parameter, work)  # type: ignore[no-untyped-call]
        return value


def model_and_batch(name: str, rank: int) -> Tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    model: nn.Module = Transformer() if name == "transformer" else ResNet50()
    torch.manual_seed(100 + rank)
    return model, torch.randn((ROWS, LENGTH, WIDTH) if name == "transformer" else (ORDER, ORDER))


def unchanged(state: Any, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
    """A communication hook that does nothing: what is left is DDP's own work."""
    future: "torch.futures.Future[torch.Tensor]" = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


# DDP compares the annotations themselves, and above they are texts.
unchanged.__annotations__.update({"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]})


def worker(asked: Any) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import consort.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    at_once = consort.torch.Options(inline_bytes=1 << 40)
    groups = {
        "Gloo": dist.new_group(backend="gloo"),
        "consort": dist.new_group(backend="cpu:consort"),
        "consort, inline": dist.new_group(backend="cpu:consort", pg_options=at_once),
    }
    copies, batch = {}, None
    for name in (*groups, "no communication"):
        model, batch = model_and_batch(asked.model, rank)
        group = groups.get(name, groups["consort"])
        copies[name] = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
        if name not in groups:
            copies[name].register_comm_hook(group, unchanged)

    def step(name: str, synchronised: bool) -> float:
        ddp = copies[name]
        with contextlib.nullcontext() if synchronised else ddp.no_sync():
            began = time.perf_counter()
            ddp(batch).backward()
            # Ranks that differ in speed, or share a core, wait for each other in every step.
            dist.barrier(group=groups["consort"])
            return time.perf_counter() - began

    def cleared(name: str) -> None:
        for parameter in copies[name].parameters():
            parameter.grad.zero_()

    found: Dict[str, List[float]] = {}
    for turn in range(asked.warm_up + asked.rounds):
        for name in copies:
            # Which of both comes first changes, so that neither is always the one after the other backend's.
            for synchronised in ((True, False) if turn % 2 else (False, True)):
                if any(parameter.grad is not None for parameter in copies[name].parameters()):
                    cleared(name)
                dist.barrier(group=groups["consort"])
                seconds = step(name, synchronised)
                if turn >= asked.warm_up:
                    found.setdefault(f"{name}{'' if synchronised else ', no_sync'}", []).append(seconds)
    for name in copies:
        cleared(name)
        step(name, True)
    for name in ("consort", "consort, inline"):
        for ours, theirs in zip(copies[name].parameters(), copies["Gloo"].parameters()):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    # The slowest rank's median counts.
    slowest = [None] * dist.get_world_size()
    own = {name: ranks.median(values) for name, values in found.items()}
    for name in copies:
        pairs = zip(found[name], found[f"{name}, no_sync"])
        own[f"{name}, exposed"] = ranks.median([step - without for step, without in pairs])
    dist.all_gather_object(slowest, own)
    if rank == 0:
        of_all: Dict[str, float] = {name: max(one[name] for one in slowest) for name in own}  # type: ignore[index]
        parameters = sum(parameter.numel() for parameter in copies["consort"].parameters())
        print(json.dumps({"parameters": parameters, "seconds": of_all}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", choices=("transformer", "resnet50"), action="append")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        asked.model = asked.model[0]
        return worker(asked)
    rows = []
    for model in asked.model or ("transformer", "resnet50"):
        arguments = ["--worker", "--model", model, "--rounds", str(asked.rounds), "--warm-up", str(asked.warm_up)]
        found = ranks.started(__file__, asked.ranks, arguments)
        for name in ("Gloo", "consort", "consort, inline", "no communication"):
            seconds = (found["seconds"][name + which] for which in ("", ", no_sync", ", exposed"))
            shown = [f"{1e3 * value:.1f}" for value in seconds]
            rows.append([f"{model}, {found['parameters'] / 1e6:.1f} M", name, *shown])
    print(f"\n{asked.ranks} ranks, milliseconds, medians of {asked.rounds} steps on the slowest rank\n")
    print(ranks.table(["model", "backend", "step", "step in no_sync", "exposed"], rows))


if __name__ == "__main__":
    main()
