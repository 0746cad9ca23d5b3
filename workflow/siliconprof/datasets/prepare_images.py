"""Images of 28 x 28 grey pixels and ten classes, divided in three parts.

The images are generated (`builtin`, labelled synthetic), or come from a folder or the hub. They are

    images.npy       uint8 (n, 28, 28): the training part, then validation, then test
    labels.npy       uint8 (n,): 0 to 9

`training_data.py` reads them back. Generating the built-in images needs numpy only.

A source has a part `train` and a part `test`, as MNIST and similar data sets have; the last images
of `train` are set aside for validation, as in Keras's examples, so that the test part stays unused.
A folder has the hub's layout (parquet, or files in a folder for each class), or holds the four IDX
files of the MNIST and Fashion-MNIST downloads, plain or .gz (yann.lecun.com/exdb/mnist,
github.com/zalandoresearch/fashion-mnist). All are grey, 28 x 28, of ten classes.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from siliconprof.datasets import repository, sources, synthesis, user_files
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.datasets.prepared import IMAGE_SHAPE, N_CLASSES
from siliconprof.errors import in_one_line

Labelled = tuple[np.ndarray, np.ndarray]  # images uint8 (n, 28, 28), labels uint8 (n,)

# An IDX file begins with two zeros, the type of its values (8: unsigned bytes) and the number of
# its dimensions; their lengths follow, four bytes each, the most significant first.
IDX_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


def make(spec: DatasetSpec) -> sources.Material:
    """Make the images and labels of a data set.

    Raises:
        PrepareError: the data set cannot be read, or a library is missing.
    """
    (images, labels), origin = _read(spec)
    facts = {"n_images": len(labels), "n_classes": N_CLASSES, "skipped": origin.skipped}
    return sources.Material(origin, {"images": images, "labels": labels}, facts)


def _read(spec: DatasetSpec) -> tuple[Labelled, sources.Origin]:
    """The images of train, validation and test, in this order, from their source."""
    if spec.source == "builtin":
        counts = (spec.n_train, spec.n_validation, spec.n_test)
        parts = [synthesis.images(number, n) for number, n in enumerate(counts)]
        return _joined(parts), sources.Origin(synthetic=True)
    folder = repository.existing_folder(spec) if spec.source == "folder" else None
    if folder and any(file.is_file() for file in _idx_files(folder)):
        train, test = (_idx_part(spec, folder, *names) for names in IDX_FILES)
        chosen = zip((train, test), _rows(spec, len(train[1]), len(test[1])), strict=True)
        pieces = [(images[rows], labels[rows]) for (images, labels), rows in chosen]
        return _joined(pieces), sources.Origin(files=_idx_files(folder))
    return _of_repository(spec)


def _joined(pieces: Sequence[Labelled]) -> Labelled:
    images, labels = zip(*pieces, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _rows(spec: DatasetSpec, n_train: int, n_test: int) -> tuple[list[int], list[int]]:
    """The rows of the source's train part (training, then validation) and test part to use."""
    n_from_train = spec.n_train + spec.n_validation
    for part, available, needed, keys in (
        ("train", n_train, n_from_train, "n_train and n_validation"),
        ("test", n_test, spec.n_test, "n_test"),
    ):
        if available < needed:
            raise spec.error(
                f"{spec.source} '{spec.path}' has {available} images in {part}, {needed} are "
                f"needed; lower {keys}"
            )
    validation = range(n_train - spec.n_validation, n_train)
    return [*range(spec.n_train), *validation], [*range(spec.n_test)]


