"""Make `results/` that were copied without `.snakemake/` count, as far as they are verified.

    siliconprof adopt [--configfile F] [--workflow-profile DIR]

Without its metadata Snakemake has only modification times to go by, and a copy's are random: it
measures everything again, or takes for valid what was measured with other code. So every record of
today's matrix is compared with what would be measured today: the cell, the code, the versions that
it uses, the data. `snakemake --touch` restores the metadata of those that agree. The others keep
their place, but are marked as old, so that the next run measures them again; a copy of every
record is in `results/history`. With a profile that submits jobs it is about the records of the
cluster's labels, as a run through it would be.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof import (
    cluster,
    dataset_spec,
    detect,
    freshness,
    hosts,
    matrix,
    record,
    records,
    registry,
)
from siliconprof.errors import UserError, stage
from siliconprof.lifetime import PIPELINE_VARIABLE
from siliconprof.pipeline import REGISTRY, RESULTS
from siliconprof.plan import load_experiment
from siliconprof.startup import LONG_AGO_S

CONFIG = "config/config.yaml"
FILES_PER_CALL = 1000  # of Snakemake; the system limits the length of a command line


@dataclass(frozen=True)
class Adoption:
    """What agreed with today's experiment and what did not."""

    adopted: Sequence[str]  # records
    refused: Mapping[str, str]  # record -> reason
    data: Sequence[str]  # folders of adopted data sets
    data_refused: Mapping[str, str]  # folder of a data set -> reason
    missing: int  # cells without a record

    def lines(self) -> list[str]:
        """For a person."""
        found = [f"adopted {len(self.adopted)} of {len(self.adopted) + len(self.refused)} records"]
        if self.data or self.data_refused:
            total = len(self.data) + len(self.data_refused)
            found[0] += f" and {len(self.data)} of {total} data sets"
        for path, reason in [*self.data_refused.items(), *self.refused.items()]:
            found.append(f"not adopted: {path}: {reason}")
        if self.missing:
            found.append(f"cells without a record: {self.missing}")
        if self.refused or self.missing:
            found.append("the next run measures what is missing or was not adopted")
        return found


# -- verifying ---------------------------------------------------------------------------------


def verify_record(
    data: Mapping[str, Any], planned: matrix.PlannedCell, tokens: Mapping[str, str]
) -> None:
    """Compare a sound record with what would be measured today.

    Args:
        tokens: folder of a verified data set -> SHA-256 of its tokens.

    Raises:
        UserError: all differences, in one line.
    """
    found = freshness.differences(planned, data, tokens)
    if found:
        raise UserError("; ".join(found))


# -- Snakemake ---------------------------------------------------------------------------------


def _snakemake(options: Sequence[str], how: Sequence[str], files: Sequence[str]) -> str:
    """Call Snakemake; the end of what it said when it failed, else nothing."""
    command = [sys.executable, "-m", "snakemake", *options, *how]
    mine = os.environ | {PIPELINE_VARIABLE: str(os.getpid())}  # it ends with this process
    command += ["--", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=mine)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return " ".join(said[-3:]) or "no output" if done.returncode else ""


def restore_metadata(files: Sequence[str], how: Sequence[str]) -> None:
    """Have Snakemake take output files as made today, by these rules, from these inputs.

    `--force`, because without it `--touch` passes over a file that is newer than its inputs, and
    such a file stays without metadata. No timed cell runs, so they need not go one by one.

    Args:
        how: which run they belong to, as options of Snakemake.

    Raises:
        UserError: Snakemake refused; what it said.
    """
    for start in range(0, len(files), FILES_PER_CALL):
        chunk = files[start : start + FILES_PER_CALL]
        options = ["--cores", "64", "--resources", "accelerator=64", "--touch", "--force"]
        said = _snakemake(options, how, chunk)
        if said:
            raise UserError(f"snakemake --touch failed: {said}")


def mark_old(files: Sequence[str], how: Sequence[str]) -> None:
    """Have Snakemake make existing output files again at the next run; their content stays.

    Args:
        how: as for `restore_metadata`.
    """
    existing = [path for path in files if Path(path).exists()]
    for start in range(0, len(existing), FILES_PER_CALL):
        chunk = existing[start : start + FILES_PER_CALL]
        # It fails, once done, when a file has no metadata: as wanted.
        _snakemake(["--cores", "1", "--cleanup-metadata", *chunk], how, [])
        for path in filter(os.path.exists, chunk):  # what is damaged has gone
            os.utime(path, (LONG_AGO_S, LONG_AGO_S))


