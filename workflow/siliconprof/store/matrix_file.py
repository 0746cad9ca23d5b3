"""results/matrix.json, as every stage after the expansion reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store import documents, model
from siliconprof.store.cell import Cell


class Planned(model.Part, extra="ignore", strict=False):
    """A cell of the run, and the path of its record."""

    cell: Cell
    record: str


class Matrix(model.Part):
    """The expansion of a config, see `cells.matrix`."""

    experiment: dict[str, Any]  # the resolved config
    host: dict[str, Any]  # the host file that the page is about
    hosts: list[dict[str, Any]]  # of all that the run measures
    cells: list[Planned]
    not_measured: list[dict[str, str]]  # a device, and the reason

    @property
    def labels(self) -> list[str]:
        """Labels of the hosts that the run measures; the page may be about another."""
        return [host["label"] for host in self.hosts]


def read(path: Path) -> Matrix:
    """Read results/matrix.json.

    Raises:
        UserError: the file is missing or damaged; one line.
    """
    try:
        return model.checked(Matrix, documents.read(path), "")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `snakemake --cores 1 report` makes it") from None
    except (UserError, ValueError, OSError) as error:
        raise UserError(
            f"{path}: damaged ({str(error).splitlines()[0]}); delete it to have it made again"
        ) from None
