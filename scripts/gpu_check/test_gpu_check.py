"""The scripts' own logic: limits, hangs, the order behind a failed smoke test, what counts as shown. No GPU and no library.

python3 -B -m unittest discover -s scripts/gpu_check
"""

import argparse
import io
import json
import pathlib
import sys
import tempfile
import time
import types
import unittest
import zlib
from contextlib import redirect_stdout

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import checks
import figures
import main
import parts
import probe
import report
import running


def context_for(test, what="rehearse"):
    """A context whose root is an empty directory."""
    root = pathlib.Path(tempfile.mkdtemp())
    context = running.Context(root, argparse.Namespace(what=what, memory="device", seed=7, devices="0", nccl=None))
    test.addCleanup(context.end)
    return context


def part(name, run=lambda context: None, expects_s=1, limit_s=5, **more):
    return parts.Part(name, f"about {name}", expects_s, limit_s, run, **more)


def results_for(test, skips_are_fine=""):
    place = pathlib.Path(tempfile.mkdtemp()) / "report.md"
    return main.Results(place, argparse.Namespace(seed=7, skips_are_fine=skips_are_fine), "standin")


def ran(test, chosen, within_s=1e9, keep_going=False, skips_are_fine=""):
    """The result of parts."""
    results = results_for(test, skips_are_fine)
    with redirect_stdout(io.StringIO()):
        main.run_parts(chosen, context_for(test), results, within_s, keep_going)
    return results.result


def outcomes(result):
    return {each["part"]: each["outcome"] for each in result["parts"]}


def fails(context):
    raise running.Failed("wrong")


def skips(context):
    raise running.Skip("not there")


class Limits(unittest.TestCase):
    def test_the_parts_that_run_unasked_fit_25_minutes(self):
        self.assertLessEqual(sum(each.limit_s for each in parts.chosen([])), 1500)

    def test_the_parts_with_more_fit_one_lease(self):
        self.assertLessEqual(sum(each.limit_s for each in parts.chosen([], more=True)), 1500)

    def test_every_part_is_expected_to_end_before_its_limit(self):
        for each in parts.ALL:
            self.assertLess(each.expects_s, each.limit_s, each.name)
            # A command on the GPU's machine is cut after ten minutes.
            self.assertLess(each.limit_s, 600, each.name)

    def test_the_first_parts_come_in_this_order(self):
        names = ["machine", "smoke", "probe", "kernels-one-launch", "kernels-streams", "kernels-processes", "groups"]
        self.assertEqual([each.name for each in parts.chosen([])][: len(names)], names)

    def test_a_part_starts_if_its_expected_time_fits(self):
        result = ran(self, [part("short", limit_s=500), part("long", expects_s=100, limit_s=500)], within_s=50)
        self.assertEqual(outcomes(result), {"short": "ok", "long": "skipped"})

    def test_a_part_gets_no_more_than_what_is_left(self):
        seen = []
        ran(self, [part("short", lambda context: seen.append(context.left_s()), limit_s=500)], within_s=50)
        self.assertLessEqual(seen[0], 50)

    def test_a_part_has_more_time_in_a_rehearsal(self):
        seen = []
        ran(self, [part("each", lambda context: seen.append(context.left_s()), limit_s=500)])
        self.assertAlmostEqual(seen[0], 500 * main.REHEARSED, delta=10)

    def test_smoke_takes_a_minute_at_most(self):
        smoke = next(each for each in parts.ALL if each.name == "smoke")
        self.assertEqual(smoke.limit_s, 60)
        self.assertLessEqual(checks.SMOKE_S, 20)
        self.assertLess(checks.SMOKE_TIMEOUTS["CONSORT_TIMEOUT"], checks.SMOKE_S)

    def test_the_library_reports_a_hang_before_its_program_is_ended(self):
        self.assertLess(running.TIMEOUTS["CONSORT_TIMEOUT"], running.STALL_S)
        self.assertLess(running.TIMEOUTS["CONSORT_REPORT_AFTER"], running.TIMEOUTS["CONSORT_TIMEOUT"])


