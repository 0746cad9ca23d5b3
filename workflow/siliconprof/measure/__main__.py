"""`python -m siliconprof.measure --cell JSON --output results/records/….json`, see `supervise`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from siliconprof import packages
from siliconprof.errors import UserError, stage


def main(argv: Sequence[str] | None) -> int:
    """See `supervise.main`.

    Raises:
        UserError: this Python lacks a package that every host needs.
    """
    if missing := list(filter(packages.is_absent, packages.REQUIRED)):
        raise UserError(
            f"siliconprof.measure needs {', '.join(missing)}, which this Python does not have: "
            f"pip install {' '.join(missing)}"
        )
    from siliconprof.measure import supervise

    return supervise.main(argv)


if __name__ == "__main__":
    sys.exit(stage(main, ends_itself=True))
