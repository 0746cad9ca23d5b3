"""What the Snakefile asks at parse time: config, host, matrix, in one call.

Every job of a cluster parses the Snakefile again, under another hostname. So only the main
process looks at the host (in a process of its own; no framework is ever imported here), checks
records and may stop; jobs read what it has stored.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from siliconprof import closure, fingerprint, plugins
from siliconprof.cells import cluster, config, matrix
from siliconprof.datasets import dataset_spec, preparing, source_files
from siliconprof.errors import USER_ERROR_EXIT_STATUS, CannotWrite, UserError, printable
from siliconprof.hosts import detect, host_file, registry
from siliconprof.lifetime import PIPELINE_VARIABLE, end_with_pipeline
from siliconprof.measure import fork_server, takeover
from siliconprof.measure.child import PROGRESS_FILE_VARIABLE
from siliconprof.pipeline import (
    cluster_run,
    doctor,
    ending,
    progress,
    provenance,
    run_here,
    startup,
)
from siliconprof.pipeline.run import command as command_again
from siliconprof.probes import interference
from siliconprof.session.timing import Plan
from siliconprof.store import records, temporary, validation
from siliconprof.store.cell import canonical_json

RESULTS = Path("results")
REGISTRY = Path("config/devices.yaml")
BUNDLE_SCHEMAS = [f"workflow/schemas/{name}.schema.yaml" for name in ("record", "host")]
RETRIED = "results/retried.txt"
BUILTIN_TEXT = "workflow/siliconprof/datasets/data/builtin_text.txt"
# Plug-ins that a stage loads by name: tables have a column for what each workload declares, the page
# shows what each probe does, and a cell depends on the code and the libraries of all its plug-ins.
# What draws is looked up by name as well.
PLUGINS_OF = {
    **dict.fromkeys(
        ("analyse.aggregate", "pipeline.analyse", "remote.bundle_import"),
        ("workloads", "probes"),  # they declare columns of the tables
    ),
    "render.draw": ("backends", "workloads", "trainers", "probes", "render"),
    "cells.matrix": ("backends", "workloads", "trainers", "probes"),
}


@dataclass(frozen=True)
class Workflow:
    """All that rules look up."""

    experiment: Mapping[str, Any]  # resolved config
    # Label of a host that this run measures -> path of a cell -> what its rule needs.
    cells: Callable[[str], Mapping[str, Mapping[str, Any]]]
    measuring: list[cluster_run.Measuring]
    detecting: list[cluster_run.Detecting]
    host_files: list[str]  # of the hosts that this run measures
    detected: list[str]  # those of them that a rule of this run makes: nodes' of a cluster
    facts: str | None  # changes with what is known of the one host of a run here
    focus: list[str]  # file of the host that the page is about, where the config decides
    not_measured: str  # devices with reasons, as JSON
    retried: list[str]  # made when disturbed cells were measured again; none where none ever is
    records: list[Callable[[Any], list[str]]]  # of those hosts; on a cluster it shows later which
    foreign: list[str]  # other hosts', plain leaf inputs
    reference: list[str]  # folders of shipped bundles
    template: list[str]  # the page's own files
    published: list[str]
    shown: provenance.Shown  # what Snakemake's own report says of figures and tables
    again: str  # the command that makes it all again
    datasets: Mapping[str, str]  # name -> canonical JSON of the entry
    dataset_patterns: Mapping[str, str]  # kind -> regular expression of its data sets' names
    dataset_texts: Mapping[str, list[str]]  # name -> the built-in text, where it is of that
    methods: Mapping[str, str]  # kind -> what decides the arrays that are made of its data sets
    sources: Mapping[str, str]  # name -> a word that changes with the files of a person's folder

    def asked(self, wildcards: Any) -> str:
        """The experiment as JSON, as a function: in a plain text `{x}` would be a wildcard."""
        return canonical_json(self.experiment)

    def of_cell(self, key: str) -> Callable[[Any], Any]:
        """A function for a part of a cell's rule; `lookup` would walk through every cell each time.

        Args:
            key: see `Matrix.by_path`.
        """

        def needed(wildcards: Any) -> Any:
            known = self.cells(wildcards.cell.split("/")[0])
            if wildcards.cell not in known:
                what = f"{wildcards.cell}: no cell of this experiment"
                raise UserError(f"{what}, see `siliconprof plan`")
            return known[wildcards.cell][key]

        return needed

    def time_limit_s(self) -> str | Callable[[Any], str]:
        """How long a cell may take, which changes none of its numbers.

        Snakemake calls a function once for each job, so cells that all have the same get a constant.
        """
        entries = self.experiment["workloads"].values()
        limits = {str(Plan.of(entry["timing"]).time_limit_s) for entry in entries}
        return limits.pop() if len(limits) == 1 else self.of_cell("time_limit_s")

    def closing_lines(self, targets: Collection[str]) -> str:
        """What a run has made, for a person: the page's answer in a dozen lines, and its path.

        Args:
            targets: those that it was asked for; none is the page.

        Raises:
            SystemExit: the page leaves something out.
        """
        if ending.wants_page(targets):
            ending.say_what_is_missing()
            return f"{ending.summary()}report: {ending.PAGE}"
        if "measured" in targets:
            labels = [Path(file).stem for file in self.host_files]
            return f"records: {', '.join(f'results/records/{label}/' for label in labels)}"
        if "figures" in targets:
            return "figures: results/print/"
        return f"made: {', '.join(sorted(targets))}"

    def code(self, stage: str) -> list[str]:
        """The import closure of a stage's module and of the plug-ins it loads, as inputs."""
        roots = [
            plugins.module_name(kind, name)
            for kind in PLUGINS_OF.get(stage, ())
            for name in plugins.names(kind)
        ]
        return closure.files([f"siliconprof.{stage}", *roots])


