#!/usr/bin/env python3
"""make-fixture.py [FILE]: ten steps of a small model in PyTorch, for `tests/pytorch.rs` to compare with.

The model, its beginning, the order of the text, AdamW, the schedule and clipping are written here again from their
definitions, with PyTorch's operations and its automatic gradients. Runs in float64 and in float32. Needs torch and numpy;
writes tests/fixtures/pytorch.json.
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent.parent
SHAPE = dict(vocabulary=256, width=24, layers=2, heads=4, kv_heads=2, hidden=40, sequence=16)
RUN = dict(batch=3, steps=10, seed=5, rate=1e-2, least=1e-3, warmup=3, clip=0.8, beta1=0.9, beta2=0.95, epsilon=1e-8,
           weight_decay=0.1, rope_base=10000.0, norm_epsilon=1e-5, matrix_factor=5.0)
MASK = (1 << 64) - 1


def mix(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


class Random:
    """Numbers by seed, name and index."""

    def __init__(self, seed, name):
        text = 0xCBF29CE484222325
        for byte in name.encode():
            text = (text ^ byte) * 0x100000001B3 & MASK
        self.key = mix(mix(seed) ^ text)

    def bits(self, index):
        return mix((self.key + (index + 1) * 0x9E3779B97F4A7C15) & MASK)

    def uniform(self, index):
        return (self.bits(index) >> 11) / (1 << 53)

    def below(self, index, end):
        return self.bits(index) * end >> 64

    def normal(self, index):
        first, second = self.uniform(2 * index), self.uniform(2 * index + 1)
        return math.sqrt(-2.0 * math.log(1.0 - first)) * math.cos(math.tau * second)


def parameters(tied, dtype):
    """By name, as the trainer begins them, with matrices larger by a factor."""
    s = SHAPE
    head = s["width"] // s["heads"]
    added = 0.02 / math.sqrt(2 * s["layers"])
    shapes = {"embedding": (s["vocabulary"], s["width"], 0.02), "norm": (s["width"],)}
    if not tied:
        shapes["head"] = (s["vocabulary"], s["width"], 0.02)
    for layer in range(s["layers"]):
        name = f"layers.{layer}."
        shapes |= {
            name + "attention.norm": (s["width"],), name + "mlp.norm": (s["width"],),
            name + "attention.query": (s["width"], s["width"], 0.02),
            name + "attention.key": (s["kv_heads"] * head, s["width"], 0.02),
            name + "attention.value": (s["kv_heads"] * head, s["width"], 0.02),
            name + "attention.output": (s["width"], s["width"], added),
            name + "mlp.gate": (s["hidden"], s["width"], 0.02), name + "mlp.up": (s["hidden"], s["width"], 0.02),
            name + "mlp.down": (s["width"], s["hidden"], added),
        }
    found = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            values = torch.ones(shape, dtype=dtype)
        else:
            rows, columns, deviation = shape
            random = Random(RUN["seed"], name)
            numbers = [deviation * random.normal(index) for index in range(rows * columns)]
            values = torch.tensor(numbers, dtype=torch.float64).to(dtype).reshape(rows, columns) * RUN["matrix_factor"]
        found[name] = values.requires_grad_()
    return found


def norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, RUN["norm_epsilon"])


def turned(x):
    """Rotary positions of (sequences, heads, positions, head)."""
    half = x.shape[-1] // 2
    frequency = RUN["rope_base"] ** (-2.0 * torch.arange(half, dtype=torch.float64) / x.shape[-1])
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def loss(p, tokens, targets):
    s = SHAPE
    head = s["width"] // s["heads"]
    x = p["embedding"][tokens]
    for layer in range(s["layers"]):
        w = {key.split(".", 2)[2]: value for key, value in p.items() if key.startswith(f"layers.{layer}.")}
        n = norm(x, w["attention.norm"])
        q, k, v = (F.linear(n, w["attention." + name]).unflatten(-1, (-1, head)).transpose(1, 2)
                   for name in ("query", "key", "value"))
        attended = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        x = x + F.linear(attended.transpose(1, 2).flatten(-2), w["attention.output"])
        n = norm(x, w["mlp.norm"])
        x = x + F.linear(F.silu(F.linear(n, w["mlp.gate"])) * F.linear(n, w["mlp.up"]), w["mlp.down"])
    logits = F.linear(norm(x, p["norm"]), p.get("head", p["embedding"]))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(text, step):
    random = Random(RUN["seed"], f"step {step}")
    length = SHAPE["sequence"]
    begins = [random.below(index, len(text) - length) for index in range(RUN["batch"])]
    windows = torch.tensor([list(text[begin:begin + length + 1]) for begin in begins])
    return windows[:, :-1], windows[:, 1:]


def rate(step):
    if step < RUN["warmup"]:
        return RUN["rate"] * (step + 1) / RUN["warmup"]
    share = (step - RUN["warmup"]) / (RUN["steps"] - RUN["warmup"])
    return RUN["least"] + (RUN["rate"] - RUN["least"]) * 0.5 * (1 + math.cos(math.pi * share))


def run(text, tied, dtype):
    p = parameters(tied, dtype)
    groups = [{"params": [v for v in p.values() if v.dim() == 2], "weight_decay": RUN["weight_decay"]},
              {"params": [v for v in p.values() if v.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(RUN["beta1"], RUN["beta2"]), eps=RUN["epsilon"])
    losses, norms, first = [], [], {}
    for step in range(RUN["steps"]):
        optimizer.zero_grad()
        value = loss(p, *batch(text, step))
        value.backward()
        first = first or {name: values.grad.norm().item() for name, values in p.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), RUN["clip"]).item())
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        losses.append(value.item())
    last = {name: values.detach().norm().item() for name, values in p.items()}
    return dict(losses=losses, norms=norms, first_gradients=first, last_weights=last)


def main():
    torch.set_num_threads(1)
    text = (HERE / "text" / "training.txt").read_bytes()[:900].decode()
    # A tenth is held out.
    seen = text.encode()[:len(text.encode()) - len(text.encode()) // 10]
    cases = [dict(tied=tied, precision=name, **run(seen, tied, dtype))
             for tied in (False, True) for name, dtype in (("f64", torch.float64), ("f32", torch.float32))]
    fixture = dict(torch=torch.__version__.split("+")[0], shape=SHAPE, run=RUN, text=text, cases=cases)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "tests" / "fixtures" / "pytorch.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(fixture, indent=1) + "\n")
    for case in cases:
        print(case["tied"], case["precision"], case["losses"])


if __name__ == "__main__":
    main()
