"""What the rules look up of a run's files, code, data sets and models: all that needs no cell."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from siliconprof import fingerprint, plugins
from siliconprof.cells import cluster, config, matrix
from siliconprof.datasets import dataset_spec, model_config, model_facts, sources
from siliconprof.errors import UserError, nearest, printable
from siliconprof.hosts import detect, host_file, machine, registry
from siliconprof.plugins import CHECKOUT
from siliconprof.store import record, validation
from siliconprof.store.cell import canonical_json


def in_lines(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that a `UserError` reaches Snakemake as a `WorkflowError` of its lines."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except UserError as error:
            raise WorkflowError(printable(str(error))) from None

    return called


def one_of(values: Iterable[str]) -> str:
    """A regular expression of these values; of nothing where there are none."""
    return "|".join(map(re.escape, sorted(values))) or "(?!)"


class Files:
    """What a run reads and makes.

    Args:
        raw: Snakemake's `config`.
        workflow: Snakemake's; None outside of it.
    """

    def __init__(self, raw: Mapping[str, Any], workflow: Any) -> None:
        for folder in (Path.cwd(), CHECKOUT):
            if {*"{}"} & {*str(folder)}:
                raise UserError(
                    f"{folder}: Snakemake takes a name in braces for a variable; rename the folder, or "
                    "move the project into another one"
                )
        machine.require_room(Path.cwd())
        self._workflow = workflow
        given = workflow.config_settings.config if workflow else {}
        nested = {name: value for name, value in given.items() if not isinstance(value, str)}
        raw = config.with_types(raw, nested)
        self.config, self._devices = config.resolve(raw), registry.load(registry.shipped())
        for file in workflow.configfiles if workflow else ():
            validation.load_yaml(file)  # Snakemake takes the last of two equal keys
        self.results = matrix.results_folder(self.config)
        self._folder = Path(self.results)
        fingerprint.load_cache(self._folder / "history" / fingerprint.CACHE_FILE)
        self.nodes = bool(self.config["cluster"])
        if self.nodes:
            cluster.missing(self.config, self._devices)
            self.labels = cluster.chosen(self.config)
        else:
            self.labels = [host_file.label(self._folder, self.config["host"])]

    # -- files --------------------------------------------------------------------------------

    def shipped(self, path: str) -> str:
        """Return a file that comes with this package, marked so that no module prefix is put before it."""
        own = plugins.shipped(path)
        return (own.absolute() if self.config["prefix"] else own).as_posix()

    @in_lines
    def check_prefix(self, made: str) -> None:
        """Refuse a module whose `prefix:` its config does not name.

        Args:
            made: the path of results/matrix.json as the rules have it.
        """
        if (folder := Path(made).parent.as_posix()) != self.results:
            raise UserError(
                f"config: prefix: results lie in {self.results}, by the module's prefix in {folder}; "
                "give the config the same prefix"
            )

    def listed(self, pattern: str) -> list[str]:
        """Files that come with this package and become inputs of rules."""
        found = sorted(path for path in CHECKOUT.glob(pattern) if path.is_file())
        return [self.shipped(path.relative_to(CHECKOUT).as_posix()) for path in found]

    def text(self, wildcards: Any) -> str:
        """The resolved config as JSON, as a function: in a plain text `{x}` would be a wildcard."""
        return canonical_json(self.config)

    @property
    def host_files(self) -> list[str]:
        """Of the hosts that this run measures."""
        return [f"results/hosts/{label}.json" for label in self.labels]

    def promised(self, made: list[str]) -> Callable[[Any], list[str]]:
        """Return the report's files beside its records as an input function, so that a deleted one is made again.

        A batch of the records must not ask for them, since they need all records.
        """

        def asked(wildcards: Any) -> list[str]:
            return [] if self._workflow.dag_settings.batch else [*self.host_files, *made]

        return asked

    def in_batches_of(self, rule: str, inputs: Iterable[Any]) -> list[Callable[[Any], list[str]]]:
        """Return a rule's inputs as input functions of another rule, which follow `--batch` of that rule.

        Snakemake does nothing about a `--batch` of a rule that is neither target nor makes a file.
        """

        def asked(part: Any, wildcards: Any) -> list[str]:
            files = part(wildcards) if callable(part) else [part]
            batch = self._workflow.dag_settings.batch
            if batch is None or batch.rulename != rule:
                return files
            return files[batch.batches - batch.idx :: batch.batches]  # a single one in the last

        return [partial(asked, part) for part in inputs]

    @property
    def file_of_host(self) -> str:
        """Return the file that must exist of a cell's host before the cell is measured."""
        return "results/hosts/{host}.json" if self.nodes else "results/machines/{host}.json"

    @property
    @in_lines
    def focus(self) -> list[str]:
        """The file of the host that the page is about; empty where that is the first host with cells."""
        asked = self.config["report"]["host"]
        known = {*self.labels, *(path.stem for path in (self._folder / "hosts").glob("*.json"))}
        known -= {cluster.RESERVED}
        if asked is None:
            return []
        if asked not in known:
            raise UserError(
                f"config: report.host: nothing is known of '{asked}'; known: "
                f"{', '.join(sorted(known))}{nearest(asked, known)}"
            )
        return [f"results/hosts/{asked}.json"]

    @cached_property
    def foreign(self) -> list[str]:
        """Records of hosts that this run does not measure: inputs that belong to no rule."""
        found = record.foreign_records(self._folder, self.labels)
        return [self._without_prefix(path.as_posix()) for path in found]

    def _without_prefix(self, path: str) -> str:
        """A path below the results as a rule has it: Snakemake puts the module's prefix before it."""
        return path[len(self.results) - len("results") :]

    @property
    def reference(self) -> list[str]:
        """Folders of shipped bundles."""
        return [f"results/reference/{Path(z).stem}" for z in self.listed("config/measured/*.zip")]

    # -- code ---------------------------------------------------------------------------------

    @cached_property
    def code(self) -> str:
        """The fingerprint of what makes tables and the page."""
        return fingerprint.hash_of_package()

    @cached_property
    def conda(self) -> Any:
        """The environment of what measures: by a label's device, else by the host."""
        if self.nodes:
            return self._conda_of_label
        cuda = bool(machine.read_text("/proc/driver/nvidia/version"))
        return _environment("apple" if sys.platform == "darwin" else "cuda" if cuda else "cpu")

    def _conda_of_label(self, wildcards: Any) -> str:
        device = self.config["cluster"][wildcards.host]["device"]
        return _environment("cpu" if device.startswith(cluster.ANY_CPU) else "cuda")

    # -- data ---------------------------------------------------------------------------------

    @cached_property
    def datasets(self) -> dict[str, str]:
        """Name -> canonical JSON of the entry."""
        entries = self.config["datasets"].items()
        return {name: canonical_json({"name": name} | entry) for name, entry in entries}

    @cached_property
    def sources(self) -> dict[str, str]:
        """Name -> a text that changes with the files of the user's folder."""
        folder = self._folder / "data"
        return {name: sources.state(folder / name) for name in self.config["datasets"]}

    @cached_property
    def _workload_places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.config["workloads"])}

    def data_priority(self, wildcards: Any) -> float:
        """Just before the first workload that reads a data set, so that no cell waits for others'."""
        readers = self.config["workloads"].items()
        places = (self._workload_places[n] for n, e in readers if e.get("dataset") == wildcards[0])
        return 0.5 - min(places, default=0)

    kinds = dataset_spec.DATASET_KINDS

    def files_of(self, kind: str) -> list[str]:
        """Return the files that are made of a kind's data sets."""
        return [f"results/data/{{dataset}}/{name}" for name in dataset_spec.files(kind)]

    def datasets_of(self, kind: str) -> str:
        """A regular expression of the names of a kind's data sets."""
        return one_of(n for n, e in self.config["datasets"].items() if e["kind"] == kind)

    def makes(self, kind: str) -> str:
        """Return the code and the library versions that decide a kind's arrays."""
        packages = detect.package_versions()
        libraries = {name: packages.get(name) for name in dataset_spec.KIND_LIBRARIES[kind]}
        code = fingerprint.fingerprint_of(
            [dataset_spec.MAKERS[kind], "siliconprof.datasets.prepare"]
        ).sha256
        makes = {"code": code, "libraries": libraries}
        if kind == "text":  # of the package's own data sets
            makes["builtin"] = fingerprint.hash_of_file(dataset_spec.BUILTIN_TEXT)
        return canonical_json(makes)

    # -- models -------------------------------------------------------------------------------

    @cached_property
    def models(self) -> dict[str, str]:
        """Name of a model's file -> its spec as canonical JSON."""
        specs = matrix.model_specs(self.config).items()
        return {name: canonical_json(spec) for name, spec in specs}

    @cached_property
    def model_sources(self) -> dict[str, str | None]:
        """Name -> the checksum of the config.json in a user's folder; None for the hub's."""
        specs = matrix.model_specs(self.config).items()
        return {name: model_config.state(spec["model"]) for name, spec in specs}

    @cached_property
    def makes_models(self) -> str:
        """The code and the library versions that decide a model's facts."""
        packages = detect.package_versions()
        libraries = {name: packages.get(name) for name in matrix.MODEL_LIBRARIES}
        code = fingerprint.fingerprint_of(["siliconprof.cells.model_file"]).sha256
        return canonical_json({"code": code, "libraries": libraries})

    def _missing_models(self) -> list[str]:
        """Return the models whose files do not exist yet."""
        folder = self._folder / model_facts.MODELS_FOLDER
        return [name for name in self.models if not (folder / f"{name}.json").exists()]


def _environment(name: str) -> str:
    return f"../../envs/{name}.yaml"  # from a file of rules, which may be a URL