INTERRUPTED_STATUS = 130  # what a shell says of a program that Ctrl-C has ended
# Options of Snakemake under which no job runs, beside those of a dry run.
ONLY_LOOKS = {
    *("-l", "-S", "-D", "--lint", "--list-rules", "--summary", "--detailed-summary", "--dag"),
    *("--rulegraph", "--filegraph", "-t", "--touch", "--unlock", "--report", "--cleanup-metadata"),
}


def runs_nothing(settings: Any, argv: Sequence[str]) -> bool:
    """Whether this is `snakemake -n`, or another that measures nothing.

    Args:
        settings: Snakemake's `OutputSettings`.
        argv: the command line; of other options Snakemake has no settings yet.
    """
    return settings.dryrun or any(word.partition("=")[0] in ONLY_LOOKS for word in argv)


def forces_measuring(settings: Any) -> bool:
    """Whether Snakemake is told to measure cells whose records are up to date.

    Args:
        settings: Snakemake's `DAGSettings`.
    """
    named = {*settings.forcerun, *(settings.targets if settings.forcetargets else ())}
    return settings.forceall or any(
        str(name).startswith(("measure", "results/records/")) for name in named
    )


def _store_code_cache() -> None:
    """Keep what was read of the code; what cannot be written is done without."""
    text = fingerprint.cache_text()
    if text:
        with suppress(CannotWrite, OSError):
            (RESULTS / "history").mkdir(parents=True, exist_ok=True)
            temporary.write(RESULTS / "history" / fingerprint.CACHE, text)


def _methods() -> dict[str, str]:
    """Kind of data set -> what decides the arrays that its stage makes: code and libraries."""
    packages = detect.package_versions()
    return {
        kind: canonical_json(
            {
                "code": fingerprint.of([maker, "siliconprof.datasets.prepare"]).sha256,
                "libraries": {name: packages.get(name) for name in dataset_spec.LIBRARIES[kind]},
            }
        )
        for kind, maker in preparing.MAKERS.items()
    }


def _files(pattern: str) -> list[Path]:
    """Files that become inputs of rules.

    Raises:
        UserError: a name that Snakemake would read as a pattern, or that no terminal shows.
    """
    found = sorted(path for path in Path().glob(pattern) if path.is_file())
    lines = [
        f"{validation.one_line(path.as_posix())}: rename it: letters, digits, '.', '_' and '-'"
        for path in found
        if set(path.name) & set("{}") or not path.name.isprintable()
    ]
    if lines:
        raise UserError("\n".join(lines))
    return found


