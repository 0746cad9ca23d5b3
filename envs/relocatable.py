"""Have an environment work wherever its checkout is moved or copied: `.venv/bin/python envs/relocatable.py`.

pip writes the environment's path into every script, and ours into the editable install. Scripts
here start the `python` beside them instead, and the install names our package from where it lies.
Nothing is downloaded or installed, and what is so already stays as it is.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# To the shell a command that never returns, to Python a string.
START = b"""\
#!/bin/sh
'''exec' "$(dirname -- "$(readlink -f -- "$0")")/python" "$0" "$@"
' '''
"""
# `#!PATH/python`, or what pip writes where that line is too long or has a space.
PIPS = re.compile(
    rb"#!(?:[^\n]*/python[0-9.]*|/bin/sh\n'''exec' [^\n]*/python[0-9.]*\"? [^\n]*\n' ''')\n"
)


def replace(path: Path, content: bytes) -> None:
    """Write a file beside its place and rename it; mode and owner as before."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_bytes(content)
    beside.chmod(path.stat().st_mode)
    os.replace(beside, path)


def main() -> int:
    """Rewrite what names a place."""
    for script in Path(sys.prefix, "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        with open(script, "rb") as stream:
            if stream.read(2) != b"#!":
                continue
        content = script.read_bytes()
        again = PIPS.sub(lambda _: START, content, count=1) if PIPS.match(content) else content
        if again != content:
            replace(script, again)
    activate = Path(sys.prefix, "bin", "activate")
    if activate.is_file():
        text = activate.read_text(encoding="utf-8")
        again = re.sub(
            r"""^( *(?:export )?VIRTUAL_ENV=)(["']?)/.*\2$""",  # Python 3.13 exports it there
            rf'\1"{sys.prefix}"',
            text,
            flags=re.M,
        )
        if again != text:
            replace(activate, again.encode("utf-8"))
    packages = Path(sysconfig.get_path("purelib"))
    for install in packages.glob("__editable__.siliconprof-*.pth"):
        line = os.path.relpath(CHECKOUT / "workflow", packages) + "\n"  # as `site` reads it
        if install.read_text(encoding="utf-8") != line:
            replace(install, line.encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
