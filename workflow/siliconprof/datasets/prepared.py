"""The files of a prepared folder, or of a copy of it, as the measuring process reads them; needs numpy only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.errors import UserError, in_one_line
from siliconprof.store import documents

if TYPE_CHECKING:
    import numpy as np

FACTS_FILE, FAILED_FILE = "dataset.json", "failed"  # the key of why nothing could be prepared
FIX = "delete that folder and run `snakemake` again, or copy the whole folder again"
# The arrays that a training reads, by kind of data, each in a file of its name.
ARRAYS = {
    "text": ("tokens",),
    "speech": ("features", "decoder_input_ids", "labels"),
    "images": ("images", "labels"),
}
SPLITS = ("train", "validation", "test")  # in the order in which the arrays of images hold them
IMAGE_SHAPE = (28, 28)  # of MNIST, and of all data sets that are laid out like it
N_CLASSES = 10
# The sizes in dataset.json that the checksum of several arrays covers too.
SIZE_FORMATS = {
    "speech": "{n_clips} {n_mels} {clip_seconds}",
    "images": "train {n_train}\nvalidation {n_validation}\ntest {n_test}",
}


class DataError(UserError):
    """The prepared data are missing, damaged or too few; the line says how to fix it."""


def read_facts(folder: Path) -> dict[str, Any]:
    """The content of a folder's dataset.json, which the supervisor has checked, see `dataset_spec`.

    Raises:
        DataError: it is missing, no JSON, or says why nothing could be prepared.
    """
    try:
        facts = dict(documents.read(folder / FACTS_FILE))
    except FileNotFoundError:
        raise DataError(
            f"data {folder}: no dataset.json, so nothing is prepared here; {FIX}"
        ) from None
    except (OSError, TypeError, ValueError) as error:
        raise DataError(
            f"data {folder}: dataset.json is damaged ({in_one_line(error)}); {FIX}"
        ) from None
    if reason := facts.get(FAILED_FILE):
        raise DataError(str(reason))
    return facts


def read_array(folder: Path, facts: Mapping[str, Any], name: str) -> np.ndarray:
    """An array of a folder, after its values are checked; features, which may exceed the memory, mapped.

    Args:
        facts: of its dataset.json.

    Raises:
        DataError: it is missing or damaged.
    """
    import numpy as np

    where, file = f"data '{facts['name']}' in {folder}", f"{name}.npy"
    is_mapped = name == "features"
    try:
        array = np.load(folder / file, mmap_mode="r" if is_mapped else None, allow_pickle=False)
    except Exception as error:  # a damaged header is parsed as Python and can raise anything
        raise DataError(f"{where}: cannot read {file} ({in_one_line(error)}); {FIX}") from None
    expected, actual = facts[f"{name}_sha256"], array_sha256(array)
    if actual != expected:
        raise DataError(
            f"{where}: {file} is damaged: SHA-256 {actual}, dataset.json says {expected!r}; {FIX}"
        )
    return array


def array_sha256(array: np.ndarray) -> str:
    """Hex SHA-256 of an array's values, little endian whatever the byte order of this host."""
    import numpy as np

    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.reshape(-1).data).hexdigest()


def combined_sha256(facts: Mapping[str, Any]) -> str:
    """One checksum of a data set, from those of its arrays in dataset.json; of one array its own."""
    first, *more = ARRAYS[facts["kind"]]
    if not more:
        return str(facts[f"{first}_sha256"])
    lines = [SIZE_FORMATS[facts["kind"]].format_map(facts)]
    lines += [f"{name} {facts[f'{name}_sha256']}" for name in (first, *more)]
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()
