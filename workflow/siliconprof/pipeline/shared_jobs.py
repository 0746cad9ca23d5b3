"""Cells of one label that share a job of Slurm.

A cheap cell as a job of its own costs the job: Snakemake starts in it, and libraries are imported
there for this cell alone. So the plug-in's executor is extended where Snakemake's interface means
it to be: `run_jobs` may submit many jobs at once, as long as each is reported for itself. A job of
the cluster then is one Snakemake on the node that measures its cells one after the other, without
another Snakemake as a job step below it. As many share one as the resource `cells_per_job` says.

Each cell stays a job of the main process's Snakemake, and is done when its record is there,
whatever becomes of the rest. Snakemake's own job groups end as one: what a killed group has
measured is deleted (`Job.cleanup`). And once another label's node is detected, Snakemake 9 forms
groups anew, of groups that run already: cells are measured twice, and it ends with a KeyError
(`DAG._update_group_components`, tried with 9.27.1).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from snakemake.iocontainers import ResourceList
from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from siliconprof.errors import UserError
from siliconprof.pipeline import slurm
from siliconprof.store import record

CELLS_PER_JOB = "cells_per_job"  # the resource; without it each job is submitted alone


class Shared:
    """What the plug-in submits: to it a job like the first, with the targets and the time of all.

    Args:
        jobs: Snakemake's, of one rule; at least one.
    """

    def __init__(self, jobs: Sequence[Any]) -> None:
        self.jobs = jobs
        minutes = sum(job.resources.get("runtime") or 0 for job in jobs)
        self.resources = ResourceList(
            fromdict=dict(jobs[0].resources.items()) | {"runtime": minutes}
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jobs[0], name)

    def log_info(self) -> None:
        """Say of each job that it is about to run."""
        for job in self.jobs:
            job.log_info()

    def get_target_spec(self) -> list[Any]:
        """What the Snakemake in the job makes."""
        return [target for job in self.jobs for target in job.get_target_spec()]

    def get_wait_for_files(self) -> list[Any]:
        """The inputs that a late file system must show there first."""
        return list(dict.fromkeys(file for job in self.jobs for file in job.get_wait_for_files()))


class SharingExecutor(Executor):
    """The plug-in's executor, with jobs that share."""

    next_seconds_between_status_checks: float
    _news = 0.0  # monotonic: when a job was submitted or ended last, or a cell in it

    def run_jobs(self, jobs: Sequence[Any]) -> None:
        """Submit jobs that are ready: those of a rule together, in the order of the plan."""
        shared = []
        ordered = sorted(jobs, key=lambda job: (job.rule.name, -job.priority))
        for _, group in groupby(ordered, key=attrgetter("rule.name")):
            alike = list(group)
            size = alike[0].resources.get(CELLS_PER_JOB) or 1
            shared += [Shared(alike[i : i + size]) for i in range(0, len(alike), size)]
        super().run_jobs(shared)

    def additional_general_args(self) -> str:
        """The Snakemake in a job measures one cell at a time, and the next where one has failed."""
        return "--resources accelerator=1 --keep-going"

    def report_job_submission(self, job_info: SubmittedJobInfo, register_job: bool = True) -> None:
        """Tell Snakemake of each job that was submitted."""
        self._news = time.monotonic()
        for info in _each(job_info):
            super().report_job_submission(info, register_job)

    def report_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **more: Any
    ) -> None:
        """Tell Snakemake which jobs have failed; cells that were measured before have not."""
        for info in _each(job_info):
            if _measured(info):
                self.report_job_success(info)
            else:
                super().report_job_error(info, msg, **more)

    async def check_active_jobs(
        self, active_jobs: Sequence[SubmittedJobInfo]
    ) -> AsyncIterator[SubmittedJobInfo]:
        """Report the cells that are done, while others of their job go on; yield what is not.

        A record that the last look has found is no longer touched by the Snakemake in the job. The
        last cell of a job ends with the job. The next look comes when the time since the last news
        has doubled, or when the plug-in would look, which waits 10 s more each time.
        """
        busy = {info.external_jobid for info in active_jobs if not info.aux["measured"]}
        left = []
        for info in active_jobs:
            if info.aux["measured"] and info.external_jobid in busy:
                self.report_job_success(info)
            else:
                left.append(info)
        known = sum(info.aux["measured"] for info in left)
        for info in left:
            info.aux["measured"] = _measured(info)
        still_active = [info async for info in super().check_active_jobs(left)]
        for info in still_active:
            yield info
        found = sum(info.aux["measured"] for info in left)
        if found > known or len(still_active) < len(active_jobs):
            self._news = time.monotonic()
        wait_s = self.workflow.executor_settings.init_seconds_before_status_checks
        wait_s = max(wait_s, time.monotonic() - self._news)
        self.next_seconds_between_status_checks = min(
            wait_s, self.next_seconds_between_status_checks
        )


def _each(info: SubmittedJobInfo) -> list[SubmittedJobInfo]:
    """One for each job that shares one of Slurm's."""
    if not isinstance(info.job, Shared):
        return [info]
    aux = (info.aux or {}) | {"measured": False}
    return [SubmittedJobInfo(job, info.external_jobid, aux.copy()) for job in info.job.jobs]


def _measured(info: SubmittedJobInfo) -> bool:
    """Whether a job of Slurm has left this cell's record: an earlier one has another job's id."""
    try:
        found = record.load(Path(info.job.output[0]), check_schema=False)
    except UserError:
        return False
    job_id = found.environment.scheduler_job.get("job_id")
    return info.external_jobid is not None and job_id == info.external_jobid


def install() -> None:
    """Have the Snakemake of this process, which has read its command line, submit shared jobs."""
    ExecutorPluginRegistry().get_plugin(slurm.EXECUTOR).executor = SharingExecutor
