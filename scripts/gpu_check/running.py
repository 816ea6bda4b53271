"""Programs that a part runs: with limits of time, a log, and none of the caller's settings.

Holds what is where (binaries, libraries, tools), on a machine with a GPU and in a rehearsal. Invariant: whatever a
part started has ended when it has, and a program without output for STALL_S is ended. Absent: which programs, and what
their output means (parts.py, checks.py).
"""

import glob
import importlib.util
import json
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time


def answers(text):
    """The lines of a program that are records, but for one that was cut in the middle."""
    for line in text.splitlines():
        if line.startswith('{"what"'):
            try:
                yield json.loads(line)
            except ValueError:
                pass


class Skip(Exception):
    """What a part needs is not there; the text says what."""


class Failed(Exception):
    """What a part saw is wrong; the text says what."""


KINDS = {
    "gpu": "a GPU",
    "standin": "the stand-in for a driver and a GPU",
    "host": "ordinary memory, without a driver",
}
# Seconds without any output after which a program is taken to hang. The library ends an operation that does not go on,
# with its report of the hang, before that.
STALL_S = 20
TIMEOUTS = {"CONSORT_TIMEOUT": 12, "CONSORT_REPORT_AFTER": 6}
# The same for a test of Rust, which prints nothing where all is well and waits for 40 s itself before it fails.
TEST_STALL_S = 60
# What the library's log says of the images it loads. A warning that names one: machine code was refused, and the driver
# compiles the text. Any other line that names a cubin: it was loaded.
IMAGES = re.compile(r"(?P<refused>\bWARN\b.*\.(?:cubin|ptx)\b.*)|(?P<loaded>\b\w+\.sm_\d+\.cubin\b)")
# A job, a setting or a library of the caller must not be taken for the part's.
FOREIGN = (
    "CONSORT_",
    "NCCL_",
    "TORCH_",
    "CUDA_LAUNCH_BLOCKING",
    "LD_PRELOAD",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_",
)