# -- the whole ---------------------------------------------------------------------------------


def adopt(configfile: str | None = None, profile: str | None = None) -> Adoption:
    """Verify the records and data sets of the checkout in the current folder; adopt the sound.

    Args:
        configfile: as given to Snakemake; None for the default experiment.
        profile: a workflow profile that submits jobs; None for a run on this host.

    Raises:
        UserError: no checkout, a bad config, another machine's results, or Snakemake refused.
    """
    if not Path("Snakefile").is_file():
        raise UserError("no Snakefile in the current folder: run this in a checkout")
    experiment = load_experiment(configfile or CONFIG)
    devices = registry.load(REGISTRY)
    how = ["--workflow-profile", profile] if profile else []
    how += ["--configfile", configfile] if configfile else []
    outdated: list[str] = []
    if profile:
        expansions, outdated = _on_nodes(experiment, how)
    else:
        host = hosts.resolve(RESULTS, experiment["host"], devices, write=False)
        expansions = [matrix.expand(experiment, devices, host)]
    # as every run does: Snakemake would not start with a damaged one among them
    foreign = matrix.foreign_records(RESULTS, [expansion.host for expansion in expansions])
    records.set_damaged_aside(foreign, RESULTS, False)
    tokens, data_refused = freshness.verified_data(experiment["datasets"])
    adopted: list[str] = []
    refused: dict[str, str] = {}
    missing = 0
    for planned in (planned for expansion in expansions for planned in expansion.cells):
        path = matrix.record_path(planned.cell)
        if not Path(path).exists():
            missing += 1
            continue
        try:
            _check(path, planned, tokens)
            adopted.append(path)
        except UserError as error:
            refused[path] = str(error).removeprefix(f"{path}: ")
    verified = _data_files(tokens, experiment)
    restore_metadata([*verified, *adopted], how)
    stale = _data_files(data_refused, experiment)
    mark_old([*stale, *refused, *outdated], how)  # last: touching a record touches its host file
    return Adoption(adopted, refused, list(tokens), data_refused, missing)


def _on_nodes(
    experiment: Mapping[str, Any], how: Sequence[str]
) -> tuple[list[matrix.Matrix], list[str]]:
    """(the cells of the labels of which a host file lies here, those files that may be outdated).

    A node is not asked. Its file is taken when it was made with the packages that are installed
    here; with others somebody looks at a node again, at the next run.
    """
    found, outdated = [], []
    for label in cluster.chosen(experiment):
        path = f"results/hosts/{label}.json"
        if not Path(path).exists():
            continue
        host = hosts.stored(RESULTS, label)
        expansion = matrix.expand_node(experiment, host)
        if expansion.not_measured:  # the next run looks again in any case
            continue
        restore_metadata([path], how)
        if host["packages"] != detect.package_versions():
            outdated.append(path)
        found.append(expansion)
    return found, outdated


def _data_files(folders: Iterable[str], experiment: Mapping[str, Any]) -> list[str]:
    """What the prepare stages write into these folders of data sets."""
    return [
        f"{folder}/{file}"
        for folder in folders
        for file in dataset_spec.files(experiment["datasets"][Path(folder).name]["kind"])
    ]


def _check(path: str, planned: matrix.PlannedCell, tokens: Mapping[str, str]) -> None:
    """Verify the record at a path, and see to its copy in the history.

    Raises:
        UserError: why it is not adopted; a damaged one has been set aside.
    """
    records.set_damaged_aside([path], RESULTS, dry_run=False)
    data = record.read_in_place(Path(path))
    record.keep_in_history(data, Path(path).read_text(encoding="utf-8"), RESULTS / "history")
    verify_record(data, planned, tokens)


def main(argv: Sequence[str] | None = None) -> int:
    """Adopt and say so; 1 when something was not adopted."""
    parser = argparse.ArgumentParser(
        prog="siliconprof adopt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--configfile", metavar="FILE", help=f"default: {CONFIG}")
    parser.add_argument(
        "--workflow-profile", metavar="DIR", help="adopt what was measured through this profile"
    )
    arguments = parser.parse_args(argv)
    done = adopt(arguments.configfile, arguments.workflow_profile)
    print("\n".join(done.lines()))
    return 1 if done.refused or done.data_refused else 0


if __name__ == "__main__":
    sys.exit(stage(main))
