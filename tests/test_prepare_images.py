"""The prepare stage of images through its front door, and the reader of what it leaves.

Fashion-MNIST is laid out small as the hub has it (parquet, png in a column `image`) and as its
authors give it out (four IDX files); the pictures in it are random.
"""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepare_stage import changed_sources, idx, made, png, prepare_here
from siliconprof.datasets import prepared, training_data

BUILTIN = {"name": "garments", "kind": "images", "source": "builtin"}
SMALL = {"n_train": 30, "n_validation": 12, "n_test": 10}
IDX = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


def prepare(
    dataset: dict[str, Any], output: Path
) -> tuple[dict[str, Any], training_data.ImageData]:
    """(dataset.json, data), prepared in this process."""
    prepare_here(dataset, output)
    return made(output)


def whole(data: training_data.ImageData, part: str) -> dict[str, np.ndarray]:
    """All of a part as one batch."""
    return next(data.part_batches(part, len(data.labels)))


# -- the built-in images -------------------------------------------------------------------------


def test_builtin_images(tmp_path: Path) -> None:
    counts = {"n_train": 1500, "n_validation": 30, "n_test": 400}
    _, data = prepare(BUILTIN | counts, tmp_path / "many")
    assert {f"n_{part}": n for part, n in data.counts.items()} == counts
    # Fewer are the same ones, and no picture is in two parts.
    _, few = prepare(BUILTIN | SMALL, tmp_path / "few")
    for part, n in few.counts.items():
        for key, values in whole(few, part).items():
            assert np.array_equal(values, whole(data, part)[key][:n])
    assert len({image.tobytes() for image in data.images}) == len(data.images)
    assert np.bincount(data.labels, minlength=10).min() > 100


# -- the reader ------------------------------------------------------------------------------------


def test_batches(tmp_path: Path) -> None:
    _, data = prepare(BUILTIN | SMALL, tmp_path)
    order = islice(training_data.shuffled(30, 8, seed=3), 6)  # two epochs
    for rows, batch in zip(order, data.batches(8, seed=3), strict=False):
        assert batch["images"].dtype == np.float32 and batch["labels"].dtype == np.int32
        assert np.array_equal(np.rint(batch["images"] * 255), data.images[rows])
        assert batch["images"].max() <= 1 and np.array_equal(batch["labels"], data.labels[rows])
    with pytest.raises(prepared.DataError, match="30 training images, fewer than one batch of 31"):
        data.batches(31, seed=0)
    for part, start, n in (("validation", 30, 12), ("test", 42, 10)):
        pieces = [piece["labels"] for piece in data.part_batches(part, 7)]
        assert [len(piece) for piece in pieces] == [7, n - 7]
        assert np.array_equal(np.concatenate(pieces), data.labels[start : start + n])


# -- the hub's layout ------------------------------------------------------------------------------


def pictures(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n random images and their labels."""
    drawn = np.random.Generator(np.random.PCG64(seed))
    return drawn.integers(0, 256, (n, 28, 28), np.uint8), drawn.integers(0, 10, n, np.uint8)


TRAIN, TEST = pictures(50, 1), pictures(15, 2)
ROWS = [*range(30), *range(38, 50)]  # of TRAIN: the first 30, and the last 12 for validation


def write_parquet(root: Path, parts: dict[str, tuple[Any, Any]]) -> None:
    """A data set as the hub has Fashion-MNIST: parquet files with png and class labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import ClassLabel, Features, Image

    classes = ClassLabel(names=[f"c{i}" for i in range(12)])
    features = Features({"image": Image(), "label": classes})
    (root / "data").mkdir(parents=True)
    for part, (images, labels) in parts.items():
        files = [i if isinstance(i, bytes) else png(i) for i in images]
        rows = [{"bytes": data, "path": None} for data in files]
        values = {"image": rows, "label": [int(label) for label in labels]}
        table = pa.table(values, schema=features.arrow_schema)
        pq.write_table(table, root / "data" / f"{part}-00000-of-00001.parquet")


def check_fashion(facts: dict[str, Any], data: training_data.ImageData) -> None:
    """Check what was prepared of the two splits."""
    assert np.array_equal(data.images, np.concatenate([TRAIN[0][ROWS], TEST[0][:10]]))
    assert np.array_equal(data.labels, np.concatenate([TRAIN[1][ROWS], TEST[1][:10]]))
    assert facts["synthetic"] is False


HUB = {"name": "f", "kind": "images", "source": "hub", "path": "owner/fashion"} | SMALL


def test_folder_in_the_hubs_layout(tmp_path: Path) -> None:
    write_parquet(tmp_path / "fashion", {"train": TRAIN, "test": TEST})
    own = HUB | {"source": "folder", "path": str(tmp_path / "fashion")}
    check_fashion(*prepare(own, tmp_path / "data"))


def test_folder_of_pictures_by_class(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    for part, (images, labels) in (("train", TRAIN), ("test", TEST)):
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = root / part / str(label) / f"{row:03}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(image))
    own = HUB | {"source": "folder", "path": str(root)}
    _, data = prepare(own, tmp_path / "data")
    by_name = np.argsort(TEST[1], kind="stable")[:10]  # files come in the order of their names
    assert np.array_equal(whole(data, "test")["labels"], TEST[1][by_name])
    assert np.array_equal(data.images[-10:], TEST[0][by_name])


# -- the four IDX files ----------------------------------------------------------------------------


def write_idx(root: Path, packed: bool) -> None:
    """The four files of a small Fashion-MNIST."""
    root.mkdir()
    for names, arrays in zip(IDX, (TRAIN, TEST), strict=True):
        for name, array in zip(names, arrays, strict=True):
            file, data = root / name, idx(array)
            if packed:
                file, data = root / f"{name}.gz", gzip.compress(data)
            file.write_bytes(data)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    root = tmp_path / "mnist"
    write_idx(root, packed)
    output = tmp_path / "data"
    check_fashion(*prepare(HUB | {"source": "folder", "path": str(root)}, output))
    (root / f"{IDX[0][0]}").write_bytes(idx(TRAIN[0][::-1]))  # takes the place of the .gz
    assert [Path(path).name for path in changed_sources(output)] == [IDX[0][0]]