@contextmanager
def _in_plain_lines() -> Iterator[None]:
    """Ends the process with the lines of a `UserError`, as a stage does, in place of a traceback."""
    try:
        yield
    except UserError as error:
        print(printable(str(error)), file=sys.stderr)
        sys.stderr.flush()
        raise SystemExit(USER_ERROR_EXIT_STATUS) from None


_display: progress.CellHandler | None = None  # of a run that may write
_remedies: Callable[[], Iterator[str]] | None = None  # of the host, where its cells are measured


def started(settings: Any, dag: Any) -> None:
    """Snakemake has its lock on this folder, and is about to run jobs.

    Args:
        settings: Snakemake's `DAGSettings`.
        dag: Snakemake's `DAG`, which has decided what runs.
    """
    if _display and _remedies and any(j.rule.name == "measure" for j in dag.needrun_jobs()):
        for line in _remedies():
            _display.say(line)
    if forces_measuring(settings):
        takeover.offer([], RESULTS / "history")


def failed() -> None:
    """A run has failed, or a person has ended it.

    Raises:
        SystemExit: the latter, of which Snakemake has nothing more to say.
    """
    interruption = ""
    if _display:
        _display.end()
        interruption = _display.state.interruption()
    if interruption:
        print(interruption, file=sys.stderr, flush=True)
        raise SystemExit(INTERRUPTED_STATUS)


def check_readable(configfile: str) -> str:
    """The same name, once the file is known to be YAML: Snakemake would not say where it is not."""
    with _in_plain_lines():
        config.read(configfile)
    return configfile


def _checked(raw: Mapping[str, Any], here: bool) -> tuple[dict[str, Any], registry.Registry]:
    """(experiment, registry), both checked before anything is said.

    Args:
        here: whether this host is the one to be measured, and may be looked at.

    Raises:
        UserError: all mistakes of both, one line each.
    """
    mistakes: list[str] = []
    devices: registry.Registry = {"devices": {}}
    try:
        devices = registry.load(REGISTRY)
    except UserError as error:
        mistakes.append(str(error))
    try:
        experiment = config.resolve(raw)
    except UserError as error:
        mistakes.insert(0, str(error))
        if here and len(mistakes) == 1:
            mistakes += _unknown_devices(raw, devices)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return experiment, devices


def _unknown_devices(raw: Mapping[str, Any], devices: registry.Registry) -> list[str]:
    """Devices that nobody knows, of a config that has other mistakes as well."""
    asked, label = raw.get("devices"), raw.get("host", "auto")
    if not isinstance(asked, list) or not isinstance(label, str):
        return []
    try:
        host = host_file.resolve(RESULTS, label, devices, write=False)
        section = raw.get("cluster")
        named = {
            label: entry
            for label, entry in (section.items() if isinstance(section, Mapping) else ())
            if isinstance(entry, Mapping) and isinstance(entry.get("device"), str)
        }
        wanted = {"devices": [str(name) for name in asked], "cluster": named}
        matrix.select_devices(wanted, devices, host)
    except UserError as error:
        return [str(error)]
    return []


def _focus(experiment: Mapping[str, Any], run: run_here.Here | cluster_run.Nodes) -> list[str]:
    """File of the host that the page is about; none where the first with cells is.

    Raises:
        UserError: the config names a host of which nothing is known.
    """
    asked = experiment["report"]["host"]
    if asked is None:
        return [f"results/hosts/{label}.json" for label in run.focus]
    known = {path.stem for path in _files("results/hosts/*.json")} - {cluster.RESERVED}
    known |= {*run.labels}
    if asked not in known:
        raise UserError(
            f"config: report.host: nothing is known of '{asked}'; known: "
            f"{', '.join(sorted(known))}{validation.nearest(asked, known)}"
        )
    return [f"results/hosts/{asked}.json"]


