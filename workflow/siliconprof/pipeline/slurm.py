"""Slurm's refusals before anything is submitted, and the jobs that a killed pipeline left.

The executor plug-in submits jobs once cells are due, see `shared_jobs`. A label that no node can
serve would fail only then, with an error as long as the job's command; and jobs outlive a Snakemake
that was killed with -9. So the main process asks Slurm by Slurm's own commands, which takes
milliseconds.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from siliconprof.errors import printable

EXECUTOR = "slurm"  # the plug-in's name
LIMIT_S = 20.0
CANCEL_LIMIT_S = 60.0  # Slurm waits KillWait, 30 s by default, between SIGTERM and SIGKILL
POLL_S = 0.2
SHOWN_GROUPS = 8
# A job's resource -> sbatch's option, as snakemake-executor-plugin-slurm 2.8.0 translates it
# (submit_string.py and utils.set_gres_string there).
OPTIONS = {
    "slurm_partition": "--partition",
    "slurm_account": "--account",
    "constraint": "--constraint",
    "qos": "--qos",
    "gres": "--gres",
    "gpu": "--gpus",
    "nodes": "--nodes",
    "tasks": "--ntasks",
    "cpus_per_task": "--cpus-per-task",
    "cpus_per_gpu": "--cpus-per-gpu",
    "mem_mb": "--mem",
    "mem_mb_per_cpu": "--mem-per-cpu",
    "clusters": "--clusters",
    "runtime": "--time",
}


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """(exit status, standard output, standard error); -1 where it cannot be run."""
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, "", str(error)
    return process.returncode, process.stdout, process.stderr


def _options(resources: Mapping[str, Any]) -> list[str]:
    """sbatch's options for a label's resources, without those that do not concern Slurm."""
    if model := resources.get("gpu_model"):
        resources = {**resources, "gpu": f"{model}:{resources.get('gpu', 1)}"}
    options = [
        f"{OPTIONS[name]}={value}"
        for name, value in resources.items()
        if name in OPTIONS and value not in ("", 0) and not str(value).startswith("-")
    ]
    return options + shlex.split(str(resources.get("slurm_extra", "")))


def refusal(resources: Mapping[str, Any]) -> str | None:
    """Why Slurm would start no job with these resources, in its own words; None where it would.

    Asks `sbatch --test-only`, which submits nothing: whether a node with that partition,
    constraint and gres exists and is up. A wait for busy nodes is no refusal.

    Args:
        resources: a label's `resources` of config section `cluster`.
    """
    code, _, stderr = _run(["sbatch", "--test-only", *_options(resources), "--wrap=true"])
    if code == 0:
        return None
    if code == -1:
        return f"sbatch cannot be run: {stderr}"
    lines = [
        line.partition("error: ")[2] or line
        for line in stderr.splitlines()
        if line.strip() and line[:4] != "Try "
    ]
    reason = (lines or [f"sbatch ended with status {code}"])[-1]
    reason = reason.removeprefix("allocation failure: ")
    nodes = _nodes(str(resources.get("slurm_partition", "")))
    return f"{reason}; {nodes}" if nodes else reason


def _nodes(partition: str) -> str:
    """The nodes of a partition or of the whole cluster, by kind, in one line; empty if unknown."""
    command = ["sinfo", "--noheader", "--format=%P|%D|%f|%G|%T"]
    _, text, _ = _run(command + ([f"--partition={partition}"] if partition else []))
    if partition and not text.strip():
        _, text, _ = _run(["sinfo", "--noheader", "--format=%R"])
        names = sorted(set(text.split()))
        return f"the partitions are {', '.join(names[:SHOWN_GROUPS])}" if names else ""
    groups = []
    for line in text.splitlines():
        name, count, features, gres, state = line.split("|", 4)
        what = f"{count} × {features.replace('(null)', 'no feature')}"
        what += "" if gres == "(null)" else f" with {gres}"
        groups.append(f"{name.rstrip('*')}: {what}, {state}")
    more = len(groups) - SHOWN_GROUPS
    shown = "; ".join(groups[:SHOWN_GROUPS]) + (f"; and {more} more" if more > 0 else "")
    return f"there is {shown}" if groups else ""


def refusals(cluster: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Label -> one line, for every label of config section `cluster` that Slurm would not serve."""
    lines = {}
    for label, entry in cluster.items():
        resources = entry.get("resources", {})
        reason = refusal(resources)
        if reason:
            requested = ", ".join(f"{k} {v}" for k, v in resources.items()) or "no resources"
            lines[label] = f"cluster.{label}: Slurm would start no job now ({requested}): {reason}"
    return lines


def warn(cluster: Mapping[str, Mapping[str, Any]]) -> None:
    """Print what Slurm would refuse, before jobs are submitted; the run goes on with the rest."""
    for line in refusals(cluster).values():
        print(printable(line), file=sys.stderr)


def left_jobs() -> list[str]:
    """Ids of the queued and running jobs of the executor plug-in that were sent from this folder.

    The plug-in submits with the working directory as the job's, and the rule as its comment.
    """
    command = ["squeue", "--me", "--noheader", "--format=%i|%k|%Z"]
    code, text, _ = _run(command)
    here = {os.path.realpath(os.getcwd()), os.getcwd()}
    if code:
        return []
    jobs = (line.split("|", 2) for line in text.splitlines())
    return [job[0] for job in jobs if len(job) == 3 and job[1][:5] == "rule_" and job[2] in here]


def clear_left_jobs(cancel: bool) -> None:
    """Deal with the jobs of an earlier pipeline of this folder, before a new one submits its own.

    Args:
        cancel: their pipeline is dead, see `lock.clear_stale`: cancel them and wait for their
            end, so that no cell runs twice at once. Otherwise print their ids.
    """
    jobs = left_jobs()
    if not jobs:
        return
    names = " ".join(jobs)
    if not cancel:
        print(
            f"Slurm still has jobs that were sent from this folder: {names}; unless the pipeline "
            f"that sent them lives, end them with: scancel {names}",
            file=sys.stderr,
        )
        return
    print(f"a killed pipeline left jobs in Slurm's queue, cancelled: {names}", file=sys.stderr)
    _run(["scancel", *jobs])
    end = time.monotonic() + CANCEL_LIMIT_S
    while set(left_jobs()) & set(jobs) and time.monotonic() < end:
        time.sleep(POLL_S)
