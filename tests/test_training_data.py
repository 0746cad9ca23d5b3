"""What the measured process reads of prepared data: damage is noticed, batches are the same anywhere."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from prepare_stage import SMALL, made, prepare_here
from siliconprof.datasets import dataset_spec, prepared, training_data


@pytest.mark.parametrize("kind", SMALL)
def test_damage_of_any_kind_of_data_is_noticed(kind: str, tmp_path: Path) -> None:
    prepare_here(SMALL[kind], tmp_path)
    facts, _ = made(tmp_path)

    def noticed(words: str) -> None:
        with pytest.raises(prepared.DataError, match=words) as error:
            dataset_spec.read_facts(tmp_path)  # as the supervisor does, before the measuring one
            training_data.load(tmp_path)
        assert "\n" not in str(error.value)

    for name in (f"{array}.npy" for array in prepared.ARRAYS[kind]):
        file, whole = tmp_path / name, (tmp_path / name).read_bytes()
        for content, words in (
            (whole[:-1] + bytes([whole[-1] ^ 1]), f"{name} is damaged: SHA-256"),
            (whole[:-4], f"cannot read {name}"),
        ):
            file.write_bytes(content)
            noticed(words)
        file.unlink()
        noticed(f"cannot read {name}")
        file.write_bytes(whole)
    number = {"text": "vocab_size", "speech": "n_clips", "images": "n_test"}[kind]
    for own in ({number: None}, {"kind": "video"}, {"sha256": "0" * 64}):
        (tmp_path / "dataset.json").write_text(json.dumps(facts | own))
        noticed(r"dataset\.json is damaged")
    for text in ("{", "[]"):
        (tmp_path / "dataset.json").write_text(text)
        noticed(r"dataset\.json is damaged")
    (tmp_path / "dataset.json").write_text(json.dumps(facts | {number: "many", "nmae": "x"}))
    with pytest.raises(prepared.DataError) as error:  # every mistake
        dataset_spec.read_facts(tmp_path)
    assert f"{number}: is 'many'; expected a valid integer; " in str(error.value)
    assert "nmae: unknown key; " in str(error.value) and "did you mean 'name'?" in str(error.value)
    (tmp_path / "dataset.json").unlink()
    noticed(r"no dataset\.json")


def test_batches_visit_every_window_once_an_epoch() -> None:
    data = training_data.TokenData(np.arange(1000, dtype=np.uint16), "", 1024, "count")
    n_batches = 33 // 4
    first_two = list(itertools.islice(data.batches(4, 30, seed=7), 2 * n_batches))
    assert all(batch.shape == (4, 30) and batch.dtype == np.int32 for batch in first_two)
    orders = []
    for epoch in (first_two[:n_batches], first_two[n_batches:]):
        starts = np.concatenate(epoch)[:, 0]
        assert np.array_equal(np.concatenate(epoch), starts[:, None] + np.arange(30))
        assert len(set(starts)) == 32 and set(starts) <= set(range(0, 990, 30))
        orders.append(starts.tolist())
    other = np.concatenate(list(itertools.islice(data.batches(4, 30, seed=8), n_batches)))
    orders.append(other[:, 0].tolist())
    assert len({tuple(order) for order in [*orders, sorted(orders[0])]}) == 4
    # Pinned: another NumPy or another computer must give these windows, or losses do not compare.
    batches = data.batches(5, 100, seed=0)
    assert [next(batches)[:, 0].tolist() for _ in range(4)] == [
        [300, 200, 100, 800, 600],
        [0, 700, 400, 500, 900],
        [700, 400, 500, 100, 900],
        [800, 600, 200, 0, 300],
    ]
    for batch_size, seq_len in ((11, 100), (1, 1001)):  # told at the call
        with pytest.raises(prepared.DataError, match=r"fewer than one batch[^\n]*\Z"):
            data.batches(batch_size, seq_len, seed=0)