class Hangs(unittest.TestCase):
    def command(self, script, limit_s, stall_s):
        context = context_for(self)
        context.begin(part("each", limit_s=60))
        begun = time.monotonic()
        code, text = context.command(["bash", "-c", script], limit_s, stall_s)
        return code, text, time.monotonic() - begun, context

    def test_a_silent_program_is_ended_and_its_last_words_are_kept(self):
        code, text, seconds, context = self.command("echo last words; sleep 30", 20, 0.5)
        self.assertEqual(code, 124)
        self.assertIn("last words", text)
        self.assertIn("hung: no output", text)
        self.assertLess(seconds, 10)
        self.assertIn("last words", context.log_text())

    def test_a_program_that_says_something_is_not_taken_to_hang(self):
        code, text, _, _ = self.command("for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done", 20, 1.2)
        self.assertEqual((code, text.split()), (0, list("123456")))

    def test_a_program_that_talks_for_ever_is_ended_at_its_limit(self):
        code, text, seconds, _ = self.command("while echo on; do sleep 0.1; done", 1, 20)
        self.assertEqual(code, 124)
        self.assertIn("not done after 1 s", text)
        self.assertLess(seconds, 10)

    def test_what_a_program_started_ends_with_it(self):
        code, _, seconds, _ = self.command("sleep 30 & echo $!; exit 3", 20, 10)
        self.assertEqual(code, 3)
        self.assertLess(seconds, 10)

    def test_the_part_goes_on_with_its_next_program(self):
        seen = []

        def run(context):
            for script in ("sleep 30", "echo done"):
                code, text = context.command(["bash", "-c", script], 20, 0.5)
                seen.append((code, text.strip()))

        ran(self, [part("both", run)])
        self.assertEqual([code for code, _ in seen], [124, 0])


class Order(unittest.TestCase):
    chosen = [
        part("machine", is_first=True),
        part("smoke", fails),
        part("probe", is_first=True),
        part("figures"),
    ]

    def test_behind_a_failed_smoke_test_only_the_first_parts_run(self):
        result = ran(self, self.chosen)
        self.assertEqual(outcomes(result), {"machine": "ok", "smoke": "FAILED", "probe": "ok", "figures": "skipped"})
        self.assertEqual(result["parts"][-1]["reason"], "the smoke test did not pass")

    def test_with_keep_going_all_run(self):
        self.assertEqual(outcomes(ran(self, self.chosen, keep_going=True))["figures"], "ok")

    def test_behind_a_passed_smoke_test_all_run(self):
        chosen = [part("smoke"), part("figures")]
        self.assertEqual(outcomes(ran(self, chosen)), {"smoke": "ok", "figures": "ok"})

    def test_the_first_parts_are_the_machine_and_the_probe(self):
        self.assertEqual([each.name for each in parts.ALL if each.is_first], ["machine", "probe"])

    def test_parts_are_chosen_by_name_and_by_beginning(self):
        names = [each.name for each in parts.chosen(["torch-2", "kernels-*"])]
        self.assertEqual(names, ["kernels-one-launch", "kernels-streams", "kernels-processes", "torch-2"])
        with self.assertRaises(SystemExit):
            parts.chosen(["nothing"])


class Shown(unittest.TestCase):
    def test_a_skipped_part_counts_as_not_shown(self):
        result = ran(self, [part("each", skips)])
        self.assertEqual(main.status(result), 1)
        self.assertIn("**SKIPPED**: not there", report.markdown(result))
        self.assertIn("Not shown: each.", report.markdown(result))

    def test_a_part_that_may_be_skipped_does_not(self):
        result = ran(self, [part("each", skips)], skips_are_fine="other,ea*")
        self.assertEqual(main.status(result), 0)
        self.assertIn("| skipped: not there |", report.markdown(result))

    def test_a_part_that_failed_is_never_fine(self):
        self.assertEqual(main.status(ran(self, [part("each", fails)], skips_are_fine="*")), 1)

    def test_all_is_well_where_all_is_well(self):
        self.assertEqual(main.status(ran(self, [part("each")])), 0)

    def test_what_a_program_showed_is_on_disk_before_the_part_ends(self):
        seen = []
        results = results_for(self)

        def run(context):
            context.records.append({"what": "check", "cases": 3, "bad": 0})
            context.command(["true"])
            seen.append(json.loads(results.place.with_suffix(".json").read_text())["parts"][0])

        with redirect_stdout(io.StringIO()):
            main.run_parts([part("each", run)], context_for(self), results, 1e9, False)
        self.assertEqual((seen[0]["outcome"], len(seen[0]["records"])), ("running", 1))
        self.assertEqual(outcomes(results.result), {"each": "ok"})

    def test_a_part_that_was_cut_counts_as_not_shown(self):
        result = {"kind": "gpu", "date": "", "seed": 1, "may_skip": ["*"]}
        result["parts"] = [main.outcome_of(part("each"), "running")]
        self.assertEqual(main.status(result), 1)
        self.assertIn("each was cut", report.markdown(result))

    def test_a_part_that_no_run_has_is_not_shown(self):
        run = ran(self, [part("each")])
        self.assertEqual(main.status(report.merged([run], ["each"])), 0)
        self.assertEqual(main.status(report.merged([run], ["each", "other"])), 1)

    def test_a_part_that_a_later_run_skipped_stays_as_it_was(self):
        runs = [ran(self, [part("each", fails)]), ran(self, [part("each", skips)])]
        self.assertEqual(outcomes(report.merged(runs)), {"each": "FAILED"})


