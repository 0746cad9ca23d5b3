"""Import once what a run imports: `.venv/bin/python envs/first_imports.py`, a dozen seconds.

It compiles, which uv does not; the first cells would wait for it, and all later ones where
PYTHONDONTWRITEBYTECODE is set. And it shows which package does not load, as where uv took a wheel without
the shared library that another index has with it: that one is installed again by pip, which looks at
every index. What still does not load is said, and costs the cells that need it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from siliconprof import declarations, packages

# Two processes, of about equal length.
IMPORTS = (
    "torch accelerate torch._dynamo transformers.models.gpt2.modeling_gpt2 transformers.trainer "
    "transformers.models.whisper.modeling_whisper",
    "snakemake.cli pandas scipy.stats matplotlib.pyplot mlx.core mlx.nn mlx_lm.models.gpt2 "
    "datasets tokenizers jinja2 rich",
)
IMPORT_EACH = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(Exception):
        importlib.import_module(name)
"""


def install_again(names: Iterable[str]) -> None:
    """Have pip install packages anew, in the version that is there."""
    for name in names:
        pin = f"{name}=={declarations.installed_version(name)}"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--force-reinstall", pin], check=False)


def main() -> int:
    """Import all, and try those again that fail."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    commands = [[sys.executable, "-c", IMPORT_EACH, *names.split()] for names in IMPORTS]
    processes = [
        subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    broken = packages.broken()
    for process in processes:
        process.wait()
    if broken:
        install_again(broken)
        broken = packages.broken()
    for name, why in broken.items():
        print(
            f"{name} does not load ({why}), so what needs it is not measured; to fix it: "
            f"{packages.remedy(name)}",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
