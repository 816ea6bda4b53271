"""Runs the parts one after the other and writes the report; scripts/gpu-check says how it is called.

Invariant: a part that fails, hangs or cannot run stops no other but the smoke test, without which nothing else is worth
its time; results are on disk after each program that a part ran. A part that did not run counts as not shown.
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

# Times its limit on a GPU, a part may take in a rehearsal, whose kernels are interpreted.
REHEARSED = 2


def outcome_of(part, outcome, reason="", seconds=0.0, records=(), notes=(), log=""):
    """What is kept of a part; `outcome` is ok, skipped, FAILED, or running until it has ended."""
    return {
        "part": part.name,
        "about": part.about,
        "outcome": outcome,
        "reason": reason,
        "seconds": round(seconds, 1),
        "records": list(records),
        "notes": list(notes),
        "log": log,
    }


def perform(part, context, limit_s, keep):
    """One part's outcome with its records; `keep` gets what is known so far after each program."""
    begun = time.monotonic()
    context.begin(part, limit_s)

    def so_far(outcome, reason="", log=""):
        seconds = time.monotonic() - begun
        reason = "\n".join([*context.failures, *([reason] if reason else [])])
        return outcome_of(part, outcome, reason, seconds, context.records, context.notes, log)

    context.after_command = lambda: keep(so_far("running"))
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
        outcome = "FAILED"
    return so_far(outcome, reason, context.log_text() if outcome == "FAILED" else "")


class Results:
    """The result of a run as it grows, on disk at any time."""

    def __init__(self, place, asked, kind):
        self.place = place
        self.result = {
            "kind": kind,
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "seed": asked.seed,
            "may_skip": asked.skips_are_fine.split(",") if asked.skips_are_fine else [],
            "parts": [],
        }

    def keep(self, outcome):
        """Takes the place of what is known of the same part."""
        rest = [part for part in self.result["parts"] if part["part"] != outcome["part"]]
        self.result["parts"] = [*rest, outcome]
        self.place.with_suffix(".json").write_text(json.dumps(self.result, indent=1) + "\n")
        self.place.write_text(report.markdown(self.result))


def run_parts(chosen, context, results, within_s, keep_going):
    """All parts in their order; what is left out is kept with its reason."""
    ends, is_smoking = time.monotonic() + within_s, False
    for part in chosen:
        left_s = ends - time.monotonic()
        if is_smoking and not part.is_first and not keep_going:
            outcome = outcome_of(part, "skipped", "the smoke test did not pass")
        elif left_s < part.expects_s:
            outcome = outcome_of(
                part, "skipped", f"takes about {part.expects_s} s, and {max(left_s, 0):.0f} s are left"
            )
        else:
            limit_s = part.limit_s * (REHEARSED if context.is_rehearsal else 1)
            outcome = perform(part, context, min(limit_s, left_s), results.keep)
        is_smoking |= part.name == "smoke" and outcome["outcome"] != "ok"
        results.keep(outcome)
        mark = report.mark(outcome, results.result["may_skip"])
        first = outcome["reason"].splitlines()[0][:300] if outcome["reason"] else ""
        print(f"{mark:<8} {outcome['part']:<22} {outcome['seconds']:>6.1f} s  {first}", flush=True)


def listed():
    """What there is, in the order in which it runs."""
    for more, head in ((False, "unasked"), (True, "with --more")):
        chosen = parts.chosen([], more)
        print(
            f"{head}: {sum(part.limit_s for part in chosen)} s at most, {sum(part.expects_s for part in chosen)} s if nothing is wrong"
        )
        for part in chosen:
            print(f"  {part.name:<20} {part.expects_s:>4} s, at most {part.limit_s:>4} s  {part.about}")


def status(result):
    """0 where everything was shown: no part failed, and none was skipped that must not be."""
    return int(any(report.mark(part, result["may_skip"]).isupper() for part in result["parts"]))


def main(arguments=None):
    reader = argparse.ArgumentParser(prog="gpu-check")
    reader.add_argument("what", choices=["run", "rehearse", "merge", "parts"])
    reader.add_argument("files", nargs="*")
    reader.add_argument("--part", action="append", default=[])
    reader.add_argument("--more", action="store_true")
    reader.add_argument("--report")
    reader.add_argument("--within", type=float, default=float("inf"))
    reader.add_argument("--keep-going", action="store_true")
    reader.add_argument("--skips-are-fine", default="", metavar="PARTS")
    reader.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    reader.add_argument("--nccl")
    reader.add_argument("--devices", default="0")
    reader.add_argument("--memory", choices=["device", "host"], default="device")
    asked = reader.parse_args(arguments)
    root = pathlib.Path(__file__).resolve().parents[2]
    if asked.what == "parts":
        listed()
        return 0
    if asked.files and asked.what != "merge":
        reader.error(f"{asked.what} takes no files")
    place = pathlib.Path(asked.report or root / "target/gpu-check/report.md").resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    if asked.what == "merge":
        runs = [json.loads(pathlib.Path(name).read_text()) for name in asked.files]
        if not runs:
            reader.error("merge takes the .json files of runs")
        whole = report.merged(runs, [part.name for part in parts.chosen([])])
        place.write_text(report.markdown(whole))
        place.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
        print(place)
        return status(whole)
    if asked.what == "run" and asked.memory == "host":
        reader.error("--memory host is for a rehearsal")
    chosen = parts.chosen(asked.part, asked.more)
    context = running.Context(root, asked)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results(place, asked, context.kind)
    if context.kind != "gpu":
        print(f"A rehearsal on {context.kind_text}: no GPU is used, and times mean nothing.")
    run_parts(chosen, context, results, asked.within, asked.keep_going)
    context.end()
    print(f"{place}\n{place.with_suffix('.json')}")
    return status(results.result)


if __name__ == "__main__":
    sys.exit(main())
