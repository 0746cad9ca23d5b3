"""Compile what a default run imports: `.venv/bin/python envs/compile.py`.

uv does not compile what it installs. The first cells would wait for it, and all later ones where
PYTHONDONTWRITEBYTECODE is set. All packages would take minutes, these a dozen seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys

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


def main() -> int:
    """Import them once; what is missing or fails to is passed over."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    commands = [[sys.executable, "-c", IMPORT_EACH, *names.split()] for names in IMPORTS]
    processes = [
        subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
