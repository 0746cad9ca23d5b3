"""A config says what runs: all its mistakes at once, what its keys mean, the cells it makes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from conftest import ROOT, Checkout
from siliconprof import plugins
from siliconprof.cells import config, matrix
from siliconprof.hosts import doctor
from siliconprof.store import record
from siliconprof.store.experiment import Experiment, Timing
from synthetic_results import CPU, host_of

LINE = re.compile(r"^config: [A-Za-z0-9_.-]+: .+")
PRODUCT = {"module": "matmul", "shapes": [[1, 8, 8, 8]]}


def shipped(name: str) -> dict[str, Any]:
    """A config file of the project as it stands."""
    return yaml.safe_load((ROOT / "config" / name).read_text(encoding="utf-8"))


EXPERIMENTS = sorted(
    path.name
    for path in (ROOT / "config").glob("*.yaml")
    if path.name not in ("devices.yaml", "claims.yaml", "hosts.yaml", "careful.yaml", "full.yaml")
)


# -- mistakes, through the command that a person types -----------------------------------------


@pytest.mark.slow
def test_a_wrong_config_is_refused_with_all_its_mistakes(checkout: Checkout) -> None:
    """One line each: where, what, what was expected, the nearest spelling; nothing is run."""
    checkout.configure(
        hosst="desk",
        precisions=["fp23"],
        seed="one",
        timing={"iteratoins": 3, "budget_s": float("nan")},
        quick=["b", "dd"],
        datasets={"words": {"source": "builtin", "vocab_size": 512}, "mine": {"source": "folder"}},
        workloads={
            "a": {"module": "gpt2", "size": "nano", "batch_size": 0, "dataset": "word"},
            "b": {"module": "matmull", "shapes": [[1, 8, 8, 8]]},
            "c": {"module": "matmul", "shapes": "big", "trainer": "plain"},
            "d": {"module": "gpt2", "trainer": "plian", "size": "giant", "batch_size": 1},
        },
    )
    done = checkout.snakemake("report", check=False)
    assert done.returncode != 0
    made = [path for path in (checkout.path / "results").rglob("*") if path.is_file()]
    names = {path.relative_to(checkout.path / "results").as_posix() for path in made}
    aside = ("hosts/", "history/code.json")
    assert {name for name in names if not name.startswith(aside)} == {"README.md"}
    said = (done.stdout + done.stderr).splitlines()
    # Between Snakemake's own head, where in the rules it came up, and its traceback
    lines = [line for line in said if re.match(r"[\w.-]+: ", line)]
    expected = {
        "hosst": "unknown key; expected one of: .*host.*; did you mean 'host'?",
        "precisions.0": "is 'fp23'; expected one of: fp32, .*; did you mean 'fp32'?",
        "seed": "is 'one'; expected a valid integer",
        "timing.iteratoins": "unknown key; expected one of: .*; did you mean 'iterations'?",
        "timing.budget_s": "is nan; expected a finite number",
        "quick": "'dd' is no workload of this experiment; did you mean 'd'?",
        "datasets.mine.vocab_size": "is missing; expected integer",
        "datasets.mine.path": "is missing; expected a folder",
        "workloads.a.batch_size": "is 0; expected greater than or equal to 1",
        "workloads.a.trainer": "is missing; expected one of: hf, plain",
        "workloads.a.dataset": "is 'word'; expected one of: words, mine; did you mean 'words'?",
        "workloads.b.module": "is 'matmull'; expected one of: .*; did you mean 'matmul'?",
        "workloads.c.shapes": "is 'big'; expected a valid list",
        "workloads.c.trainer": "is 'plain'; matmul is not trained, leave it out",
        "workloads.d.trainer": "is 'plian'; expected one of: hf, plain; did you mean 'plain'?",
        "workloads.d.size": "is 'giant'; expected one of: nano, .*",
        "workloads.d.dataset": "is missing; GPT-2 trains on a text data set",
    }
    assert all(LINE.match(line) for line in lines), lines
    told = {line.split(": ")[1]: line.split(": ", 2)[2] for line in lines}
    assert told.keys() == expected.keys() and len(lines) == len(expected)
    for where, what in expected.items():
        assert re.fullmatch(what.replace("?", r"\?"), told[where]), told[where]


WORDS = {"source": "builtin", "vocab_size": 300}
TALK = WORDS | {"kind": "speech", "clip_seconds": 1}
FOLDER = TALK | {"source": "folder", "path": "x"}
IMAGES = {"kind": "images", "source": "builtin", "n_train": 100, "n_validation": 40, "n_test": 50}
TRAINED = {"trainer": "plain", "size": "nano", "batch_size": 4, "dataset": "words"}
GPT2 = TRAINED | {"module": "gpt2"}
FITTED = GPT2 | {"batch_size": "auto", "fit_batch": True, "scenarios": ["near-capacity"]}
WHISPER = TRAINED | {"module": "whisper", "dataset": "talk"}
EPOCHS = {"trainer": "epochs", "batch_sizes": [8], "dataset": "garments"}
GRID = {"module": "transformer_grid", "n_embd": [16], "n_head": [3, 16], "batch_size": [1]}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (GPT2 | {"weights": "pretrained"}, "weights_path"),
        (GPT2 | {"batch_size": "auto"}, "batch_size: is 'auto'"),
        (FITTED, "a.fit_batch: is true; it is for a training whose batch_size is"),
        (GPT2 | {"probes": ["memroy"]}, "did you mean 'memory'"),
        (GPT2 | {"batch_size": 4.0}, "is 4.0; expected a valid integer"),
        (WHISPER | {"dataset": "words"}, "is of kind text"),
        (WHISPER | {"target_len": 449}, "448"),
        (WHISPER | {"vocab_size": 299}, "the data set has 300 tokens"),
        (EPOCHS | {"module": "cnn", "batch_sizes": [8, 128]}, "the data set has 100 training"),
        (EPOCHS | {"module": "mlp", "trainer": "plain"}, "is 'plain'; expected one of: epochs"),
        (EPOCHS | {"module": "mlp", "batch_sizes": [8, 8]}, "batch_sizes"),
        (PRODUCT | {"capture": "tool 'x"}, "capture: is no command"),
        (PRODUCT | {1: 2}, "the key 1 is not text; put it in quotes"),
        (GRID, "n_embd: is [16]; expected one that is a multiple of 2 n_head of [3, 16]"),
    ],
    ids=str,
)
def test_a_mistake_in_an_entry_is_one_line(entry: dict[str, Any], said: str) -> None:
    data = {"words": WORDS, "talk": TALK, "garments": IMAGES}
    (line,) = config.check({"datasets": data, "workloads": {"a": entry}})
    assert line.startswith("workloads.a.") and said in line


@pytest.mark.parametrize(
    ("where", "entry", "said"),
    [
        ("kind", TALK | {"kind": "speach"}, "did you mean 'speech'"),
        ("clip_seconds", WORDS | {"clip_seconds": 3}, "belongs to kind speech"),
        ("revision", FOLDER | {"revision": "main"}, "has one revision"),
        ("vocab_size", TALK | {"vocab_size": 260}, "expected at least 261"),
        ("tokenizer", IMAGES | {"tokenizer": "gpt2"}, "belongs to kind text or speech"),
    ],
)
def test_a_mistake_in_a_data_set_is_one_line(where: str, entry: dict[str, Any], said: str) -> None:
    (line,) = config.check({"datasets": {"a": entry}, "workloads": {"product": PRODUCT}})
    assert line.startswith(f"datasets.a.{where}: ") and said in line


def test_a_key_that_stands_twice_is_refused_by_the_run(checkout: Checkout) -> None:
    """Snakemake alone takes the last."""
    path = checkout.path / "twice.yaml"
    path.write_text("experiment: twice\nseed: 1\nseed: 2\n", encoding="utf-8")
    done = checkout.snakemake("-n", "measured", "--configfile", path.name, check=False)
    said = done.stdout + done.stderr
    assert done.returncode and "twice.yaml: line 3, column 1: not YAML: the key 'seed'" in said


# -- a damaged record --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_record_that_cannot_be_read_is_counted_and_stays(clone: Checkout) -> None:
    """Deleted, its cell is measured again."""
    key = next(key for key in clone.records() if "/product/" in key)
    path = clone.path / "results" / "records" / f"{key}.json"
    before = record.read(path)
    cut = path.read_text(encoding="utf-8")[:1000]
    path.write_text(cut, encoding="utf-8")
    assert "damaged record" in clone.stage("pipeline.cli", "plan").stdout
    clone.snakemake("results/tables/cells.csv")
    assert path.read_text(encoding="utf-8") == cut
    assert key in (clone.path / "results/tables/unreadable.csv").read_text(encoding="utf-8")
    path.unlink()
    clone.snakemake("measured")
    after = record.read(path)
    assert (after["status"], after["sha256"] != before["sha256"]) == ("ok", True)


# -- every key is known and told ---------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_shipped_configs_are_right(name: str) -> None:
    assert config.check(shipped(name)) == []


def test_the_page_of_keys_is_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """config/README.md is what `make docs` writes from the schema, so it cannot be out of date."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate

    page = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    assert page == generate.config_page(), "run `make docs`"


