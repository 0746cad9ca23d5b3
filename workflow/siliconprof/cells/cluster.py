"""The nodes that a cluster lends: what the config's `cluster` says of them, and which are chosen.

A label stands for a kind of node. The scheduler decides which node of that kind a job gets; the
node is detected by a job on it, see `host_file`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from siliconprof.errors import UserError, nearest

CLUSTER_COMMAND = "snakemake --workflow-profile profiles/slurm report"
RESERVED = "auto"  # results/hosts/auto.json is no host
ANY_CPU = "cpu"
GENERIC = re.compile(r"[cg]pu-[a-z0-9-]+")  # ids without an entry, see `registry.generic_id`
# Resources with a default, Snakemake's or of profiles/slurm, that it takes from every other label.
WITH_DEFAULT = re.compile("(mem|disk)(_mi?b)?|tmpdir|slurm_extra|cpus_per_task")
START_S = 300.0  # of Snakemake, and a cell's end, on a slow shared disk; a guess


# -- what the config says ----------------------------------------------------------------------


def chosen(experiment: Mapping[str, Any]) -> list[str]:
    """Labels of `cluster` that `devices` asks for, in the config's order."""
    requested, section = set(experiment["devices"]), experiment.get("cluster") or {}
    return [
        label for label, entry in section.items() if requested & {"local", label, entry["device"]}
    ]


def check(experiment: Mapping[str, Any], registry: Mapping[str, Any], own_label: str) -> None:
    """Refuse unknown devices, and a label that is this host's own.

    Raises:
        UserError: one line each.
    """
    device_ids = [*registry["devices"], ANY_CPU]
    lines = []
    for label, entry in experiment["cluster"].items():
        if label == own_label:
            lines.append(
                f"config: cluster.{label}: is the label of this host; choose another for the nodes"
            )
        if entry["device"] not in device_ids and not GENERIC.fullmatch(entry["device"]):
            lines.append(
                f"config: cluster.{label}.device: '{entry['device']}' is not in "
                f"config/devices.yaml{nearest(entry['device'], device_ids)}"
            )
    if lines:
        raise UserError("\n".join(lines))


def missing(experiment: Mapping[str, Any], registry: Mapping[str, Any]) -> list[dict[str, str]]:
    """Requested devices of a run on the cluster that no label has.

    Raises:
        UserError: one of them is unknown, no label is left to measure, or one lacks a resource.
    """
    section = experiment["cluster"]
    asked = {name for entry in section.values() for name in entry["resources"]}
    lines = [
        f"config: cluster.{label}.resources: lacks {name}, which another label sets; give it to "
        "every label, or to none"
        for label, entry in section.items()
        for name in sorted(filter(WITH_DEFAULT.fullmatch, asked - entry["resources"].keys()))
    ]
    if lines:
        raise UserError("\n".join(lines))
    labels = {name for label, entry in section.items() for name in (label, entry["device"])}
    generic = filter(GENERIC.fullmatch, experiment["devices"])
    where = f"a label of `cluster` ({', '.join(section)})"
    reason = "no label of `cluster` has this device"
    unavailable = absent(experiment, [*registry["devices"], *generic], labels, where, reason)
    if not chosen(experiment):
        available = ", ".join(f"{label}: {entry['device']}" for label, entry in section.items())
        raise UserError(
            f"config: devices: no label of `cluster` has any of them ({available}); name one of these, "
            "or `local` for all"
        )
    return unavailable


def absent(
    experiment: Mapping[str, Any],
    known: Collection[str],
    present: Collection[str],
    where: str,
    reason: str,
) -> list[dict[str, str]]:
    """Requested devices that are known and not present, each with the reason.

    Raises:
        UserError: one is neither known nor `where` the present ones are; one line each.
    """
    wanted = [one for one in experiment["devices"] if one != "local" and one not in present]
    if unknown := [one for one in wanted if one not in known]:
        names = ["local", *sorted(present), *known]
        raise UserError(
            "\n".join(
                f"config: devices.{experiment['devices'].index(one)}: '{one}' is neither in "
                f"config/devices.yaml nor {where}{nearest(one, names)}"
                for one in unknown
            )
        )
    return [{"device": one, "reason": reason} for one in wanted]


# -- what a node is ----------------------------------------------------------------------------


def device_of(
    label: str, entry: Mapping[str, Any], host: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], list[dict[str, str]]]:
    """Return (the device of a node that its label stands for, or none; an entry of `not_measured` without one)."""
    requested = entry["device"]
    fitting = [
        device
        for device in host["devices"]
        if device["id"] == requested or (requested == ANY_CPU and device["kind"] == "cpu")
    ]
    if usable := [device for device in fitting if device["backends"]]:
        return usable[:1], []
    present = ", ".join(device["id"] for device in host["devices"]) or "none"
    reason = (
        f"the node to which the resources of label '{label}' led has no such device ({present}); "
        f"narrow cluster.{label}.resources in the config"
    )
    if fitting:
        states = host["backends"].items()
        why = "; ".join(f"{name}: {state['reason']}" for name, state in states if state["reason"])
        reason = f"no backend can use it on the node of label '{label}' ({why}); `--forcerun host` looks again"
    return [], [{"device": requested, "reason": reason}]


# -- what a job may take -----------------------------------------------------------------------


def minutes(experiment: Mapping[str, Any], workload: str) -> int:
    """Minutes to request for a cell: its own limit, and time to wait for one cell of any kind.

    Waiting for the host's lock is not in a cell's limit. Where nodes are lent whole nobody else
    holds it, unless an earlier Snakemake was killed and its job runs on.
    """
    entries = experiment["workloads"].items()
    limits_s = {name: entry["timing"]["time_limit_s"] for name, entry in entries}
    return math.ceil((limits_s[workload] + max(limits_s.values()) + START_S) / 60)