def end(process):
    """Ends a program and all of its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    process.stdout.close()


def followed(process, limit_s, stall_s):
    """What a program prints until it ends, and why it must be ended before (empty where it ended by itself)."""
    text, begun = bytearray(), time.monotonic()
    said = begun
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            left, silence = begun + limit_s - now, said + stall_s - now
            if left <= 0:
                return text, f"not done after {limit_s:.0f} s"
            if silence <= 0:
                return text, f"hung: no output for {stall_s:.0f} s"
            # What a program started may hold the pipe open longer than the program lives.
            if not waiting.select(min(left, silence, 0.2)):
                if process.poll() is not None:
                    return text, ""
                continue
            found = os.read(process.stdout.fileno(), 1 << 16)
            if not found:
                break
            text += found
            said = time.monotonic()
    try:
        process.wait(max(0.0, begun + limit_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return text, f"not done after {limit_s:.0f} s"
    return text, ""


class Context:
    """What all parts share, and the records of the one that runs."""

    def __init__(self, root, asked):
        self.root, self.asked = root, asked
        self.kind = "gpu" if asked.what == "run" else "host" if asked.memory == "host" else "standin"
        self.kind_text = KINDS[self.kind]
        self.is_rehearsal = self.kind != "gpu"
        self.stage = root / "target/gpu-check"
        self.ours = self.stage / "lib/libnccl.so.2"
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.records, self.notes, self.failures = [], [], []
        # Called after each program, so that nothing it showed is lost with what comes after.
        self.after_command = lambda: None
        self.library_log = ""
        self._log, self._ends, self._linked = None, 0.0, []

    def begin(self, part, limit_s=None):
        self.records, self.notes, self.failures = [], [], []
        self._log = self.scratch / f"{part.name}.log"
        self._ends = time.monotonic() + (limit_s or part.limit_s)

    def end(self):
        for link in self._linked:
            link.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def log_text(self, bytes_max=6000):
        text = self._log.read_text(errors="replace") if self._log and self._log.exists() else ""
        return text[-bytes_max:]

    def left_s(self):
        return self._ends - time.monotonic()

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        kept |= {name: str(value) for name, value in TIMEOUTS.items()}
        kept |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        if self.kind == "standin":
            kept["LD_LIBRARY_PATH"] = str(self.stage / "standin")
            kept["CONSORT_STANDIN_QUIET"] = "1"
        return kept | {name: str(value) for name, value in more.items()}

    def command(self, words, limit_s=None, stall_s=STALL_S, directory=None, **environment):
        """Runs a program to its end, to the limit or until it has been silent for `stall_s`; returns its exit status (124
        where it was ended) and what it printed."""
        limit_s = max(1.0, min(limit_s or 1e9, self.left_s()))
        words = [str(word) for word in words]
        with open(self._log, "ab") as log:
            settings = " ".join(f"{name}={value}" for name, value in environment.items())
            log.write(f"$ {settings} {' '.join(words)}\n".encode())
            log.flush()
            # In a session of its own, so that all it started can be ended with it.
            process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=directory or self.root,
                env=self.environment(**environment),
            )
            try:
                text, late = followed(process, limit_s, stall_s)
            finally:
                # Also where this program is ended itself.
                end(process)
            code = 124 if late else process.returncode
            text = text.decode(errors="replace")
            if late:
                text += f"\n{late}\n"
            log.write(f"{text}\n[ended with {code}]\n".encode())
        self.after_command()
        return code, text

    def needs(self, *paths):
        for path in paths:
            if not pathlib.Path(path).exists():
                raise Skip(f"there is no {pathlib.Path(path).name}: run scripts/gpu-check build first")

    def needs_gpu(self, what):
        if self.is_rehearsal:
            raise Skip(f"{what} needs a GPU, and this is a rehearsal")

    def tool(self, name):
        """A program of the CUDA toolkit."""
        found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/local/cuda*/bin/{name}"))), None)
        if not found:
            raise Skip(f"{name} is not installed")
        return found

    def package(self, name):
        """A Python package, imported by the parts' programs."""
        if importlib.util.find_spec(name) is None:
            raise Skip(f"python3 has no {name}")

    def theirs(self):
        """NVIDIA's library."""
        if self.asked.nccl:
            if not pathlib.Path(self.asked.nccl).exists():
                raise Skip(f"there is no {self.asked.nccl}")
            return pathlib.Path(self.asked.nccl).resolve()
        places = []
        try:
            found = importlib.util.find_spec("nvidia.nccl")
            places = [
                pathlib.Path(place) / "lib/libnccl.so.2"
                for place in (found.submodule_search_locations if found else [])
            ]
        except ModuleNotFoundError:
            pass
        places += [
            pathlib.Path(name)
            for name in glob.glob("/usr/lib/*/libnccl.so.2") + glob.glob("/usr/local/cuda*/lib64/libnccl.so.2")
        ]
        for place in places:
            if place.exists():
                return place.resolve()
        raise Skip("NVIDIA's libnccl.so.2 is not installed")

    def program(self):
        """device_ranks, built again where the one that came along does not start."""
        carried, made = self.stage / "bin/device_ranks", self.scratch / "device_ranks"
        self.needs(carried)
        if made.exists():
            return made
        # Without a library it says how it is used, and ends with 2.
        if subprocess.run([carried], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 2:
            return carried
        source = self.root / "bench/c/device_ranks.c"
        if self.command(["cc", "-std=c99", "-O2", source, "-o", made, "-ldl", "-lpthread", "-lm"])[0] != 0:
            raise Failed("device_ranks does not start here, and cc does not build it")
        return made

    def ranks(
        self,
        *options,
        library=None,
        limit_s=60,
        stall_s=STALL_S,
        label=None,
        refusal_is_fine=False,
        expects=None,
        is_optional=False,
        before=(),
        **environment,
    ):
        """Runs device_ranks and keeps what it printed; returns its records, or None where the library refused the ranks.

        `expects` is the path of ADR 9 that the library must have taken. A failure is kept for the end of the part, which
        goes on; where it is no failure of the part (`is_optional`), it is raised.
        """
        if not library:
            self.needs(self.ours)
        allowed = int(max(1, min(limit_s, self.left_s())))
        words = [*before, self.program(), *options, "--devices", self.asked.devices, "--limit", allowed]
        words += ["--seed", self.asked.seed]
        if self.kind == "host":
            words += ["--memory", "host"]
        # What the library says of the path its ranks took goes into files, as lines of ranks would mix on one output.
        log = {} if library else {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": self.scratch / "debug.%p"}
        code, text = self.command([*words, library or self.ours], limit_s + 3, stall_s, **log, **environment)
        self._take_log()
        path = "+".join(sorted(set(re.findall(r", (\w+) path\b", self.library_log))))
        found, last = [], ""
        for record in answers(text):
            if record["what"] == "progress":
                last = f", after {record['cases']} cases of {record['collective']}"
                continue
            record["library"] = "theirs" if library else "ours"
            record["label"] = label or " ".join(str(option) for option in options)
            record["path"], record["settings"] = path, environment
            found.append(record)
        # The first few say what is wrong as well as all.
        wrong = [record for record in found if record["what"] == "wrong"]
        self.records += [record for record in found if record["what"] != "wrong"] + wrong[:8]
        self.after_command()
        said = [line for line in text.splitlines() if line and not line.startswith(("{", "========="))]
        # Nothing that the stand-in did may be taken for what a GPU did.
        if not self.is_rehearsal and any("stand-in" in record.get("device", "") for record in found):
            self.records.clear()
            raise Failed("the driver here is the stand-in: this is no GPU")
        if code == 3 and refusal_is_fine:
            self.notes.append(f"{label or ' '.join(map(str, options))}: refused: {said[-1] if said else ''}")
            return None
        if code == 4 and said and ("libcuda.so.1" in said[-1] or "no device" in said[-1]):
            raise Skip(said[-1])
        settings = "".join(f"{name}={value} " for name, value in environment.items())
        run = f"{settings}device_ranks {' '.join(str(option) for option in options)}"
        if code:
            words = [json.dumps(record) for record in wrong[:1]] + said[-1:] + self._verdict()
            return self._fail(f"{run} ended with {code}{last}: {'; '.join(words) or 'no word'}", is_optional)
        if expects and self.kind != "host" and path != expects:
            return self._fail(f"{run} took the path {path or 'that nothing names'}, not {expects}", is_optional)
        return found

    def _fail(self, what, is_optional):
        if is_optional:
            raise Failed(what)
        self.failures.append(what)
        if self.left_s() < 1:
            raise Failed("the part's time is over")
        return []

    def _take_log(self):
        """The library's log of the last program, whose files are removed; its warnings go into the part's log."""
        self.library_log = ""
        for name in sorted(self.scratch.glob("debug.*")):
            self.library_log += name.read_text(errors="replace")
            name.unlink()
        warnings = [line for line in self.library_log.splitlines() if " WARN " in line]
        with open(self._log, "a") as log:
            log.writelines(f"{line}\n" for line in warnings[:40])

    def _verdict(self):
        """What the library says of the first operation that did not go on."""
        found = re.search(r" WARN ((?:verdict|communicator failed).*)", self.library_log)
        return [found[1][:400]] if found else []

    def _link(self, place, target):
        """Makes a path lead to something until the end, where nothing is."""
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
            self._linked.insert(0, place)

    def rust_tests(self, fits):
        """Runs the staged tests of Rust whose program's name fits, each in a process of its own where cargo would run it: so it
        is known which test hung, failed or left something out. All that failed are named with what their panics say."""
        listing = self.stage / "tests/paths.json"
        self.needs(listing)
        paths = json.loads(listing.read_text())
        # Tests know the checkout, and what they start, by the paths where they were built.
        self._link(pathlib.Path(paths["root"]), self.root)
        for name, about in paths["binaries"].items():
            if not about["is_test"]:
                self._link(pathlib.Path(about["built"]), self.stage / "tests" / name)
        chosen = {name: about for name, about in paths["binaries"].items() if about["is_test"] and fits(name)}
        if not chosen:
            raise Skip("no such test is in this checkout yet")
        counts, partial, left, reasons = {"ok": 0, "FAILED": 0, "ignored": 0}, 0, [], {}
        for name, about in sorted(chosen.items()):
            program, directory = self.stage / "tests" / name, self.root / about["package"]
            named = [about["part"]] if about["part"] else []
            _, text = self.command([program, "--list", "--format", "terse", *named], directory=directory)
            tests = [line.removesuffix(": test") for line in text.splitlines() if line.endswith(": test")]
            if not tests:
                self.failures.append(f"{name} has no test {about['part']}")
            for test in tests:
                if self.left_s() < 1:
                    left.append(test)
                    continue
                words = [program, "--exact", test, "--nocapture"]
                code, text = self.command(words, stall_s=TEST_STALL_S, directory=directory)
                outcome = outcome_of_test(code, text)
                counts[outcome] += 1
                skips = {line[line.index("SKIP:") :].strip() for line in text.splitlines() if "SKIP:" in line}
                for reason in sorted(skips):
                    reasons.setdefault(reason, []).append(test)
                partial += bool(skips) and outcome == "ok"
                if outcome == "FAILED":
                    self.failures.append(f"{test} ended with {code}: {panics(text)}")
        self.notes += [f"{reason}: {', '.join(of)}" for reason, of in reasons.items()]
        passed = {"passed": counts["ok"], "partial": partial, "failed": counts["FAILED"], "ignored": counts["ignored"]}
        self.records.append({"what": "tests", **passed, "binaries": len(chosen)})
        if left:
            self.failures.append(f"the part's time is over, and {len(left)} tests did not run: {', '.join(left)}")
        if not self.failures and partial == counts["ok"]:
            raise Skip(self.notes[-1] if self.notes else "no test ran")


def outcome_of_test(code, text):
    """ok, FAILED or ignored, of a Rust test program that was to run one test."""
    sums = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", text, re.MULTILINE)
    if code or sums not in ([("1", "0", "0")], [("0", "0", "1")]):
        return "FAILED"
    return "ok" if sums[0][0] == "1" else "ignored"


def panics(text, lines_max=20, width=300):
    """What the panics of a Rust program say, each with its place and the first lines of its message; else its last line."""
    found = []
    for begun in re.finditer(r"^\s*thread '.*panicked at .*$", text, re.MULTILINE):
        # In the message of a test are the panics of the ranks that it started.
        if found and begun.start() < found[-1][1]:
            continue
        rest = text[begun.start() :]
        ends = re.search(r"^(?:stack backtrace:|note: |test .* \.\.\. FAILED)", rest, re.MULTILINE)
        said = rest[: ends.start()] if ends else rest
        found.append(("\n".join(line[:width] for line in said.strip().splitlines()[:lines_max]), begun.start() + len(said)))
    last = [line for line in text.splitlines() if line.strip()][-1:]
    return "\n".join([*(said for said, _ in found), *(last if not found or "hung:" in text[-100:] else [])])
