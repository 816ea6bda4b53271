"""The example that trains a text classifier, in its smallest form."""

import csv
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchjobs  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import classifier  # noqa: E402

STEPS = 24


def trains(rank):
    found = {way: classifier.trained(way, classifier.Sizes(True), STEPS) for way in ("ddp", "zero", "fsdp")}
    if rank.number == 0:
        classifier.written(Path(rank.arguments[0]), found)
    return {way: (one["losses"], one["state"]) for way, one in found.items()}


def test_the_ways_of_training_agree(tmp_path):
    found = torchjobs.run(trains, 2, tmp_path, limit=180)
    assert found[0] == found[1]
    losses = {way: one[0] for way, one in found[0].items()}
    for way in ("zero", "fsdp"):
        assert losses[way] == pytest.approx(losses["ddp"], abs=2e-3), way
    assert sum(losses["ddp"][-5:]) < 0.97 * sum(losses["ddp"][:5])
    # The states of the optimizer are divided.
    whole = found[0]["ddp"][1]
    assert found[0]["zero"][1] < 0.7 * whole and found[0]["fsdp"][1] < 0.7 * whole
    rows = list(csv.reader((tmp_path / "losses.csv").open()))
    assert rows[0] == ["step", "ddp", "zero", "fsdp"] and len(rows) == STEPS + 1
    assert (tmp_path / "losses.svg").read_text().count("<polyline") == 3
