"""Which lines of the device code run under test: `python benchmarks/coverage.py`.

Runs the tests of played devices and of the sensors (or the test files given) under coverage.py
(envs/dev.txt), measuring processes included, and prints lines by file of `backends` and
`hosts/sensors`, with those that did not run. `--fail-under 95` makes it a check.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/test_played*.py",
    "tests/test_plugins.py",
    "tests/test_probes.py",
    "tests/test_apple.py",
)
# A test's copy of the project stands for the project itself.
SETTINGS = """
[run]
data_file = {folder}/data
parallel = true
include =
    */siliconprof/backends/*
    */siliconprof/hosts/sensors/*
[report]
# An interface declares these; its plug-ins are what runs.
exclude_also =
    raise NotImplementedError
[paths]
package =
    workflow/siliconprof
    */workflow/siliconprof
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests and print the report; the exit status of whichever failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tests", nargs="*", help=f"default: {' '.join(TESTS)}")
    parser.add_argument("--fail-under", type=float, default=0.0, metavar="PERCENT")
    arguments = parser.parse_args(argv)
    tests = arguments.tests or sorted(str(path) for part in TESTS for path in ROOT.glob(part))
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "coveragerc")
        settings.write_text(SETTINGS.format(folder=folder), encoding="utf-8")
        # tests/played/sitecustomize.py begins the coverage of the processes that tests start.
        environment = os.environ | {"COVERAGE_PROCESS_START": str(settings)}

        def coverage(*words: str) -> int:
            command = [sys.executable, "-m", "coverage", words[0], f"--rcfile={settings}"]
            return subprocess.run(
                [*command, *words[1:]], cwd=ROOT, env=environment, check=False
            ).returncode

        failed = coverage("run", "-m", "pytest", "-q", *tests)
        coverage("combine", "--quiet")
        low = coverage("report", "--show-missing", f"--fail-under={arguments.fail_under}")
    return failed or low


if __name__ == "__main__":
    sys.exit(main())
