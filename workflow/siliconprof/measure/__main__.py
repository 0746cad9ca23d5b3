"""`python -m siliconprof.measure --cell JSON --output results/records/….json`, see `supervise`."""

from __future__ import annotations

import sys

from siliconprof import options, packages
from siliconprof.errors import USER_ERROR_EXIT_STATUS

if __name__ == "__main__":
    if missing := [*filter(packages.is_absent, packages.REQUIRED)]:
        lacks = f"{', '.join(missing)}, which this Python does not have"
        fix = f"pip install {' '.join(missing)}"
        print(f"siliconprof.measure needs {lacks}: {fix}", file=sys.stderr)
        sys.exit(USER_ERROR_EXIT_STATUS)
    from siliconprof.measure.supervise import main

    options.run(main, "siliconprof.measure", ends_itself=True)
