"""Write the experiment; by a script, since a config may be longer than a command line may be."""

from pathlib import Path

Path(snakemake.output[0]).write_text(snakemake.params.text, encoding="utf-8")  # noqa: F821
