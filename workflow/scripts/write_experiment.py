"""Write the experiment; by a script, since a config may be longer than a command line may be."""

from pathlib import Path

output, text = Path(snakemake.output[0]), snakemake.params.text  # noqa: F821
for other in output.parent.glob("*.json"):
    other.unlink()  # or one that comes back later would be older than what follows from it
output.write_text(text, encoding="utf-8")
