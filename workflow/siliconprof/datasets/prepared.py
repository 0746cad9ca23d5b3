"""Shared by the readers of all kinds of prepared data; needs numpy only.

The measured process reads the folder that a prepare stage wrote, also on a bare host that got a
copy of it. Every framework takes its batches from here, so all of them train on the same numbers
in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.errors import UserError, in_one_line
from siliconprof.store import documents

if TYPE_CHECKING:
    import numpy as np

FIX = "delete that folder and run `snakemake` again, or copy the whole folder again"


class DataError(UserError):
    """The prepared data are missing, damaged or too few; the line says how to fix it."""


def read_facts(folder: Path) -> dict[str, Any]:
    """The content of a folder's dataset.json; `dataset_file` checks what it holds.

    Raises:
        DataError: it is missing or no JSON.
    """
    try:
        facts = documents.read(folder / "dataset.json")
    except FileNotFoundError:
        raise DataError(
            f"data {folder}: no dataset.json, so nothing is prepared here; {FIX}"
        ) from None
    except (OSError, ValueError) as error:
        raise damaged_facts(folder, error) from None
    if not isinstance(facts, dict):
        raise damaged_facts(folder, TypeError("no mapping"))
    return facts


def damaged_facts(folder: Path, error: Exception) -> DataError:
    """The error for a dataset.json with wrong or missing content."""
    return DataError(f"data {folder}: dataset.json is damaged ({in_one_line(error)}); {FIX}")


def read(
    folder: Path,
    numbers: Sequence[str],
    arrays: Sequence[str],
    checksum: Callable[[Mapping[str, Any]], str],
    mapped: Sequence[str] = (),
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(facts, arrays) of a folder, whose values are those that its dataset.json has checksums of.

    Args:
        numbers: facts that must be whole numbers.
        checksum: of the facts, that of all arrays.
        mapped: arrays whose files are mapped instead of read into memory, which they may exceed.

    Raises:
        DataError: a file is missing or damaged.
    """
    facts = read_facts(folder)
    try:
        facts |= {key: int(facts[key]) for key in numbers} | {"name": str(facts["name"])}
        if checksum(facts) != facts["sha256"]:
            raise ValueError("sha256 is not that of its arrays")
        return facts, {name: _array(folder, facts, name, name in mapped) for name in arrays}
    except (ValueError, KeyError, TypeError) as error:
        raise damaged_facts(folder, error) from None


def _array(folder: Path, facts: Mapping[str, Any], array_name: str, mapped: bool) -> np.ndarray:
    """An array of the folder, after its values are checked."""
    import numpy as np

    where, file = f"data '{facts['name']}' in {folder}", f"{array_name}.npy"
    sha256 = str(facts[f"{array_name}_sha256"])
    try:
        array = np.load(folder / file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except Exception as error:  # a damaged header is parsed as Python and can raise anything
        message = " ".join(str(error).split())
        raise DataError(f"{where}: cannot read {file} ({message}); {FIX}") from None
    actual_sha256 = array_sha256(array)
    if actual_sha256 != sha256:
        raise DataError(
            f"{where}: {file} is damaged: SHA-256 {actual_sha256}, dataset.json says {sha256!r}; "
            f"{FIX}"
        )
    return array


def array_sha256(array: np.ndarray) -> str:
    """Hex SHA-256 of an array's values, little endian whatever the byte order of this host."""
    import numpy as np

    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.reshape(-1).data).hexdigest()


def combined_sha256(facts: Mapping[str, Any], sizes: Sequence[str], arrays: Sequence[str]) -> str:
    """One checksum of several arrays, from their own in dataset.json and lines that give sizes."""
    lines = [*sizes, *(f"{name} {facts[f'{name}_sha256']}" for name in arrays)]
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()


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
