"""What the rules look up: hosts, cells, resources and fingerprints, each made when a rule asks for it.

A run measures the host that it runs on or, where the config has a `cluster`, the nodes of its labels.
Reading this writes nothing and changes no variable, since Snakemake reads the Snakefile for a dry run,
a list of rules, every submitted job and another workflow's module as well. What a person can fix is a
`WorkflowError` of its lines, see `files.in_lines`.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from siliconprof import fingerprint
from siliconprof.cells import cluster, expected, matrix
from siliconprof.errors import UserError, printable, replace_what_cannot_be_shown
from siliconprof.hosts import detect, doctor, environment, host_file, machine
from siliconprof.lifetime import PIPELINE_VARIABLE
from siliconprof.measure import fork_server, scratch
from siliconprof.pipeline.files import Files, in_lines, one_of
from siliconprof.plugins import CHECKOUT, PACKAGE_DIR
from siliconprof.probes import interference
from siliconprof.session.timing import Plan
from siliconprof.store import temporary
from siliconprof.store.cell import AXES, canonical_json

LOGGER = "snakemake.logging"
# Snakemake's event of a failed job, snakemake_interface_logger_plugins.common.LogEvent
JOB_ERROR = "job_error"
# What its text begins with, has.
COMMAND = ("RuleException:\nCalledProcessError", "non-zero exit status")
LONGEST_REASON = 400  # characters of a reason


class Experiment(Files):
    """Everything that rules look up.

    Args:
        raw: Snakemake's `config`.
        checkpoints: Snakemake's, for the nodes of a cluster.
        workflow: Snakemake's, for the cores that it is given.
    """

    @in_lines
    def __init__(self, raw: Mapping[str, Any], checkpoints: Any, workflow: Any) -> None:
        self._began_s, self._load = time.time(), interference.ForeignLoad()
        self._checkpoints = checkpoints
        self._known: dict[str, tuple[int, matrix.Expansion]] = {}
        self._announces_cells = False  # as soon as they are known
        super().__init__(raw, workflow)
        if workflow and workflow.remote_exec and workflow.modifier.is_main_snakefile():
            self._set_paths()  # of a submitted job, which has no `onstart`
        gc.freeze()  # it all lives as long as the process, so the collector need not walk it again

    # -- cells --------------------------------------------------------------------------------

    @property
    def patterns(self) -> dict[str, str]:
        """Constraints of wildcards: a host that this run does not measure belongs to no rule."""
        # Lists of all names of the other axes would cost a third of a dry run of 10,000 cells.
        return dict.fromkeys(AXES, "[^/]+") | {"host": one_of(self.labels)}

    @cached_property
    def _host(self) -> dict[str, Any]:
        """This host, detected in memory where its file is missing or out of date."""
        return host_file.resolve(self._folder, self.config["host"], self._devices)

    def _cells(self, label: str) -> matrix.Expansion:
        """The cells of a host of this run."""
        for name in self.models:  # raises where one must be looked at first
            self._checkpoints.model.get(model=name)
        made, path = 0, self._folder / "hosts" / f"{label}.json"
        if self.nodes:
            # Raises where a node must be looked at first; Snakemake does that and calls this again.
            self._checkpoints.host.get(host=label)
            made = path.stat().st_mtime_ns
        if label not in self._known or self._known[label][0] != made:
            host = host_file.load(path) if self.nodes else self._host
            self._known[label] = made, matrix.Expansion(self.config, self._devices, host)
            if self._announces_cells:
                print("\n".join(expected.announced(self._known[label][1].cells)), flush=True)
                self._announces_cells = False
        return self._known[label][1]

    def of_cell(self, key: str) -> Callable[[Any], Any]:
        """Return an input or params function of a cell's rule: its `files`, `arguments` or `priority`."""

        @in_lines
        def needed(wildcards: Any) -> Any:
            axes = tuple(wildcards[1:])
            cells = self._cells(wildcards[0])
            if axes not in cells.places:
                what = f"{'/'.join(wildcards)}: no cell of this experiment"
                raise UserError(f"{what}; `siliconprof plan` lists them")
            planned = cells.planned(axes)
            if key == "priority":  # as in the config, a workload's cells one after the other
                place = cells.places[axes] / len(cells.places)
                return -self._workload_places[planned.cell.workload] - place
            if key == "arguments":
                return planned.arguments
            return [*map(self._without_prefix, planned.data), *planned.weights]

        return needed

    @property
    def records(self) -> list[Callable[[Any], list[str]]]:
        """One input function for each host, so that a label whose nodes are busy delays no other."""
        return [partial(self._records_of, label, None) for label in self.labels]

    @property
    def quick(self) -> list[Callable[[Any], list[str]]]:
        """As `records`, for the workloads that the target `quick` measures."""
        return [partial(self._records_of, label, self.config["quick"]) for label in self.labels]

    @in_lines
    def _records_of(self, label: str, workloads: list[str] | None, wildcards: Any) -> list[str]:
        if workloads == []:
            raise UserError(
                "config: quick: names no workload, so there is nothing to measure first"
            )
        if self.nodes:
            own = host_file.label(self._folder, self.config["host"])
            cluster.check(self.config, self._devices, own)
        folder = f"results/records/{label}/"
        return [
            f"{folder}{'/'.join(axes)}.json"
            for axes in self._cells(label).places
            if workloads is None or axes[2] in workloads
        ]

    @in_lines
    def facts(self, wildcards: Any) -> str:
        """Return this host's facts or, of a cluster label, its entry and the installed packages, as JSON."""
        if not self.nodes:
            return canonical_json(self._host)
        method = fingerprint.fingerprint_of(host_file.DETECTOR).sha256
        entry, packages = self.config["cluster"][wildcards.host], detect.package_versions()
        return canonical_json({"entry": entry, "packages": packages, "method": method})

    def machine(self, wildcards: Any) -> str:
        """Which machine this label stands for, as JSON."""
        return canonical_json({key: self._host[key] for key in ("label", "fingerprint")})

    # -- jobs ---------------------------------------------------------------------------------

    def resources(self, **fixed: Any) -> dict[str, Any]:
        """Return the resources of a label's jobs as functions of the host; none for a run on this host."""
        if not self.nodes:
            return {}
        entries = [self.config["cluster"][label]["resources"] for label in self.labels]
        names = {"runtime", *(name for entry in entries for name in entry)}
        return {name: fixed.get(name) or partial(self._resource, name) for name in sorted(names)}

    def _resource(self, name: str, wildcards: Any) -> Any:
        asked = self.config["cluster"][wildcards.host]["resources"].get(name)
        if asked is not None or name != "runtime":
            return asked
        return cluster.minutes(self.config, wildcards.workload)

    def cores(self, wildcards: Any) -> int:
        """All that this host gives, so that nothing of the run is beside a cell; one of a job that is
        submitted, whose profile says what its node gives. A function, since graphs and summaries are
        made without `--cores`.
        """
        is_submitted = self.nodes or not self._workflow.local_exec
        return 1 if is_submitted else int(self._workflow.cores)

    @property
    def time_limit_s(self) -> Any:
        """The time limit of a cell, a function only where cells differ; it changes none of their numbers."""
        timing = {name: entry["timing"] for name, entry in self.config["workloads"].items()}
        limits = {name: str(Plan.of(own).time_limit_s) for name, own in timing.items()}
        one = set(limits.values())
        return one.pop() if len(one) == 1 else lambda wildcards: limits[wildcards.workload]

    @property
    def remeasure_within_s(self) -> str:
        """The longest a disturbed training may have taken to be measured once more."""
        return str(self.config["remeasure_contended_s"])

    # -- the run ------------------------------------------------------------------------------

    def started(self) -> str:
        """Prepare a run whose jobs are about to start, and return the lines that announce it."""
        logging.getLogger(LOGGER).addFilter(FailedJobs())
        replace_what_cannot_be_shown()
        if text := fingerprint.cache_text():
            temporary.write(self._folder / "history" / fingerprint.CACHE_FILE, text)
        scratch.tidy(self._folder)
        if machine.is_mac():  # Spotlight would read what a run makes, where macOS heeds this
            temporary.write(self._folder / ".metadata_never_index", "")
        if self.nodes and self._workflow.local_exec and not self._workflow.touch:
            raise WorkflowError(
                f"{', '.join(self.labels)}: labels of `cluster`, but jobs would run here; name a profile "
                "that submits them, such as --workflow-profile profiles/slurm"
            )
        self._set_environment_of_jobs()
        if self.nodes:
            return f"nodes of {', '.join(self.labels)}, each looked at before its cells are known"
        environment.stay_awake(os.getpid())
        busy_cores = self._load.cores(time.time() - self._began_s)
        if models := self._missing_models():
            self._announces_cells = True
            return f"looking at {', '.join(models)}, of which the cells on {self.labels[0]} follow"
        jobs = (job for job in self._workflow.dag.needrun_jobs() if job.rule.name == "measure")
        due = [self._cells(job.wildcards[0]).planned(tuple(job.wildcards[1:])) for job in jobs]
        if not due:
            return ""
        on_cpu = {p.cell.precision for p in due if p.cell.device_kind == "cpu"}
        advice = [*doctor.before_a_run(self._host, busy_cores, on_cpu)]
        commit, reason = environment.git_commit(CHECKOUT)
        if commit is None:
            advice.append(f"no commit in the records ({reason}): they have the code's hash alone")
        return "\n".join([*expected.announced(due), *advice])

    def _set_paths(self) -> None:
        """Have jobs import this package first, whatever is installed, by the `python` that runs Snakemake."""
        for name, first in (
            ("PYTHONPATH", str(PACKAGE_DIR.parent)),
            ("PATH", os.path.dirname(sys.executable)),
        ):
            others = [p for p in os.environ.get(name, "").split(os.pathsep) if p not in ("", first)]
            os.environ[name] = os.pathsep.join([first, *others])

    def _set_environment_of_jobs(self) -> None:
        """Set the variables that this process's jobs inherit.

        They end with it. Cells of this host hand on what they compile, and the first that wants one
        starts a fork server. Whoever started this process may have done both, and that serves.
        """
        self._set_paths()
        if self.nodes:
            return
        os.environ[PIPELINE_VARIABLE] = str(os.getpid())
        os.environ.setdefault(fork_server.SERVER_VARIABLE, f"siliconprof-{secrets.token_hex(8)}")
        if scratch.CODE_VARIABLE not in os.environ:
            scratch.run_folder(self._folder)

    def ended(self) -> str:
        """Return the summary of the page and its path, where this run has made it."""
        for summary, page in (("summary.txt", "report.html"), ("quick/summary.txt", "quick.html")):
            path = self._folder / summary
            if path.exists() and path.stat().st_mtime >= self._began_s:
                return f"{path.read_text(encoding='utf-8')}report: {self.results}/{page}"
        return ""


class FailedJobs(logging.Filter):
    """Prints a line for each failed job, its rule, why, and its log, and keeps its command off the terminal.

    `quiet: rules` of the default profile keeps jobs from filling the terminal, and with them hides all
    three; what Snakemake still prints is the command, of several kilobytes where it holds a cell.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether Snakemake's handlers get a message."""
        if getattr(record, "event", None) == JOB_ERROR:
            print(failed_job(record.rule_name, record.log), flush=True)  # type: ignore[attr-defined]
        begin, part = COMMAND
        text = record.getMessage()
        return not (text.startswith(begin) and part in text)


def failed_job(rule: str, logs: Sequence[str]) -> str:
    """`rule aggregate failed: KeyError: 'host'; its log: results/logs/aggregate.log`."""
    where = f"; its log: {logs[0]}" if logs else ""
    return f"rule {rule} failed: {_last_line(logs) or 'it was killed, or said nothing'}{where}"


def _last_line(logs: Sequence[str]) -> str:
    for log in map(Path, logs):
        if log.is_file():
            with log.open(encoding="utf-8", errors="replace") as lines:
                last = deque((text for text in lines if text.strip()), maxlen=1)
            return printable("".join(last).strip())[:LONGEST_REASON]
    return ""
