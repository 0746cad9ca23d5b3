"""Shared by the kinds of data set: what each of them makes for the prepare stage to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof import packages
from siliconprof.datasets.dataset_spec import KINDS, DatasetSpec
from siliconprof.errors import in_one_line

if TYPE_CHECKING:
    import numpy as np

BUILTIN_TEXT = Path(__file__).resolve().parent / "data" / "builtin_text.txt"
# Kind of data set -> the module that makes its arrays by `make(spec)`.
MAKERS = {kind: f"siliconprof.datasets.prepare_{kind}" for kind in KINDS}


@dataclass
class Origin:
    """Where the data came from."""

    revision: str | None = None  # the hub's commit, None where unknown
    synthetic: bool = False
    files: list[Path] = field(default_factory=list)  # of a folder: those read where they exist
    whole_folder: bool = False  # whether a new file in the folder would be read too
    # Names of what a known download holds besides.
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Material:
    """What a data set becomes."""

    origin: Origin
    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]  # what its kind adds to dataset.json
    tokenizer: bytes | None = None  # tokenizer.json of data with tokens


def versions(spec: DatasetSpec, *libraries: str) -> dict[str, str]:
    """The versions of the libraries that make the arrays, for dataset.json.

    Raises:
        PrepareError: a library is not installed, or does not load.
    """
    try:
        return {f"{name}_version": import_module(name).__version__ for name in libraries}
    except Exception as error:  # a broken one raises anything
        raise spec.error(packages.failure(libraries) or in_one_line(error)) from None
