"""Write the experiment, whole or not at all; by a script, since a config may be longer than a command line may be."""

from pathlib import Path

output = Path(snakemake.output[0])  # noqa: F821
part = output.with_suffix(".part")
part.write_text(snakemake.params.text, encoding="utf-8")  # noqa: F821
part.replace(output)