@_in_plain_lines()
def prepare(
    raw: Mapping[str, Any],
    main_process: bool,
    dry_run: bool,
    through: str | None,
    checkpoints: Any,
    snakemake: Any,
) -> Workflow:
    """Resolve config, host and matrix; exit with clear lines when something is wrong.

    Args:
        raw: Snakemake's `config`.
        main_process: false in jobs that parse the Snakefile again.
        dry_run: nothing is written.
        through: the executor that jobs are submitted through; None when they stay here.
        checkpoints: Snakemake's.
        snakemake: Snakemake's workflow, whose settings come after the parse.
    """
    load, began_s = interference.ForeignLoad(), time.monotonic()
    for file in snakemake.overwrite_configfiles if main_process else ():
        if Path(file).is_file():  # a pipe can be read once only
            config.read(file)  # Snakemake has read it, and takes the last where a key stands twice
    fingerprint.load_cache(RESULTS / "history" / fingerprint.CACHE)
    experiment, devices = _checked(raw, here=through is None)
    run: run_here.Here | cluster_run.Nodes
    if through is None:
        run = run_here.Here(experiment, devices, RESULTS, main_process, dry_run)
    else:
        # A job takes the files of the nodes as they are.
        run = cluster_run.Nodes(experiment, devices, RESULTS, checkpoints if main_process else None)
    foreign = [path.as_posix() for path in records.foreign_records(RESULTS, run.labels)]
    if main_process:
        end_with_pipeline()  # of whoever started this one
    # A cluster job inherits the environment of the host that submitted it; the process that its
    # cell must not outlive is the one that parses here.
    os.environ[PIPELINE_VARIABLE] = str(os.getpid())
    os.environ.pop(PROGRESS_FILE_VARIABLE, None)
    if not main_process or through is not None:
        os.environ.pop(fork_server.VARIABLE, None)
    methods = _methods()
    if main_process:
        own = run.lying_here()
        lines = records.unreadable(own, foreign, RESULTS, dry_run)
        for path in records.misnamed(RESULTS):
            lines.append(f"{path}: not a name that a record has; it is used in nothing")
        for line in lines:
            print(printable(line).replace("\n", "\\n"), file=sys.stderr)
        if not dry_run:
            _store_code_cache()
            startup.prepare(RESULTS, run.planned())
            run.prepare()
            global _display
            _display = progress.attach(cells_here=through is None)
        else:
            startup.settle_records(run.planned(), RESULTS, dry_run=True)
    if isinstance(run, run_here.Here):
        global _remedies
        cells = [planned.cell for planned in run.planned()]
        has_fp16 = any(c.device_kind == "cpu" and c.precision.endswith("fp16") for c in cells)
        # Before anything of this run's own is started and not waited for.
        busy_cores = load.cores(time.monotonic() - began_s)
        _remedies = partial(doctor.before_a_run, run.host, busy_cores, has_fp16)
        if main_process and not dry_run:
            fork_server.start()
    workflow = Workflow(
        experiment=experiment,
        cells=run.cells,
        measuring=run.measuring(),
        detecting=run.detecting(),
        host_files=(host_files := [f"results/hosts/{label}.json" for label in run.labels]),
        detected=host_files if through else [],
        facts=run.facts_sha256,
        focus=_focus(experiment, run),
        not_measured=canonical_json(run.not_measured),
        retried=[RETRIED] if through is None and experiment["retry_contended_s"] else [],
        records=run.records(),
        foreign=foreign,
        reference=[f"results/reference/{path.stem}" for path in _files("config/measured/*.zip")],
        template=[path.as_posix() for path in _files("report/*")],
        published=[path.as_posix() for path in _files("config/published/*.csv")],
        shown=provenance.Shown(RESULTS / "figures"),
        again=command_again(snakemake.overwrite_configfiles, snakemake.config_settings.config),
        datasets={
            name: canonical_json({"name": name} | entry)
            for name, entry in experiment["datasets"].items()
        },
        dataset_patterns={
            kind: run_here.pattern(
                [n for n, e in experiment["datasets"].items() if e["kind"] == kind]
            )
            for kind in dataset_spec.KINDS
        },
        dataset_texts={
            name: [BUILTIN_TEXT] if (entry["kind"], entry["source"]) == ("text", "builtin") else []
            for name, entry in experiment["datasets"].items()
        },
        methods=methods,
        sources={
            name: source_files.state(Path(matrix.DATA_DIR) / name)
            for name in experiment["datasets"]
        },
    )
    gc.freeze()  # it all lives as long as the process, so the collector need not walk it again
    return workflow