def test_every_key_is_described_and_says_its_unit() -> None:
    page = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", page, re.M)
    assert len(rows) > 200
    for name, description in rows:
        assert description, f"{name} has no description"
        for suffix, unit in (("_s", "second"), ("_bytes", "byte")):
            if name.endswith(suffix):
                assert unit in description, f"{name}: '{description}' does not say {unit}s"


def test_defaults_are_filled_in_and_overridden() -> None:
    other = PRODUCT | {"timing": {"iterations": 9}, "precisions": ["bf16"]}
    workloads = {"a": PRODUCT, "b": other}
    whole = config.resolve({"timing": {"iterations": 7}, "workloads": workloads})
    assert whole.keys() == Experiment.model_fields.keys() and config.resolve(whole) == whole
    a, b = whole["workloads"]["a"], whole["workloads"]["b"]
    timing = Timing().model_dump()
    assert a["timing"] == timing | {"iterations": 7}
    assert b["timing"] == timing | {"iterations": 9}
    assert (a["precisions"], b["precisions"]) == (["fp32"], ["bf16"])
    assert a["burst"] == plugins.load("workloads", "matmul").Parameters.burst


def test_a_number_without_a_point_is_a_number() -> None:
    """`1e-3`, which is text to YAML 1.1."""
    read = yaml.safe_load("{timing: {budget_s: 1e1}, workloads: {a: {learning_rate: 1e-3}}}")
    read["workloads"]["a"] |= GPT2
    whole = config.resolve(read | {"datasets": {"words": WORDS}})
    assert whole["timing"]["budget_s"] == 10
    assert whole["workloads"]["a"]["learning_rate"] == 1e-3
    read["workloads"]["a"]["batch_size"] = "1e1"
    (line,) = config.check(read | {"datasets": {"words": WORDS}})
    assert "batch_size: is '1e1'; expected" in line


