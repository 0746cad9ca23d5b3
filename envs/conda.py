"""Write the conda environments of the rules that need frameworks, of the same pins: `python envs/conda.py`.

Local rules run in Snakemake's own environment. What the pins pull in is constrained for pip alone, by
constraints.txt. No conda has built them here.
"""

from pathlib import Path

from install import pins

HERE = Path(__file__).parent
HEAD = """\
# Made by envs/conda.py of {name}.txt; `snakemake --software-deployment-method conda` takes it.
channels:
  - conda-forge
dependencies:
  - python=3.11
  - pip
  - cxx-compiler
  - pip:
"""


def text(name: str) -> str:
    """A conda environment of the pins of a file."""
    return HEAD.format(name=name) + "".join(
        f'      - "{pin}"\n' for pin in pins(HERE / f"{name}.txt")
    )


if __name__ == "__main__":
    for environment in ("cpu", "cuda", "apple"):
        (HERE / f"{environment}.yaml").write_text(text(environment), encoding="utf-8")
