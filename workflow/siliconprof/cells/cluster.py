"""The nodes that a cluster lends: what the config's `cluster` says of them, which are asked for.

A label stands for a kind of node. Which of them a scheduler gives is its own affair; what such a
node is gets found on it, see `cluster_host`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store.validation import nearest

HOW = "snakemake --workflow-profile profiles/slurm report"
RESERVED = "auto"  # results/hosts/auto.json is no host
ANY_CPU = "cpu"
GENERIC = re.compile(r"[cg]pu-[a-z0-9-]+")  # ids without an entry, see `registry.generic_id`
# A resource ends in somebody's shell. The Slurm plug-in quotes a constraint, whose operators are a
# shell's too; `slurm_extra` it inserts as it is, so that its words are all that it may hold.
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:,=@%+/-]*")
OF_ITS_OWN = {
    "constraint": (
        re.compile(r"[A-Za-z0-9\[(][A-Za-z0-9._:,=+&|*()\[\]-]*"),
        ". _ : , = + - & | * ( ) [ ]",
    ),
    "slurm_extra": (re.compile(r"--[A-Za-z0-9._:,=@%+/ -]*"), "spaces and . _ : , = @ % + / -"),
    "lsf_extra": (re.compile(r"-[A-Za-z0-9._:,=@%+/ -]*"), "spaces and . _ : , = @ % + / -"),
}
NUMBERS = re.compile(r"runtime|.*_(mb|mib)")
START_S = 300.0  # of Snakemake, twice, and a cell's end, on a slow shared disk; a guess
DETECTION_MINUTES = 15  # hosts.DETECT_LIMIT_S and START_S


# -- what the config says ----------------------------------------------------------------------


def problems(section: Mapping[str, Any]) -> list[str]:
    """Mistakes of the section beyond its schema, one line each."""
    return [line for label, entry in section.items() for line in _of_label(label, entry)]


def _of_label(label: Any, entry: Any) -> Iterator[str]:
    if isinstance(label, str) and (label == RESERVED or label != label.strip()):
        yield f"cluster.{label.strip()}: is no name that a host can have; choose another label"
    resources = entry.get("resources") if isinstance(entry, Mapping) else None
    if not isinstance(resources, Mapping):
        return  # absent, or the schema has said so
    for key, value in resources.items():
        where = f"cluster.{label}.resources.{key}"
        if key == "accelerator":
            yield f"{where}: is the pipeline's own; leave it out"
        elif isinstance(key, str) and NUMBERS.fullmatch(key):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                unit = "minutes" if key == "runtime" else "megabytes"
                yield f"{where}: is {value!r}; expected a whole number of {unit}"
        elif isinstance(value, str):
            allowed, signs = OF_ITS_OWN.get(key, (WORD, ". _ : , = @ % + / -"))
            if not allowed.fullmatch(value):
                yield f"{where}: is {value!r}; expected letters, digits and {signs}"


def chosen(experiment: Mapping[str, Any]) -> list[str]:
    """Labels of `cluster` that `devices` asks for, in the config's order."""
    asked, section = set(experiment["devices"]), experiment.get("cluster") or {}
    return [label for label, entry in section.items() if asked & {"local", label, entry["device"]}]


def check(
    experiment: Mapping[str, Any],
    registry: Mapping[str, Any],
    own_label: str,
    present: Sequence[str] = (),
) -> None:
    """Refuse devices that nobody knows, and a label that is this host's own.

    Args:
        present: ids of this host's devices.

    Raises:
        UserError: one line each.
    """
    known = [*registry["devices"], *present, ANY_CPU]
    lines = []
    for label, entry in experiment["cluster"].items():
        if label == own_label:
            lines.append(
                f"config: cluster.{label}: is the label of this host; choose another for the nodes"
            )
        if entry["device"] not in known and not GENERIC.fullmatch(entry["device"]):
            lines.append(
                f"config: cluster.{label}.device: '{entry['device']}' is not in "
                f"config/devices.yaml{_nearest(entry['device'], known)}"
            )
    if lines:
        raise UserError("\n".join(lines))


