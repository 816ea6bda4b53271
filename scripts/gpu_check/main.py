"""Runs the parts one after the other and writes the report; scripts/gpu-check says how it is called.

Invariant: a part that fails, hangs or cannot run stops no other, and results are on disk after each.
Absent: what the parts are (parts.py), what the report looks like (report.py).
"""

import argparse
import json
import pathlib
import random
import signal
import sys
import time

import parts
import report
import running


def wanted(names):
    """The parts that were asked for, in their own order."""
    if not names:
        return parts.ALL
    fits = lambda part, name: part.name == name or (name.endswith("*") and part.name.startswith(name[:-1]))
    for name in names:
        if not any(fits(part, name) for part in parts.ALL):
            sys.exit(f"there is no part {name}; known are: {', '.join(part.name for part in parts.ALL)}")
    return [part for part in parts.ALL if any(fits(part, name) for name in names)]


def perform(part, context):
    """One part's outcome with its records."""
    begun, context.records, context.notes, context.failures = time.monotonic(), [], [], []
    context.begin(part)
    try:
        part.run(context)
        outcome, reason = "ok", ""
    except running.Skip as skip:
        outcome, reason = "skipped", str(skip)
    except running.Failed as failed:
        outcome, reason = "FAILED", str(failed)
    except Exception as error:  # A part that is wrong itself must not cost the others.
        outcome, reason = "FAILED", f"the part itself: {type(error).__name__}: {error}"
    if context.failures:
        outcome, reason = "FAILED", "\n".join([*context.failures, *([reason] if reason else [])])
    return {
        "part": part.name,
        "about": part.about,
        "outcome": outcome,
        "reason": reason,
        "seconds": round(time.monotonic() - begun, 1),
        "records": context.records,
        "notes": context.notes,
        "log": context.log_text() if outcome == "FAILED" else "",
    }


def main():
    reader = argparse.ArgumentParser(prog="gpu-check")
    reader.add_argument("what", choices=["run", "rehearse", "merge", "parts"])
    reader.add_argument("files", nargs="*")
    reader.add_argument("--part", action="append", default=[])
    reader.add_argument("--report")
    reader.add_argument("--within", type=float, default=float("inf"))
    reader.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    reader.add_argument("--nccl")
    reader.add_argument("--devices", default="0")
    reader.add_argument("--memory", choices=["device", "host"], default="device")
    asked = reader.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    if asked.what == "parts":
        for part in parts.ALL:
            print(f"{part.name:<22} {part.limit_s:>4} s  {part.about}")
        return 0
    if asked.files and asked.what != "merge":
        reader.error(f"{asked.what} takes no files")
    place = pathlib.Path(asked.report or root / "target/gpu-check/report.md").resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    if asked.what == "merge":
        runs = [json.loads(pathlib.Path(name).read_text()) for name in asked.files]
        if not runs:
            reader.error("merge takes the .json files of runs")
        place.write_text(report.markdown(report.merged(runs)))
        print(place)
        return 0
    if asked.what == "run" and asked.memory == "host":
        reader.error("--memory host is for a rehearsal")
    context = running.Context(root, asked)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result = {
        "kind": context.kind,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "seed": asked.seed,
        "parts": [],
    }
    ends = time.monotonic() + asked.within
    if context.kind != "gpu":
        print(f"A rehearsal on {context.kind_text}: no GPU is used, and times mean nothing.")
    for part in wanted(asked.part):
        left = ends - time.monotonic()
        if left < part.limit_s:
            outcome = {
                "part": part.name,
                "about": part.about,
                "outcome": "skipped",
                "reason": f"may take {part.limit_s} s, and {left:.0f} s are left",
                "seconds": 0,
                "records": [],
                "notes": [],
                "log": "",
            }
        else:
            outcome = perform(part, context)
        result["parts"].append(outcome)
        print(
            f"{outcome['outcome']:<8} {outcome['part']:<22} {outcome['seconds']:>6.1f} s  {outcome['reason'].splitlines()[0] if outcome['reason'] else ''}",
            flush=True,
        )
        place.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
        place.write_text(report.markdown(result))
    context.end()
    print(f"{place}\n{place.with_suffix('.json')}")
    return 1 if any(part["outcome"] == "FAILED" for part in result["parts"]) else 0


sys.exit(main())
