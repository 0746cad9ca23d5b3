"""A fresh process of `compare.py`: times some products in a row, repeatedly; prints the seconds.

A file of its own because 1500 of them are started: it imports what it times and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workflow"))

from siliconprof import plugins  # noqa: E402
from siliconprof.session.timing import Plan, repeat  # noqa: E402


def main() -> int:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--side", type=int, required=True, help="rows and columns of the matrices")
    parser.add_argument("--products", type=int, required=True, help="in a repeat")
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    side, seconds = arguments.side, arguments.seconds
    backend = plugins.load("backends", arguments.backend)()
    backend.available()
    backend.open("cpu", 0, arguments.threads, "fp32")
    a, b = backend.normal((side, side), 0), backend.normal((side, side), 1)

    def operation() -> None:
        for _ in range(arguments.products):
            backend.evaluate(backend.matmul(a, b))

    plan = Plan(warmup_budget_s=seconds / 2, budget_s=seconds, iterations=5, max_iterations=10**6)
    print(json.dumps(repeat(operation, backend, plan, lambda *_: None).times_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