class Words(unittest.TestCase):
    def test_a_test_has_passed_where_its_program_says_so(self):
        said = "test a ... ok\ntest result: ok. {}; 0 measured; 9 filtered out; finished in 1.2s\n"
        passed, ignored = (said.format(f"{one} passed; 0 failed; {other} ignored") for one, other in ((1, 0), (0, 1)))
        self.assertEqual(running.outcome_of_test(0, passed), "ok")
        self.assertEqual(running.outcome_of_test(0, ignored), "ignored")
        self.assertEqual(running.outcome_of_test(0, said.format("0 passed; 0 failed; 0 ignored")), "FAILED")
        self.assertEqual(running.outcome_of_test(101, passed), "FAILED")
        self.assertEqual(running.outcome_of_test(124, "running 1 test\n"), "FAILED")

    def test_panics_are_kept_with_the_first_lines_of_what_they_say(self):
        said = (
            "running 1 test\nthread 'ranks::fork' (4) panicked at ranks.rs:9:1:\nrank 0 did not say it:\n  rank 0 complained\n"
            "    thread 'main' (5) panicked at fork.rs:7:2:\n    no memory is shared\n    stack backtrace:\n    note: more\n"
            "stack backtrace:\n   0: core\nnote: less\nthread 'b' (6) panicked at b.rs:1:1:\nb is wrong\nnote: run with\n"
        )
        kept = running.panics(said).splitlines()
        self.assertEqual(kept[0], "thread 'ranks::fork' (4) panicked at ranks.rs:9:1:")
        self.assertIn("    no memory is shared", kept)
        self.assertEqual(kept[-2:], ["thread 'b' (6) panicked at b.rs:1:1:", "b is wrong"])
        self.assertEqual(running.panics("begun\nhung: no output for 60 s\n"), "hung: no output for 60 s")

    def machine_code(self, log, what="run"):
        context = context_for(self, what)
        context.library_log = log
        checks.machine_code(context)
        return context.failures

    def test_a_loaded_cubin_is_machine_code(self):
        self.assertEqual(self.machine_code("vm:1:2 [0] NCCL INFO loaded f32.sm_90.cubin"), [])

    def test_a_refused_cubin_fails(self):
        said = "vm:1:2 [0] NCCL INFO copy.sm_90.cubin\nx NCCL WARN f32.sm_90.cubin does not load: f32.ptx instead"
        self.assertIn("machine code was refused", self.machine_code(said)[0])

    def test_no_word_of_an_image_fails(self):
        self.assertIn("no line says", self.machine_code("device 0, fused path")[0])
        self.assertIn("no line says", self.machine_code("device 0, fused path", "rehearse")[0])

    def test_the_probes_answers_are_kept_and_wrong_ones_fail(self):
        context = types.SimpleNamespace(records=[], failures=[])
        lines = ['{"what":"handshake","answer":"together"}', '{"what":"fence","answer":"hung"}', '{"what":"cu']
        probe.take(context, 1, "\n".join(lines))
        self.assertEqual([record["asks"] for record in context.records], ["handshake", "fence"])
        self.assertEqual(len(context.failures), 1)

    def test_a_mailbox_holds_what_the_library_gives_it(self):
        mib = 1 << 20
        self.assertEqual([checks.mailbox_bytes(ranks, "streams") // mib for ranks in (2, 3, 4, 8)], [8, 4, 4, 2])
        self.assertEqual(checks.mailbox_bytes(8, "kernels"), 2 * mib // 16)


class Tests(unittest.TestCase):
    """A stand-in for a Rust test program: a script with a line for each of its tests."""

    def those(self, limit_s=30, **scripts):
        context = context_for(self)
        context.begin(part("each"), limit_s)
        program = context.stage / "tests/package.each.test"
        program.parent.mkdir(parents=True)
        listed = " ".join(f"'{name}: test'" for name in scripts)
        lines = [f"[[ $1 == --list ]] && printf '%s\\n' {listed} && exit"]
        lines += ["echo running 1 test", "case $2 in"]
        lines += [f"{name}) {script} ;;" for name, script in scripts.items()]
        lines += ["esac", "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'"]
        program.write_text("#!/bin/bash\n" + "\n".join(lines) + "\n")
        program.chmod(0o755)
        about = {"built": "", "is_test": True, "package": ".", "part": ""}
        listing = {"root": str(context.root), "binaries": {program.name: about}}
        (program.parent / "paths.json").write_text(json.dumps(listing))
        try:
            context.rust_tests(lambda name: True)
        except running.Skip as skip:
            context.notes.append(f"skipped: {skip}")
        return context

    def test_every_test_that_failed_is_named_with_its_panic(self):
        panic = "echo \"thread 'x' (1) panicked at x.rs:1:1:\"; echo $2 is wrong; exit 101"
        context = self.those(a=panic, b="true", c=panic)
        self.assertEqual([line.split()[0] for line in context.failures], ["a", "c"])
        self.assertIn("c is wrong", context.failures[1])
        self.assertEqual([context.records[0][name] for name in ("passed", "failed")], [1, 2])

    def test_a_test_that_hangs_costs_no_other(self):
        stall, running.TEST_STALL_S = running.TEST_STALL_S, 0.5
        try:
            context = self.those(a="sleep 30", b="true")
        finally:
            running.TEST_STALL_S = stall
        self.assertIn("a ended with 124: hung: no output", context.failures[0])
        self.assertEqual(context.records[0]["passed"], 1)

    def test_tests_that_did_not_run_are_named(self):
        context = self.those(limit_s=2, a="sleep 1.5", b="true", c="true")
        self.assertIn("2 tests did not run: b, c", context.failures[-1])

    def test_what_tests_leave_out_is_said_once(self):
        context = self.those(a="echo SKIP: no device", b="echo SKIP: no device", c="true")
        self.assertEqual((context.notes, context.failures), (["SKIP: no device: a, b"], []))
        self.assertEqual([context.records[0][name] for name in ("passed", "partial")], [3, 2])

    def test_where_every_test_leaves_something_out_the_part_is_skipped(self):
        context = self.those(a="echo SKIP: no device")
        self.assertEqual(context.notes[-1], "skipped: SKIP: no device: a")


class Plans(unittest.TestCase):
    """A stand-in for the rank of the tests that times plans."""

    def plans(self, script):
        context = context_for(self)
        context.begin(part("each"))
        program = context.stage / "tests/consort-tests-devices.device-rank"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)
        figures.plans(context)
        return context

    def test_plans_are_in_the_report_with_the_blocks_that_they_had(self):
        plan = '{"what":"plan","ranks":2,"bytes":4096,"named":"none","ran":"ring","instances":2,"slot_bytes":4096,"us":8.0}'
        context = self.plans(f"echo path kernels; echo '{plan}'")
        self.assertEqual([(record["ran"], record["blocks"]) for record in context.records], [("ring", 8)] * 2)
        result = {"kind": "gpu", "parts": [{"part": "plans", "records": context.records}]}
        self.assertIn("| unasked | ring | 2 | 4 KiB | 8 | 2 | 4 KiB | 8.00 | 2.0 | – |", report.plans(report.Figures(result)))

    def test_another_path_and_a_panic_are_failures(self):
        self.assertIn("no plan of the kernels path", self.plans("echo path fused").failures[0])
        panic = "echo \"thread 'main' (1) panicked at x.rs:1:1:\"; echo no driver; exit 101"
        self.assertIn("no driver", self.plans(panic).failures[0])


class Images(unittest.TestCase):
    def test_images_are_unpacked_and_none_is_a_failure(self):
        packed, place = (pathlib.Path(tempfile.mkdtemp()) for _ in range(2))
        with self.assertRaises(running.Failed):
            probe.unpacked(packed, place)
        (packed / "f32.ptx.z").write_bytes(zlib.compress(b"text"))
        self.assertEqual((probe.unpacked(packed, place) / "f32.ptx").read_bytes(), b"text")


class Refusals(unittest.TestCase):
    """A stand-in for device_ranks: a script that ends as the library's refusal makes it end."""

    def ranks(self, script, **more):
        context = context_for(self)
        context.begin(part("each"))
        for place, text in ((context.ours, ""), (context.stage / "bin/device_ranks", script)):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"#!/bin/bash\n[[ $# == 0 ]] && exit 2\n{text}\n")
            place.chmod(0o755)
        return context, context.ranks("-t", "2", **more)

    def test_a_refusal_is_a_failure(self):
        context, found = self.ranks("echo refused; exit 3", expects="kernels", CONSORT_DEVICE_PATH="kernels")
        self.assertEqual(found, [])
        self.assertIn("ended with 3", context.failures[0])

    def test_another_path_than_the_one_expected_is_a_failure(self):
        said = "echo 'NCCL INFO device 0 (x), fused path' >$(dirname $NCCL_DEBUG_FILE)/debug.1"
        context, _ = self.ranks(said, expects="kernels")
        self.assertIn("took the path fused, not kernels", context.failures[0])
        context, _ = self.ranks(said, expects="fused")
        self.assertEqual(context.failures, [])

    def test_how_far_a_hanging_program_came_is_said(self):
        script = 'echo \'{"what":"progress","collective":"allreduce","cases":5}\'; sleep 30'
        context, _ = self.ranks(script, stall_s=0.5)
        self.assertIn("ended with 124, after 5 cases of allreduce: hung: no output", context.failures[0])


if __name__ == "__main__":
    unittest.main()
