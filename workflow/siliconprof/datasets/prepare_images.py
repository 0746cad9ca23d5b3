"""Prepare one data set of images: 28 x 28 grey pixels of ten classes, divided in three parts.

    python -m siliconprof.datasets.prepare_images --dataset '{"name": "patterns", "kind": \
"images", "source": "builtin"}' --output-dir results/data/patterns

The images are generated (`builtin`, labelled synthetic), or come from a folder or the hub, see
`image_source.py`. The folder gets:

    images.npy       uint8 (n, 28, 28): the training part, then validation, then test
    labels.npy       uint8 (n,): 0 to 9
    sources.json     the files of a folder that were read, to detect later changes
    dataset.json     its name and origin, licence, sizes and checksums; written last

`image_data.py` reads the folder back and needs numpy only; so does generating the built-in images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof.datasets import (
    dataset_spec,
    image_data,
    image_source,
    prepared,
    preparing,
    source_files,
)
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.errors import stage


def prepare(
    spec: DatasetSpec, output_dir: Path, sources_state: str = source_files.NEW
) -> dict[str, Any]:
    """Prepare one data set of images and return the content of its `dataset.json`.

    Args:
        sources_state: from `source_files.state` for the folder.

    Raises:
        PrepareError: the data set cannot be read, a library is missing, or the folder is not
            writable.
    """
    source = image_source.read_images(spec)
    facts = dataset_spec.requested_facts(spec) | {
        "revision": source.revision,
        "licence": source.licence,
        "synthetic": source.synthetic,
        "n_images": len(source.labels),
        "n_classes": image_data.N_CLASSES,
        "images_sha256": prepared.array_sha256(source.images),
        "labels_sha256": prepared.array_sha256(source.labels),
    }
    facts["sha256"] = image_data.combined_sha256(facts)
    arrays = {"images.npy": source.images, "labels.npy": source.labels}
    sources = source_files.read(spec, source.files, source.whole_folder, sources_state)
    preparing.write_folder(spec.name, output_dir, arrays, None, facts, sources)
    return facts


def summary(facts: Mapping[str, Any]) -> str:
    """One line that describes the prepared data set."""
    counts = ", ".join(f"{facts[f'n_{part}']} {part}" for part in image_data.PARTS)
    label = "synthetic, " if facts["synthetic"] else ""
    return (
        f"dataset '{facts['name']}': {label}images of {facts['n_classes']} classes: {counts}; "
        f"SHA-256 {facts['sha256']}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage and return its exit status.

    Raises:
        PrepareError: see `prepare`.
    """
    description = "Prepare one data set: images of ten classes, divided in three parts."
    return preparing.run("images", description, prepare, summary, argv)


if __name__ == "__main__":
    preparing.end(stage(main))