def _idx_files(folder: Path) -> list[Path]:
    names = [name for pair in IDX_FILES for name in pair]
    return [folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz")]


def _idx_part(spec: DatasetSpec, folder: Path, images_name: str, labels_name: str) -> Labelled:
    images = _idx_array(spec, folder, images_name, IMAGE_SHAPE)
    labels = _idx_array(spec, folder, labels_name, ())
    most = labels.max(initial=0)
    if len(images) != len(labels) or most >= N_CLASSES:
        raise spec.error(
            f"{images_name} in {folder} has {len(images)} images, {labels_name} {len(labels)} labels "
            f"up to {most}; expected as many, of 0 to {N_CLASSES - 1}, from one download"
        )
    return images, labels


def _idx_array(spec: DatasetSpec, folder: Path, name: str, shape: Sequence[int]) -> np.ndarray:
    """The unsigned bytes of an IDX file, plain or .gz: n values of a shape."""
    file = next((f for f in (folder / name, folder / f"{name}.gz") if f.is_file()), None)
    if file is None:
        raise spec.error(f"no {name} or {name}.gz in {folder}; put all four IDX files there")
    with user_files.reading(file, spec.error):
        user_files.refuse(file)
        data = file.read_bytes()
        try:
            if data.startswith(user_files.GZIP):  # whatever it is called: browsers unpack
                data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{in_one_line(error)}; download it again") from None
        magic = bytes((0, 0, 8, 1 + len(shape)))
        if not data.startswith(magic):
            begins, expected = data[:4].hex(" ") or "nothing", magic.hex(" ")
            raise ValueError(
                f"it begins with {begins}, but an IDX file with {expected}; download it again"
            )
        n, *sizes = (int.from_bytes(data[at : at + 4]) for at in range(4, 8 + 4 * len(shape), 4))
        if tuple(sizes) != tuple(shape):
            raise ValueError(
                f"its images have {' x '.join(map(str, sizes))} pixels; expected "
                f"{' x '.join(map(str, shape))}"
            )
        values = np.frombuffer(data, np.uint8, offset=8 + 4 * len(shape))
        if values.size != n * math.prod(shape):
            raise ValueError(
                f"it holds {values.size} values and says {n * math.prod(shape)}; download it again"
            )
        return values.reshape(n, *shape)


def _of_repository(spec: DatasetSpec) -> tuple[Labelled, sources.Origin]:
    opened = repository.open_repository(spec)
    train, test = (spec.model_copy(update={"split": split}) for split in ("train", "test"))
    parts = (train, None), (test, spec.n_test)
    # Undecoded rows take a few bytes each, so all are held until the last ones are known.
    cells = [
        [*islice(repository.rows(opened, part, "image_column", "label_column"), limit)]
        for part, limit in parts
    ]
    chosen = _rows(spec, *map(len, cells))
    pieces = [
        _decoded(part, part_cells, rows)
        for (part, _), part_cells, rows in zip(parts, cells, chosen, strict=True)
    ]
    files = [Path(file) for part in cells for file, _ in part if isinstance(file, str)]
    opened.origin.files += files
    return _joined(pieces), opened.origin


def _decoded(spec: DatasetSpec, cells: Sequence[tuple[Any, ...]], rows: Sequence[int]) -> Labelled:
    from PIL import Image

    images, labels = np.empty((len(rows), *IMAGE_SHAPE), np.uint8), np.empty(len(rows), np.uint8)
    for to, row in enumerate(rows):
        file, label = cells[row]
        where = f"row {row} of {repository.place(spec)}"
        if type(label) is not int:
            raise spec.error(
                f"{where}: label is {label!r} of type {type(label).__name__}, expected whole numbers "
                f"from 0 to {N_CLASSES - 1}; convert column '{spec.label_column}' to those, or set "
                "label_column to another"
            )
        if not 0 <= label < N_CLASSES:
            raise spec.error(
                f"{where}: label is {label}; expected 0 to {N_CLASSES - 1}; correct label_column"
            )
        try:
            with Image.open(io.BytesIO(repository.content(file))) as image:
                if (image.mode, image.height, image.width) != ("L", *IMAGE_SHAPE):
                    raise ValueError(f"{image.height} x {image.width} pixels in mode {image.mode}")
                images[to], labels[to] = np.asarray(image), label
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            name = f" ({file})" if isinstance(file, str) else ""
            raise spec.error(
                f"{where}{name}: is no image of {IMAGE_SHAPE[0]} x {IMAGE_SHAPE[1]} pixels in mode L (grey): "
                f"{in_one_line(error)}; correct image_column, or convert the images"
            ) from error
    return images, labels
