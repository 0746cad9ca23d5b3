"""Why one training is slower than another: records with known answers through the real stages.

What a GPU, a Mac and a CPU would have left is built here; everything after it is under test. Also
the formula for the operators of a step, held against what torch and MLX really do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from siliconprof import plugins
from siliconprof.analyse import attribution, step_operators
from siliconprof.analyse.attribution_costs import CAUSES
from siliconprof.session import step_shapes
from siliconprof.session.timing import PhaseClock
from siliconprof.store import table_files
from synthetic_results import CPU, H200, course, kernel_launch, load, make, probed, render, training
from synthetic_results import PHASES as SPLIT
from test_ceilings import bandwidth, first_touch, matmul, product, transfers
from test_expected import dispatched_by_torch, evaluated_by_mlx

GPU = {"device": "h200", "backend": "torch-cuda", "device_kind": "gpu"}
MAC = CPU | {
    "id": "m2-max-38",
    "registry_id": "m2-max-38",
    "name": "Apple M2 Max",
    "kind": "gpu",
    "vendor": "apple",
    "memory_kind": "unified",
    "backends": ["torch-mps", "mlx"],
}
MPS = {"device": "m2-max-38", "backend": "torch-mps", "device_kind": "gpu"}
FLOPS, PARAMETERS = 2.0e8, 198400  # of `training`
TIMES = 7 * 4 * PARAMETERS  # bytes of AdamW's passes in fp32
BURST = 0.98  # of a single call, see `test_ceilings.point`
FAULT_S = 250e-9  # see `test_ceilings.first_touch`
OPERATORS = {"torch-cpu": 346, "torch-cuda": 103, "mlx": 969}  # GPT-2 nano: 2 layers, 28 tensors
SHAPE, COUNT = (1, 256, 64, 256), 12


def launching(amortised_s: float, wait_s: float | None = None, **axes: Any) -> dict[str, Any]:
    """What a launch costs among many, and with a wait: hardly more unless the backend queues."""
    made = kernel_launch(**axes)
    times = made["points"][0]["times"]
    times["amortised_s"] = [amortised_s] * 9
    times["launch_and_wait_s"] = [wait_s or 1.1 * amortised_s] * 9
    return made


def products(flop_per_s: float, of: str = "gpt2-nano-plain", **axes: Any) -> dict[str, Any]:
    """The products of a step: one shape, several times."""
    made = matmul([product(SHAPE, flop_per_s, of=of, count=COUNT)], workload="matmul-step", **axes)
    return made


def beside(rate: float, memory: float, launch_s: float, **axes: Any) -> list[dict[str, Any]]:
    """All that one device and backend is measured with beside its trainings."""
    return [
        products(rate, **axes),
        bandwidth(memory, 4 * memory, **axes),
        launching(launch_s, **axes),
    ]


def explained(folder: Path, cells: Sequence[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    """Lines of attribution.csv."""
    results = make(folder, cells, devices=(CPU, H200, MAC), **more)
    return table_files.rows(table_files.read(results / "tables/attribution.csv"))


def parts(lines: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """Part -> seconds of one pair."""
    return {line["part"]: line["seconds"] for line in lines if line["kind"] == kind}


def line_of(lines: Sequence[dict[str, Any]], part: str) -> dict[str, Any]:
    """The line of a part of one pair."""
    (found,) = (line for line in lines if line["part"] == part)
    return found


def two_devices(**changed: Any) -> list[dict[str, Any]]:
    """A CPU and a GPU with the same training: 10 ms and 2 ms."""
    cpu = {"rate": 1e11, "memory": 3e10, "launch_s": 3e-6} | changed.get("cpu", {})
    slow = training(0.010)
    slow["points"][0]["steps"] = course(0.010, changed.get("faults", 40))
    return [
        slow,
        training(0.002, **GPU),
        first_touch(),
        *beside(**cpu),
        *beside(1e13, 3e12, 4e-6, **GPU),
    ]


def expected_causes(
    rate: float = 1e11, memory: float = 3e10, launch_s: float = 3e-6, faults: int = 40
) -> dict[str, float | None]:
    """Cause -> what it explains between the CPU and the GPU of `two_devices`."""
    return {
        "products": BURST * FLOPS * (1 / rate - 1 / 1e13),
        # Weights, gradients and moments fit the 32 MiB of cache; triad is the fastest kernel.
        "memory": TIMES / (1.1 * 4) * (1 / memory - 1 / 3e12),
        "launches": (OPERATORS["torch-cpu"] - COUNT) * launch_s
        - (OPERATORS["torch-cuda"] - COUNT) * 4e-6,
        "page_faults": FAULT_S * (faults - 40),
        "swap": 0.0,
        "offload": 0.0,
        "clocks": None,
    }  # fmt: skip


# -- known answers ---------------------------------------------------------------------------------


def test_gap_of_two_devices_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    lines = explained(tmp_path, two_devices())
    (gap,) = parts(lines, "gap").values()
    assert (
        gap == pytest.approx(0.008, rel=1e-3)
        and line_of(lines, "gap")["slow_backend"] == "torch-cpu"
    )
    line = line_of(lines, "gap")
    assert line["low_s"] < gap < line["high_s"]
    causes = parts(lines, "cause")
    assert list(causes) == list(CAUSES)
    for cause, seconds in expected_causes().items():
        assert causes[cause] == (
            None if seconds is None else pytest.approx(seconds, rel=1e-3, abs=1e-9)
        ), cause
    known = sum(seconds for seconds in causes.values() if seconds is not None)
    left = line_of(lines, "unexplained")
    assert left["seconds"] == pytest.approx(gap - known) and left["verdict"] == "unexplained mostly"
    assert "clocks" in left["reason"] and "no probe" in line_of(lines, "clocks")["reason"]
    # Plain arithmetic: phases are medians of split steps, the rest makes up for the difference.
    phases = parts(lines, "phase")
    assert sum(phases.values()) == pytest.approx(gap, rel=1e-12)
    assert phases["backward"] == pytest.approx(SPLIT["backward_s"] * 1.02 * 0.008, rel=1e-3)


@pytest.mark.parametrize(
    ("cause", "changed", "own"),
    [
        ("products", {"cpu": {"rate": 5e10}}, {"rate": 5e10}),
        ("memory", {"cpu": {"memory": 1e10}}, {"memory": 1e10}),
        ("launches", {"cpu": {"launch_s": 9e-6}}, {"launch_s": 9e-6}),
        ("page_faults", {"faults": 4040}, {"faults": 4040}),
    ],
)
def test_one_input_moves_one_cause(
    cause: str, changed: dict[str, Any], own: dict[str, Any], tmp_path: Path
) -> None:
    before = explained(tmp_path / "a", two_devices())
    after = explained(tmp_path / "b", two_devices(**changed))
    moved = parts(after, "cause")
    for name, seconds in parts(before, "cause").items():
        if name != cause:
            assert moved[name] == (None if seconds is None else pytest.approx(seconds, abs=2e-8))
    by = (expected_causes(**own)[cause] or 0) - (expected_causes()[cause] or 0)
    assert moved[cause] - parts(before, "cause")[cause] == pytest.approx(by, rel=1e-3)
    change = (
        parts(after, "unexplained")["unexplained"] - parts(before, "unexplained")["unexplained"]
    )
    assert change == pytest.approx(-by, rel=1e-3)  # the gap itself stays what it was


def test_more_than_the_gap_is_said_to_be_too_much(tmp_path: Path) -> None:
    lines = explained(tmp_path, two_devices(cpu={"rate": 1e10}))
    left = line_of(lines, "unexplained")
    assert left["seconds"] < -0.009 and left["verdict"] == "over-explained"
    enough = explained(tmp_path / "enough", two_devices(cpu={"rate": 2.9e10}))
    assert line_of(enough, "gap")["verdict"] == "explained mostly"


@pytest.mark.slow
def test_equal_steps_have_nothing_to_explain(tmp_path: Path) -> None:
    lines = explained(tmp_path, [training(0.010), training(0.01001, backend="mlx")])
    assert line_of(lines, "gap")["verdict"] == "no gap beyond noise"
    page = render(tmp_path / "results")
    assert "no difference beyond noise, so there is nothing to explain" in page.of("why")


def test_what_is_missing_has_its_reason(tmp_path: Path) -> None:
    lines = explained(tmp_path, [training(0.010), training(0.030, backend="mlx")])
    reasons = {
        line["part"]: line["reason"]
        for line in lines
        if line["kind"] == "cause" and line["seconds"] is None
    }
    assert set(reasons) == {"products", "memory", "launches", "page_faults", "clocks"}
    assert "no matmul cell in fp32" in reasons["products"]
    assert "40 minor faults a step" in reasons["page_faults"]
    assert "bandwidth" in reasons["memory"] and "no kernel_launch cell" in reasons["launches"]
    left = line_of(lines, "unexplained")
    assert left["seconds"] == pytest.approx(line_of(lines, "gap")["seconds"])
    assert all(cause in left["reason"] for cause in reasons)


def test_products_without_a_sweep_are_held_against_the_ceiling_on_both_sides(
    tmp_path: Path,
) -> None:
    on_gpu = matmul([product((1, 512, 512, 512), 1e13)], **GPU)
    cells = [training(0.010), training(0.002, **GPU), products(1e11), on_gpu]
    line = line_of(explained(tmp_path, cells), "products")
    assert line["seconds"] == pytest.approx(FLOPS / 1e11 - FLOPS / 1e13, rel=0.01)
    assert line["slow_how"].startswith("coarser") and line["fast_how"].startswith("coarser")
    # At least the operations over the fastest product, and at most the whole step, on either side.
    least = {"slow": FLOPS / 1e11, "fast": FLOPS / 1e13}
    assert line["low_s"] == pytest.approx(least["slow"] - 0.002, rel=0.02)
    assert line["high_s"] == pytest.approx(0.010 - least["fast"], rel=0.02)


def test_what_only_a_high_estimate_explains_is_perhaps_explained(tmp_path: Path) -> None:
    """Launches of a backend that queues may cost anything from 0 on."""
    mlx = {"backend": "mlx"}
    cells = [
        training(0.006),
        training(0.016, **mlx),
        *beside(1e11, 3e10, 3e-6),
        products(1e11, **mlx),
        bandwidth(3e10, 12e10, **mlx),
        launching(9e-6, 120e-6, **mlx),
    ]
    lines = explained(tmp_path, cells)
    assert line_of(lines, "launches")["share"] > 0.5
    assert line_of(lines, "gap")["verdict"] == "perhaps explained"
    cells[-1] = launching(9e-6, **mlx)  # the same cost, which nothing can hide
    sure = explained(tmp_path / "sure", cells)
    assert parts(sure, "cause")["launches"] == parts(lines, "cause")["launches"]
    assert line_of(sure, "gap")["verdict"] == "explained mostly"


def test_flags_of_the_cells_that_estimates_rest_on_are_told(tmp_path: Path) -> None:
    cells = two_devices()
    slow, *_ = [cell for cell in cells if cell["cell"]["workload"] == "kernel-launch"]
    slow["flags"] = [{"code": "noisy", "detail": "made so"}]
    lines = explained(tmp_path, cells)
    assert "kernel-launch flagged noisy" in line_of(lines, "launches")["slow_how"]
    assert "flagged" not in line_of(lines, "launches")["fast_how"]


def test_without_a_plain_fp32_cell_the_rule_says_so(tmp_path: Path) -> None:
    half = {"precision": "amp-bf16"}
    lines = explained(tmp_path, [training(0.010, **half), training(0.030, backend="mlx", **half)])
    assert {line["rule"] for line in lines} == {"against the fastest cell"}


def test_a_sweep_serves_every_trainer_of_the_same_step(tmp_path: Path) -> None:
    cells = [training(0.010), training(0.012, trainer="hf"), *beside(1e11, 3e10, 3e-6)]
    lines = explained(tmp_path, cells)
    assert parts(lines, "cause")["products"] == 0.0
    assert "in bursts" in line_of(lines, "products")["slow_how"]
    assert line_of(lines, "products")["slow_s"] == pytest.approx(BURST * FLOPS / 1e11)


# -- a Mac, offloading, clocks ---------------------------------------------------------------------


def test_launches_that_a_queue_may_hide_begin_at_zero(tmp_path: Path) -> None:
    on_mac = [products(1e12, **MPS), launching(5e-6, 150e-6, **MPS)]
    mlx = MPS | {"backend": "mlx"}
    cells = [
        training(0.006, **MPS),
        training(0.016, **mlx),
        products(1e12, **mlx),
        launching(9e-6, 11e-6, **mlx),
    ]
    line = line_of(explained(tmp_path, [*cells, *on_mac]), "launches")
    torch_s, mlx_s = (2 * 34 + 26 + 9 * 28 - COUNT) * 5e-6, (OPERATORS["mlx"] - COUNT) * 9e-6
    assert line["seconds"] == pytest.approx(mlx_s - torch_s)
    # MLX waits hardly longer than it launches here: it is not hidden. The other may be wholly.
    assert (line["low_s"], line["high_s"]) == pytest.approx((mlx_s - torch_s, mlx_s))


def test_a_clock_that_was_held_down_explains_its_part(tmp_path: Path) -> None:
    hot = probed(
        training(0.010, **MPS),
        clocks={
            "throttled": True,
            "power_capped": None,
            "limits": {"thermal pressure heavy": 0.4},
            "gpu_sm_clock_median_mhz": 900.0,
            "gpu_sm_clock_max_mhz": 1200.0,
        },
    )
    cool = probed(
        training(0.006, **(MPS | {"backend": "mlx"})),
        clocks={"throttled": False, "power_capped": None, "limits": {}},
    )
    line = line_of(explained(tmp_path, [hot, cool]), "clocks")
    assert line["seconds"] == pytest.approx(0.010 * (1 - 900 / 1200), rel=1e-3)
    assert (line["low_s"], line["high_s"]) == pytest.approx((0, line["seconds"]))
    assert "40%" in line["slow_how"] and "nothing held" in line["fast_how"]
    silent = probed(training(0.010, **MPS), clocks={"throttled": True, "limits": {"heat": 0.1}})
    line = line_of(explained(tmp_path / "silent", [silent, cool]), "clocks")
    assert line["seconds"] is None and "no clock tells by how much" in line["reason"]


def test_offloaded_bytes_over_the_measured_copies(tmp_path: Path) -> None:
    offloaded = training(0.009, scenario="offload", **GPU)
    offloaded["scenario"]["applied"] = "offload"
    cells = [training(0.002, **GPU), offloaded, transfers(1e10, **GPU)]
    line = line_of(explained(tmp_path, cells), "offload")
    assert line["seconds"] == pytest.approx(2 * 4 * PARAMETERS / 1e10, rel=1e-2)  # there and back
    without = explained(tmp_path / "without", cells[:2])
    assert "no copy" in line_of(without, "offload")["reason"]
    # Its optimizer works in the host's memory, of which nothing is known.
    assert (
        "host's memory"
        in line_of(explained(tmp_path / "h", [*cells, bandwidth(1e12, 4e12, **GPU)]), "memory")[
            "reason"
        ]
    )


def test_swap_is_never_guessed(tmp_path: Path) -> None:
    swapping = training(0.030, backend="mlx")
    swapping["points"][0]["steps"]["major_faults"] = [7] * 62
    line = line_of(explained(tmp_path, [training(0.010), swapping]), "swap")
    assert line["seconds"] is None and "7 major faults" in line["reason"]


# -- which pairs -----------------------------------------------------------------------------------


def names(lines: Sequence[dict[str, Any]]) -> set[frozenset[str]]:
    """The pairs, without their order."""
    return {
        frozenset(
            "/".join(
                str(line[f"{side}_{axis}"]) for axis in ("host", "backend", "workload", "precision")
            )
            for side in ("fast", "slow")
        )
        for line in lines
    }


def test_only_equal_work_is_paired_and_not_everything_with_everything(tmp_path: Path) -> None:
    lora = {"parameters": {"lora_rank": 8}, "trained": 4096, "workload": "gpt2-nano-lora"}
    check = training(0.02, workload="gpt2-nano-offload", scenario="offload")
    check["flags"] = [{"code": "offload_on_cpu", "detail": "host and device are one"}]
    cells = [
        training(0.010),
        training(0.012, precision="amp-bf16"),
        training(0.030, backend="mlx"),
        training(0.050, backend="mlx", precision="amp-bf16"),
        training(0.011, trainer="hf"),
        training(0.009, **lora),
        training(0.04, samples=8, workload="gpt2-nano-8"),
        check,
    ]
    away = {"host": "gpu-box", "device": "rtx-4090", "backend": "torch-cuda", "device_kind": "gpu"}
    lines = explained(tmp_path, cells, foreign=[training(0.001, **away)])
    first = "desk/torch-cpu/gpt2-nano-plain/fp32"
    mlx, amp = "desk/mlx/gpt2-nano-plain/fp32", "desk/torch-cpu/gpt2-nano-plain/amp-bf16"
    mlx_amp = "desk/mlx/gpt2-nano-plain/amp-bf16"
    others = [
        mlx,
        amp,
        mlx_amp,
        "desk/torch-cpu/gpt2-nano-hf/fp32",
        "gpu-box/torch-cuda/gpt2-nano-plain/fp32",
    ]
    assert names(lines) == {frozenset((first, o)) for o in others} | {frozenset((amp, mlx_amp))}
    assert all(line["seconds"] > 0 for line in lines if line["kind"] == "gap")


def test_noise_floor_widens_the_gap(tmp_path: Path) -> None:
    cells = [training(0.010), training(0.011, backend="mlx")]
    narrow = line_of(explained(tmp_path, cells), "gap")
    assert narrow["verdict"] != "no gap beyond noise"
    figures = [
        {
            "cell": f"desk/cpu-x/{backend}/gpt2-nano-plain/auto/fp32",
            "device": "cpu-x",
            "backend": backend,
            "point": "x",
            "metric": "unsplit_step_s",
            "group": "a",
            "values": [0.010 * (1 + 0.1 * (i % 5 - 2)) for i in range(12)],
            "records": [],
        }
        for backend in ("torch-cpu", "mlx")
    ]
    floor = tmp_path / "desk.json"
    floor.write_text(
        json.dumps({"floor_version": 1, "host": "desk", "runs": [{"figures": figures}]})
    )
    tables = str(tmp_path / "results/tables")
    attribution.main(["--tables", tables, "--output-dir", tables, "--noise-floors", str(floor)])
    wide = line_of(table_files.rows(table_files.read(Path(tables) / "attribution.csv")), "gap")
    assert wide["low_s"] < narrow["low_s"] and wide["high_s"] > narrow["high_s"]
    assert wide["verdict"] == "no gap beyond noise" and "A/A processes" in wide["fast_how"]


# -- the page --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_page_says_it_in_words_with_numbers(tmp_path: Path) -> None:
    away = {"host": "gpu-box", "device": "rtx-4090", "backend": "torch-cuda", "device_kind": "gpu"}
    explained(tmp_path, two_devices(cpu={"rate": 4e10}), foreign=[training(0.001, **away)])
    page = render(tmp_path / "results")
    said = page.of("why")
    assert "which takes 8.00 ms more a step" in said.replace("\u2009", " ")
    assert " ms): 4.88 ms (61 %) in matrix products" in said.replace("\u2009", " ")
    assert "Clocks, in 1 of 1 pair: no probe looked at its clocks" in said
    row = page.column("table-why", "matrix products")
    assert [value[:4] for value in row.values()] == ["4.88"]
    assert any("other host" in cell for line in page.tables["table-others-why"] for cell in line)
    assert "takes 8.00 ms" in page.of("summary").replace("\u2009", " ")
    assert 'id="figure-why-gpt2-nano-4-256"' in page.html


@pytest.mark.slow
def test_nothing_to_compare_is_said(tmp_path: Path) -> None:
    assert explained(tmp_path, [training(0.010)]) == []
    assert "Nothing to explain" in render(tmp_path / "results").of("why")
    assert load(tmp_path / "results").attribution == []


# -- the operators of a step -----------------------------------------------------------------------


def stepping(backend_name: str, module: str, rank: int, precision: str, again: bool) -> Any:
    """(runs a step of the smallest model, the row that the formula is asked with)."""
    plugin = plugins.load("workloads", module)
    defaults = {name: value.get("default") for name, value in plugin.PARAMETERS.items()}
    own = {
        "size": "nano",
        "batch_size": 2,
        "dataset_vocab_size": 64,
        "gradient_checkpointing": again,
    }
    speech = {"dataset_clip_seconds": 1, "dataset_n_mels": 80, "target_len": 16}
    parameters = (
        defaults | own | (speech if module == "whisper" else {"seq_len": 16, "lora_rank": rank})
    )
    workload = plugin(parameters)
    backend = plugins.load("backends", backend_name)()
    backend.import_framework()
    backend.open("cpu", 0, 1, precision)
    stepper = backend.stepper(workload, 0)
    ids = np.zeros((2, 16), np.int32)
    batch = {"input_ids": ids, "labels": ids}
    if module == "whisper":
        batch = next(iter(workload.batches(step_shapes.blank_data("speech", parameters), 0)))
    clock = PhaseClock(backend)
    clock.split = False

    def step() -> None:
        stepper.step(batch, clock)

    step()
    row = {
        "module": module,
        "size": "nano",
        "lora_rank": rank,
        "precision": precision,
        "backend": backend_name,
        "gradient_checkpointing": again,
    }
    return step, row


KINDS = [
    ("gpt2", 0, "fp32", False),
    ("gpt2", 0, "amp-bf16", True),
    ("gpt2", 4, "fp32", True),
    ("whisper", 0, "fp32", False),
    ("whisper", 0, "amp-bf16", False),
]


@pytest.mark.parametrize(("module", "rank", "precision", "again"), KINDS)
def test_formula_counts_what_torch_dispatches(
    module: str, rank: int, precision: str, again: bool
) -> None:
    step, row = stepping("torch-cpu", module, rank, precision, again)
    found = dispatched_by_torch(step)
    told, _ = step_operators.launches(row)
    assert told == pytest.approx(found.total(), rel=0.03), found  # another torch may fuse one more


@pytest.mark.parametrize(("module", "rank", "precision", "again"), KINDS)
def test_formula_counts_what_mlx_has_in_its_graph(
    module: str,
    rank: int,
    precision: str,
    again: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, row = stepping("mlx", module, rank, precision, again)
    found = evaluated_by_mlx(step, tmp_path, monkeypatch)
    told, _ = step_operators.launches(row)
    assert told == pytest.approx(found.total(), rel=0.03), found


def test_what_nobody_counted_is_said() -> None:
    row = {"module": "gpt2", "size": "huge", "precision": "fp32", "backend": "mlx"}
    told, why = step_operators.launches(row)
    assert told is None and "nobody has counted" in why
