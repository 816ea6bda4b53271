"""Programs as users start them: with torchrun, and the backend found by its name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchjobs  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ddp.py"


def torchrun(*arguments, limit=120):
    """What a program prints that torchrun starts on two processes."""
    path = os.path.dirname(os.path.dirname(torchjobs.consort.__file__))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, arguments)]
    run = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def losses(printed):
    return re.findall(r"loss (\S+)", printed)


#: Runs a program and leaves out the end of the interpreter, where Gloo's threads abort the process at times.
WITHOUT_END = """
import os, runpy, sys

sys.argv.pop(0)
kept = runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""


def test_the_example_learns_and_repeats_itself(tmp_path):
    first = torchrun(EXAMPLE, "--steps", "150", "--seed", "5")
    found = losses(first)
    assert len(found) == 4 and float(found[-1]) < 0.5 * float(found[0]), first
    right = float(re.search(r"([\d.]+) % of", first)[1])
    assert right > 80, first
    # To the last digit, also on another backend: two addends have one order.
    program = tmp_path / "without_end.py"
    program.write_text(WITHOUT_END)
    assert losses(torchrun(program, EXAMPLE, "--steps", "150", "--seed", "5", "--backend", "gloo")) == found


def test_the_installed_backend_is_found_by_its_name(tmp_path):
    from importlib.metadata import entry_points

    if not [one for one in entry_points(group="torch.distributed.backends") if one.name == "consort"]:
        pytest.skip("the package is not installed here; a checkout has no entry points")
    program = tmp_path / "program.py"
    program.write_text(
        """
import sys, torch, torch.distributed as dist
assert "consort.torch" not in sys.modules
dist.init_process_group("consort")
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor[0].item() == 2
# One rank alone: two would write into each other's lines.
if dist.get_rank() == 0:
    print(dist.get_backend())
dist.destroy_process_group()
"""
    )
    assert torchrun(program).split() == ["consort"]
