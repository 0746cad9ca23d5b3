"""How to make it again: the command, the code, the versions, the hosts and when."""

import pandas as pd

from siliconprof import __version__, words
from siliconprof.analyse.frames import Frames
from siliconprof.render import summary
from siliconprof.render.exhibit import Exhibit

AGAIN = "snakemake --cores 1 report --configfile results/experiment.json --replace-workflow-config"


def rows(frames: Frames) -> pd.DataFrame:
    host, experiment, cells = frames.matrix.host, frames.matrix.experiment, frames.cells
    own, others = cells[cells["here"]], cells[~cells["here"]]
    machine = host["os"]
    facts = {
        "Command": AGAIN,
        "Experiment": str(experiment.get("experiment") or ""),
        "Code": _commits(own),
        "Measured": summary.when(own),
        "Host": summary.host_line(host),
        "System": f"{machine['system']} {machine['release']}, {machine['machine']}",
        "Driver": _versions(host["driver"]),
        "Packages": _versions(host["packages"]),
        "BLAS": _versions(host["blas"]),
        "BLAS of MLX": _given(own),
        "Page": f"made by siliconprof {__version__}",
        **{
            str(whose).capitalize(): f"{_commits(rows_)}, {summary.when(rows_)}"
            for whose, rows_ in others.groupby("whose", sort=False)
        },
    }
    known = [(name, value) for name, value in facts.items() if value]
    return pd.DataFrame(known, columns=["name", "value"])


def _commits(cells: pd.DataFrame) -> str:
    """The commits that made records, shortened."""
    commits = sorted(cells["git_commit"].dropna().unique())
    short = [c[:12] + (" with changes" if c.endswith("+changes") else "") for c in commits]
    return words.listing(short) or "unknown (not a git checkout)"


def _given(cells: pd.DataFrame) -> str:
    """The OpenBLAS that MLX's processes on a CPU loaded in place of their wheel's own BLAS."""
    of_mlx = cells[cells["backend"].eq("mlx") & cells["blas"].str.startswith("OpenBLAS", na=False)]
    libraries = words.listing(of_mlx["blas"].unique())
    return f"{libraries}, given to MLX in place of the slower one in its wheel" if libraries else ""


def _versions(names: dict[str, str | None]) -> str:
    """`numpy 2.4.6, torch 2.13.0`."""
    return ", ".join(
        f"{name.replace('_', ' ')} {names[name]}" for name in sorted(names) if names[name]
    )


EXHIBIT = Exhibit(id="reproduce", rows=rows, facts=True, needs="")
