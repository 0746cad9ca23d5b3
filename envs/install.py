"""Install pins into this environment: `.venv/bin/python envs/install.py -r envs/cpu.txt`.

uv does it in a quarter of pip's time. It reads none of pip's settings, so it gets them from here;
where it cannot be had, or fails, pip does it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
PIP = (sys.executable, "-m", "pip")
# pip's settings, whose values are separated by spaces, as uv's options and variables.
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "proxy": "ALL_PROXY",
}
# What says where packages are. Without it, torch is the build for this host's driver, or for none.
SOURCES = {"index-url", "extra-index-url", "find-links"}


def pip_settings() -> dict[str, list[str]]:
    """The values of each of pip's settings: the environment's before the files'."""
    listing = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    found: dict[tuple[str, str], list[str]] = {}
    for line in listing.stdout.splitlines():  # global.extra-index-url='https://… https://…'
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        found[section, key] = str(ast.literal_eval(value)).split()
    sections = ("global", "install", ":env:")
    return {key: found[section, key] for section in sections for s, key in found if s == section}


def uv_command(requirements: list[str]) -> tuple[list[str], dict[str, str]]:
    """uv's command for these arguments of `pip install`, and its environment."""
    settings = pip_settings()
    options = [f"--python={sys.executable}", "--quiet", "--index-strategy=unsafe-best-match"]
    if not SOURCES & settings.keys():
        options.append("--torch-backend=auto")
    for name, option in OPTIONS.items():
        options += [f"{option}={value}" for value in settings.get(name, ())]
    variables = {
        VARIABLES[name]: " ".join(settings[name]) for name in VARIABLES if name in settings
    }
    command = [sys.executable, "-m", "uv", "pip", "install", *options, *requirements]
    return command, variables | dict(os.environ)


def main() -> int:
    """Install what the command line says, as `pip install` takes it."""
    pip_install = [*PIP, "install", "--quiet"]
    if not importlib.util.find_spec("uv"):
        subprocess.run([*pip_install, "uv", f"--constraint={CONSTRAINTS}"], check=False)
    command, environment = uv_command(sys.argv[1:])
    if not subprocess.run(command, env=environment, check=False).returncode:
        return 0
    print("install: uv cannot be had or failed; pip takes over", file=sys.stderr)
    return subprocess.run([*pip_install, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
