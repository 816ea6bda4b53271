#!/usr/bin/env python3
"""step-time.py [WIDTH LAYERS HEADS HIDDEN SEQUENCE BATCH STEPS]: PyTorch's side of `trainer/examples/step_time.rs`.

The model of make-fixture.py in float32 on one thread: the processor's time of a step, the best of several. Needs torch.
"""

import importlib.util
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


def main():
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("fixture", HERE / "make-fixture.py")
    fixture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixture)
    numbers = [256, 4, 4, 1024, 256, 8, 8]
    numbers[:len(sys.argv) - 1] = map(int, sys.argv[1:])
    width, layers, heads, hidden, sequence, batch, steps = numbers
    fixture.SHAPE.update(width=width, layers=layers, heads=heads, kv_heads=heads, hidden=hidden, sequence=sequence)
    fixture.RUN.update(batch=batch, matrix_factor=1.0)
    # The beginning of the numbers does not matter here, and Python would make them for minutes.
    fixture.Random.normal = lambda self, index: ((index * 7919) % 2003) / 1001.5 - 1.0
    values = fixture.parameters(False, torch.float32)
    text = (HERE.parent / "text" / "training.txt").read_bytes()
    optimizer = torch.optim.AdamW(list(values.values()), lr=1e-3, fused=True)
    best = [float("inf")] * 4
    for step in range(steps):
        data = fixture.batch(text, step)
        begun = time.process_time()
        optimizer.zero_grad()
        loss = fixture.loss(values, *data)
        forward = time.process_time()
        loss.backward()
        backward = time.process_time()
        torch.nn.utils.clip_grad_norm_(list(values.values()), 1.0)
        optimizer.step()
        end = time.process_time()
        times = [forward - begun, backward - forward, end - backward, end - begun]
        best = [min(pair) for pair in zip(best, times)]
    print("best of %d: forward %.1f ms, backward %.1f ms, optimizer %.1f ms, step %.1f ms"
          % (steps, *(1e3 * value for value in best)))


if __name__ == "__main__":
    main()
