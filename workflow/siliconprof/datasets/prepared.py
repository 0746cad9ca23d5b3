"""What all readers of prepared data do alike; needs numpy only.

The measured process reads what a prepare stage wrote, also on a bare host that was handed the
folder. Every framework takes its batches from here, so all of them train on the same numbers in
the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.errors import UserError, in_one_line
from siliconprof.store import documents

if TYPE_CHECKING:
    import numpy as np

MEND = "prepare it again (`snakemake`), or copy the whole folder again"


class DataError(UserError):
    """The prepared data are missing, damaged or too few; the line says how to mend that."""


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
    """The line for a dataset.json that does not say what it should."""
    return DataError(f"data {folder}: dataset.json is damaged ({in_one_line(error)}); {MEND}")


def read_array(folder: Path, name: str, file: str, sha256: str, mapped: bool = False) -> np.ndarray:
    """An array of the folder, once its values are those that dataset.json vouches for.

    Args:
        mapped: leave it in the file, to be read where it is used: it may exceed the memory.

    Raises:
        DataError: it is missing or damaged.
    """
    import numpy as np

    try:
        array = np.load(folder / file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except Exception as error:  # a damaged header is parsed as Python and can raise anything
        line = " ".join(str(error).split())
        raise DataError(f"data '{name}' in {folder}: cannot read {file} ({line}); {MEND}") from None
    found = array_sha256(array)
    if found != sha256:
        raise DataError(
            f"data '{name}' in {folder}: {file} is damaged: SHA-256 {found}, "
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

    Samples that fill no batch are left out of that epoch. The order is that of 64-bit random
    numbers, one for each sample, taken straight from the PCG64 bit generator: NumPy keeps the
    stream of a bit generator from version to version, but not what `Generator.permutation` makes
    of it (NEP 19).

    Args:
        seed: 0 or more.
    """
    import numpy as np

    epoch = 0
    while True:
        # [seed, epoch] and not their sum, which would give neighbouring seeds the same epochs.
        keys = np.random.PCG64([seed, epoch]).random_raw(n_samples)
        order = np.argsort(keys, kind="stable")
        for start in range(0, n_samples - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
        epoch += 1
