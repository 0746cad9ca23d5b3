"""Shared by the readers of all kinds of prepared data; needs numpy only.

The measured process reads the folder that a prepare stage wrote, also on a bare host that got a
copy of it. Every framework takes its batches from here, so all of them train on the same numbers
in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.errors import UserError, in_one_line
from siliconprof.store import documents

if TYPE_CHECKING:
    import numpy as np

MEND = "delete that folder and run `snakemake` again, or copy the whole folder again"


class DataError(UserError):
    """The prepared data are missing, damaged or too few; the line says how to mend it."""


def read_facts(folder: Path) -> dict[str, Any]:
    """The content of a folder's dataset.json.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        facts = documents.read(folder / "dataset.json")
    except FileNotFoundError:
        raise DataError(
            f"data {folder}: no dataset.json, so nothing is prepared here; {MEND}"
        ) from None
    except (OSError, ValueError) as error:
        raise damaged_facts(folder, error) from None
    if not isinstance(facts, dict):
        raise damaged_facts(folder, TypeError("no mapping"))
    if not str(facts.get("name")).isprintable():
        raise damaged_facts(folder, ValueError("a name that cannot be printed"))
    return facts


def damaged_facts(folder: Path, error: Exception) -> DataError:
    """The error for a dataset.json with wrong or missing content."""
    return DataError(f"data {folder}: dataset.json is damaged ({in_one_line(error)}); {MEND}")


def read_array(
    folder: Path, facts: Mapping[str, Any], array_name: str, mapped: bool = False
) -> np.ndarray:
    """An array of the folder, after its values are checked against dataset.json's SHA-256.

    Args:
        facts: the content of dataset.json.
        mapped: map the file instead of reading it into memory, which it may exceed.

    Raises:
        DataError: it is missing or damaged.
        KeyError: dataset.json lacks its checksum.
    """
    import numpy as np

    name, file, sha256 = facts["name"], f"{array_name}.npy", str(facts[f"{array_name}_sha256"])
    try:
        array = np.load(folder / file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except Exception as error:  # a damaged header is parsed as Python and can raise anything
        message = " ".join(str(error).split())
        raise DataError(
            f"data '{name}' in {folder}: cannot read {file} ({message}); {MEND}"
        ) from None
    actual_sha256 = array_sha256(array)
    if actual_sha256 != sha256:
        raise DataError(
            f"data '{name}' in {folder}: {file} is damaged: SHA-256 {actual_sha256}, "
            f"dataset.json says {sha256!r}; {MEND}"
        )
    return array


def array_sha256(array: np.ndarray) -> str:
    """Hex SHA-256 of an array's values, little endian whatever the byte order of this host."""
    import numpy as np

    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.reshape(-1).data).hexdigest()


def shuffled(n_samples: int, batch_size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the indices of batches (batch_size,) forever, in a new order every epoch.

    Samples that fill no batch are left out of that epoch. Samples are sorted by
    64-bit random numbers from the PCG64 bit generator itself: NumPy keeps the stream of a bit
    generator from version to version, but not the results of `Generator.permutation` (NEP 19).

    Args:
        seed: 0 or more.
    """
    import numpy as np

    epoch = 0
    while True:
        # Not seed + epoch, which would give neighbouring seeds the same epochs.
        keys = np.random.PCG64([seed, epoch]).random_raw(n_samples)
        order = np.argsort(keys, kind="stable")
        for start in range(0, n_samples - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
        epoch += 1