def _nearest(word: str, known: Sequence[str]) -> str:
    """As `nearest`; `nvidia-h200` is not near `h200` by its letters."""
    parts = word.split("-")
    within = [name for name in known if name in ("-".join(parts[i:]) for i in range(len(parts)))]
    return f"; did you mean '{within[0]}'?" if within else nearest(word, known)


def missing(experiment: Mapping[str, Any], registry: Mapping[str, Any]) -> list[dict[str, str]]:
    """Devices asked for of a run on the cluster that no label has.

    Raises:
        UserError: one of them is known to nobody, or no label is left to measure.
    """
    section = experiment["cluster"]
    if not section:
        raise UserError(
            "config: cluster: is empty, but this run submits its jobs: say which kinds of node to "
            "measure, see config/README.md, or run without that profile to measure this host"
        )
    labels = {name for label, entry in section.items() for name in (label, entry["device"])}
    found, lines = [], []
    for index, wanted in enumerate(experiment["devices"]):
        if wanted == "local" or wanted in labels:
            continue
        if wanted in registry["devices"] or GENERIC.fullmatch(wanted):
            found.append({"device": wanted, "reason": "no label of `cluster` has this device"})
        else:
            known = ["local", *sorted(labels), *registry["devices"]]
            lines.append(
                f"config: devices.{index}: '{wanted}' is neither in config/devices.yaml nor a "
                f"label of `cluster` ({', '.join(section)}){nearest(wanted, known)}"
            )
    if not lines and not chosen(experiment):
        have = ", ".join(f"{label}: {entry['device']}" for label, entry in section.items())
        lines = [
            f"config: devices: no label of `cluster` has any of them ({have}); name one of these, "
            "or `local` for all"
        ]
    if lines:
        raise UserError("\n".join(lines))
    return found


# -- what a node is ----------------------------------------------------------------------------


def device_of(entry: Mapping[str, Any], host: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The device that a label stands for, as its node has it; None where nothing can use one."""
    return next((device for device in _fitting(entry, host) if device["backends"]), None)


def _fitting(entry: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    asked = entry["device"]
    for device in host["devices"]:
        if device["id"] == asked or (asked == ANY_CPU and device["kind"] == "cpu"):
            yield device


def lacks(label: str, entry: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, str]:
    """The line of what was not measured, for a node that turned out to be of no use."""
    if any(_fitting(entry, host)):
        states = host["backends"].items()
        why = "; ".join(f"{name}: {state['reason']}" for name, state in states if state["reason"])
        return {
            "device": entry["device"],
            "reason": f"no backend can use it on node '{host['hostname']}' of label '{label}' "
            f"({why}); the next run looks again",
        }
    has = ", ".join(device["id"] for device in host["devices"]) or "none"
    return {
        "device": entry["device"],
        "reason": f"node '{host['hostname']}', to which the resources of label '{label}' led, has "
        f"no such device ({has}); narrow cluster.{label}.resources in the config",
    }


def not_looked_at(label: str, entry: Mapping[str, Any]) -> dict[str, str]:
    """The line of what was not measured, for a label of which nothing lies here."""
    return {
        "device": entry["device"],
        "reason": f"the cluster's nodes '{label}' have it and were not measured: {HOW}",
    }


# -- what a job may take -----------------------------------------------------------------------


def _need_s(timing: Mapping[str, Any], captures: Sequence[str]) -> float:
    """A cell's own limit: every capture runs under the same one again."""
    return timing["time_limit_s"] * (1 + len(captures))


def longest_s(experiment: Mapping[str, Any]) -> float:
    """The most that any cell of an experiment may take, in seconds."""
    entries = experiment["workloads"].values()
    return max(_need_s(entry["timing"], entry["capture"]) for entry in entries)


def minutes(timing: Mapping[str, Any], captures: Sequence[str], longest: float) -> int:
    """Minutes to ask a scheduler for: its own limit, and room to wait for one cell of any kind.

    Waiting for the host's lock is not in a cell's limit. Where nodes are lent whole nobody else
    holds it, unless an earlier Snakemake was killed and its job runs on.

    Args:
        longest: what `longest_s` gave.
    """
    return math.ceil((_need_s(timing, captures) + longest + START_S) / 60)
