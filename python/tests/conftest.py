"""What all tests share: the package of this checkout unless one is installed, and the seed in the heading."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
try:
    import consort  # noqa: F401
except ImportError:
    sys.path.insert(0, str(HERE.parent))

import jobs  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_runs_on():
    """What a failed test leaves running would keep the tests from ending."""
    yield
    for job in list(jobs.running):
        job.end()


def pytest_report_header(config):
    return f"CONSORT_TEST_SEED={jobs.SEED}, library {jobs.consort.library_path()}"


def pytest_terminal_summary(terminalreporter):
    counts = {name: len(terminalreporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    failed = counts["failed"] + counts["error"]
    # In the form that .ci/run counts.
    terminalreporter.write_line(
        f"test result: {'FAILED' if failed else 'ok'}. {counts['passed']} passed; {failed} failed; "
        f"{counts['skipped']} ignored; seed {jobs.SEED}"
    )
