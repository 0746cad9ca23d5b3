"""The volatile part of a record's environment: what was true while this cell was measured."""

from __future__ import annotations

import hmac
import os
import platform
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from siliconprof import declarations
from siliconprof.errors import in_one_line
from siliconprof.hosts import machine

NODE_VARIABLE = "SLURMD_NODENAME"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SENT_COMMIT = ".siliconprof-collect/commit"
PLATFORM_PROFILE = "/sys/firmware/acpi/platform_profile"
SAVING_PROFILES = ("low-power", "cool", "quiet")  # Documentation/ABI/testing/sysfs-platform_profile
# By these git would look at another repository: a hook, or a shell, may have set them.
OTHER_REPOSITORY = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR"}
OTHER_REPOSITORY |= {"GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"}
MAC_POWER_MODES = ("automatic", "low", "high")  # `pmset -g`: powermode 0, 1 and 2


def git_commit(checkout: Path) -> tuple[str | None, str]:
    """The checkout's commit, `+changes` where tracked files or the code differ; None and why not.

    A copy that `siliconprof collect` sent has the commit in a file: git would look in the folders
    above.
    """
    sent = checkout / SENT_COMMIT
    if sent.is_file():
        return sent.read_text(encoding="utf-8").strip() or None, "that of the collecting checkout"

    own = {name: value for name, value in os.environ.items() if name not in OTHER_REPOSITORY}

    def git(*words: str) -> str:
        # Whose code runs here is trusted: a container often mounts another user's checkout. Without
        # its optional locks git writes no index.
        command = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-C", str(checkout)]
        return subprocess.run(
            [*command, *words], env=own, capture_output=True, text=True, timeout=10, check=True
        ).stdout

    try:
        if above := git("rev-parse", "--show-prefix").strip():
            return None, f"no repository of its own: it is the folder {above} of another one"
        commit = git("rev-parse", "HEAD").strip()
        differs = git("status", "--porcelain", "--untracked-files=no")
        added = git("status", "--porcelain", "--untracked-files=normal", "--", "workflow")
    except FileNotFoundError:
        return None, "git is not installed"
    except subprocess.CalledProcessError as error:
        return None, error.stderr.partition("\n")[0].removeprefix("fatal: ")
    except (OSError, subprocess.SubprocessError) as error:
        return None, in_one_line(error)
    return commit + ("+changes" if differs or added else ""), ""


def power_source() -> str | None:
    """`mains` or `battery`; None where the system reports none (servers, virtual machines)."""
    if machine.is_mac():
        status = machine.run(["pmset", "-g", "batt"], 5)
        return ("battery" if "Battery Power" in status else "mains") if status else None
    for online in machine.listed("/sys/class/power_supply", "A*/online"):
        if text := machine.read_text(str(online)).strip():
            return "mains" if text == "1" else "battery"
    return None


def power_mode() -> tuple[str | None, bool | None, str]:
    """(power mode, whether it saves power, the setting read); None, None, why there is none.

    Macs that have a high power mode print `powermode` in place of `lowpowermode`, which is 0 or 1.
    """
    if machine.is_mac():
        printed = machine.run(["pmset", "-g"])
        match = re.search(r"^\s*(powermode|lowpowermode)\s+([012])\b", printed, re.M)
        if match is None:
            return None, None, "pmset -g prints neither powermode nor lowpowermode"
        mode = MAC_POWER_MODES[int(match[2])]
        return mode, mode == "low", f"pmset -g {match[1]}"
    profile = machine.read_text(PLATFORM_PROFILE).strip()
    if not profile:
        return None, None, f"no {PLATFORM_PROFILE}"
    return profile, profile in SAVING_PROFILES, f"platform_profile is '{profile}'"


def stay_awake(pid: int) -> None:
    """Keep the system from going to sleep as long as a process lives.

    By caffeinate(8) on a Mac, else by systemd-inhibit(1), in a session of its own, where nothing can
    ask for a password; who may not inhibit is refused.
    """
    own = str(pid)
    waits = ["tail", f"--pid={own}", "--follow", os.devnull]
    programs = {
        "caffeinate": ["-i", "-w", own],
        "systemd-inhibit": [
            "--what=idle:sleep",
            "--who=siliconprof",
            "--why=a measurement",
            *waits,
        ],
    }
    program = next(filter(shutil.which, programs), None)
    if program is None:
        return
    subprocess.Popen(
        [program, *programs[program]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def node_id() -> str:
    """A short id of this node, the same in all of its records; nobody else can try names for it.

    It is an HMAC (RFC 2104) keyed with the machine's id or, in a container without one, the boot's.
    A node's name in Slurm need not be its host name.
    """
    name = os.environ.get(NODE_VARIABLE) or socket.gethostname()
    key = machine.fingerprint_parts()["machine_id_sha256"] or machine.read_text(BOOT_ID)
    return hmac.new(key.encode(), name.encode(), "sha256").hexdigest()[:12]


def capture(checkout: Path) -> dict[str, Any]:
    """Host, system, versions and load; no framework is imported."""
    commit, why_not = git_commit(checkout)
    mac = f"macOS-{machine.mac_version()}-{platform.machine()}" if machine.is_mac() else ""
    load, no_load = machine.reading(lambda: os.getloadavg()[0])
    cpu = machine.cpu()
    reasons = {"git_commit_reason": None if commit else why_not, "load_average_reason": no_load}
    return {name: why for name, why in reasons.items() if why is not None} | {
        "node": node_id(),
        "system": mac or platform.platform(),
        "packages": declarations.installed_versions(),
        "git_commit": commit,
        "power_source": power_source(),
        "load_average_1min": load,
        "threads_auto": cpu["threads"],
        "threads_rule": cpu["threads_rule"],
    }