# -- the cells that a config makes -------------------------------------------------------------


def test_what_is_computed_without_instructions_is_measured_in_the_smallest_workload(
    devices: Any,
) -> None:
    """The rest are skipped with the reason; a processor's stands in a run's first lines too."""
    named = {"workloads": {"a": PRODUCT, "b": PRODUCT}, "precisions": ["fp32", "bf16"]}
    by_all = {("mlx", "b", "bf16"), ("torch-cpu", "b", "bf16")}
    for own, features, skipped in (
        ({"emulated_workloads": ["a"]}, ["avx2"], by_all),
        ({"emulated_workloads": ["a"]}, ["avx2", "avx512_bf16"], {("mlx", "b", "bf16")}),
        ({}, ["avx2"], set()),
    ):
        host = host_of("desk", CPU)
        host["cpu"] = host["cpu"] | {"features": features}
        experiment = config.resolve(named | own)
        cells = matrix.Expansion(experiment, devices, host).cells
        refused = {
            (p.cell.backend, p.cell.workload, p.cell.precision): p.resolved.refusal() for p in cells
        }
        assert {key for key, refusal in refused.items() if refusal} == skipped
        line = "this processor computes bf16 without instructions for it"
        of_mlx = "mlx computes bf16 on a CPU without instructions for it"
        why = of_mlx if "avx512_bf16" in features else line
        for key in skipped:
            assert refused[key] == ("skipped", f"{why}; measured in a alone")
        said = "\n".join(doctor.before_a_run(host, 0.0, {"fp32", "amp-bf16"}))
        assert (line in said) == ("avx512_bf16" not in features)


def test_a_device_that_no_backend_can_use_is_not_measured(devices: Any) -> None:
    experiment = config.resolve({"workloads": {"a": PRODUCT}, "devices": ["mi300x"]})
    expansion = matrix.Expansion(experiment, devices, host_of("desk", CPU))
    (missing,) = expansion.not_measured
    assert missing["device"] == "mi300x" and "no backend" in missing["reason"]
