"""A text classifier of DistilBERT's size, trained with plain DDP and with sharded optimizers and parameters.

    torchrun --nproc-per-node 2 classifier.py --way ddp --way zero --way fsdp [--tiny] [--steps 40] [--out DIRECTORY]

What is repeated: DistilBERT (66 million parameters: 6 layers of width 768, 12 heads, 30,522 words) fine-tuned on a
classification of sentences, once with a copy of everything on each rank (DDP), once with the states of the optimizer
divided among the ranks (ZeRO stage 1, `ZeroRedundancyOptimizer`), and once with the parameters divided too (ZeRO stage 3,
`fully_shard`). The three do the same arithmetic, so that their losses must agree but for rounding. The text is made here,
from a seed: its words are random, and its label is the kind, one of four, that most of its marked words have.

Writes DIRECTORY/losses.csv, DIRECTORY/losses.svg and DIRECTORY/times.csv; prints a line of JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import consort.torch  # noqa: F401  (a checkout has no entry point)

LABELS = 4
#: Words that count for a label, for each label, at the end of the vocabulary.
MARKED = 8


class Sizes:
    """The measures of a model and of its batches."""

    def __init__(self, tiny: bool):
        self.words, self.width, self.heads, self.layers = (400, 32, 4, 2) if tiny else (30522, 768, 12, 6)
        self.length, self.rows = (16, 8) if tiny else (48, 8)
        self.positions = self.length if tiny else 512
        self.rate = 5e-3 if tiny else 1e-4


class Classifier(nn.Module):
    """DistilBERT with a head for classification."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.norm = nn.LayerNorm(sizes.width)
        make = lambda: nn.TransformerEncoderLayer(  # noqa: E731
            sizes.width, sizes.heads, 4 * sizes.width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.ModuleList(make() for _ in range(sizes.layers))
        self.head = nn.Sequential(nn.Linear(sizes.width, sizes.width), nn.ReLU(), nn.Linear(sizes.width, LABELS))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1])
        value = self.norm(self.words(text) + self.positions(places))
        for layer in self.layers:
            value = layer(value)
        return self.head(value.mean(1))  # type: ignore[no-any-return]


def batch(sizes: Sizes, step: int, rank: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Texts and labels of a rank's step; the same for each way."""
    random = torch.Generator().manual_seed(100_000 * rank + step)
    labels = torch.randint(LABELS, (sizes.rows,), generator=random)
    first_marked = sizes.words - LABELS * MARKED
    text = torch.randint(first_marked, (sizes.rows, sizes.length), generator=random)
    # Half of the words are marked, and most of those for the label.
    marked = torch.rand(sizes.rows, sizes.length, generator=random) < 1 / 2
    right = torch.rand(sizes.rows, sizes.length, generator=random) < 3 / 4
    kind = torch.where(right, labels[:, None], torch.randint(LABELS, text.shape, generator=random))
    word = torch.randint(MARKED, text.shape, generator=random)
    return torch.where(marked, first_marked + kind * MARKED + word, text), labels


def made(way: str, sizes: Sizes) -> Tuple[nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer of a way. All begin with the same parameters."""
    torch.manual_seed(3)
    model: nn.Module = Classifier(sizes)
    if way == "fsdp":
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=sizes.rate, foreach=True)
    model = DistributedDataParallel(model)
    if way == "zero":
        zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=sizes.rate, foreach=True)
        return model, zero
    return model, torch.optim.AdamW(model.parameters(), lr=sizes.rate, foreach=True)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What this rank keeps for the optimizer."""
    inner = getattr(optimizer, "optim", optimizer)
    total = 0
    for values in inner.state.values():
        for value in values.values():
            if isinstance(value, torch.Tensor):
                local = value.to_local() if hasattr(value, "to_local") else value
                total += local.numel() * local.element_size()
    return total


def trained(way: str, sizes: Sizes, steps: int) -> Dict[str, Any]:
    """The losses, averaged over the ranks, and the seconds of each step."""
    model, optimizer = made(way, sizes)
    losses, seconds = [], []
    for step in range(steps):
        text, labels = batch(sizes, step, dist.get_rank())
        dist.barrier()
        began = time.perf_counter()
        loss = nn.functional.cross_entropy(model(text), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(float(mean))
    kept = torch.tensor([float(state_bytes(optimizer))])
    dist.all_reduce(kept, dist.ReduceOp.MAX)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"losses": losses, "seconds": seconds, "state": float(kept), "parameters": parameters}


def drawn(curves: Dict[str, List[float]]) -> str:
    """The curves as SVG."""
    wide, high, left = 640, 320, 40
    top = max(max(curve) for curve in curves.values())
    colours = ("#1b6ca8", "#d1495b", "#3a7d44")
    size = f'width="{wide + 80}" height="{high + 50}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts.append(f'<path d="M{left} 10V{high}H{wide}" fill="none" stroke="#444"/>')
    parts.append(f'<text x="4" y="20">{top:.2f}</text><text x="20" y="{high}">0</text>')
    parts.append(f'<text x="{wide // 2}" y="{high + 20}">step</text>')
    for (name, curve), colour, line in zip(curves.items(), colours, range(3)):
        across = (wide - left) / max(1, len(curve) - 1)
        points = " ".join(f"{left + across * n:.1f},{high - (high - 10) * value / top:.1f}" for n, value in enumerate(curve))
        dashes = "" if line == 0 else f' stroke-dasharray="{4 * line + 2} 4"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{wide + 10}" y="{30 + 18 * line}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def written(place: Path, found: Dict[str, Dict[str, Any]]) -> None:
    """The files."""
    place.mkdir(parents=True, exist_ok=True)
    tables: List[Tuple[str, Callable[[Any, int], str]]] = [
        ("losses.csv", lambda one, step: f"{one['losses'][step]:.6f}"),
        ("times.csv", lambda one, step: f"{one['seconds'][step]:.4f}"),
    ]
    for name, value in tables:
        with (place / name).open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["step", *found])
            for step in range(len(next(iter(found.values()))["losses"])):
                rows.writerow([step, *(value(one, step) for one in found.values())])
    (place / "losses.svg").write_text(drawn({way: one["losses"] for way, one in found.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--way", action="append", choices=("ddp", "zero", "fsdp"), help="all, if none is given")
    parser.add_argument("--tiny", action="store_true", help="a model that trains within seconds")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--backend", default="cpu:consort")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(asked.backend)
    sizes = Sizes(asked.tiny)
    found = {way: trained(way, sizes, asked.steps) for way in asked.way or ("ddp", "zero", "fsdp")}
    if dist.get_rank() == 0:
        if asked.out:
            written(asked.out, found)
        shown = {}
        for way, one in found.items():
            median = statistics.median(one["seconds"][min(3, asked.steps - 1) :])
            shown[way] = {"first loss": one["losses"][0], "last loss": one["losses"][-1], "step seconds": round(median, 4)}
            shown[way]["optimizer MB on a rank"] = round(one["state"] / 1e6, 1)
        parameters = next(iter(found.values()))["parameters"]
        print(json.dumps({"ranks": dist.get_world_size(), "parameters": parameters, "ways": shown}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
