"""Table 6, Figures 5 to 7 and Section 5 of the paper: launches, single operations, which device for what."""

from collections.abc import Mapping

import pandas as pd

from siliconprof import formatting
from siliconprof.analyse.frames import CELL, DEVICE, POINT, Frames, records, uses_defaults
from siliconprof.formatting import GIGA
from siliconprof.render.axes import DISTURBED_MEANS
from siliconprof.render.drawers import DotInterval
from siliconprof.render.exhibit import Exhibit, Num, Text, exhibit
from siliconprof.render.exhibits.paper._needs import PAPER_SCENARIOS

LAUNCH_KINDS = {
    "cold_ms": ("Cold", "median of the first launches of fresh processes"),
    "launch_and_wait_ms": ("Launch and wait", "one launch and a wait for its end"),
    "amortised_ms": ("Amortised", "a burst with one wait at its end, per launch"),
    "enqueue_ms": ("Enqueue", "dispatch alone, per launch of a burst"),
}
REMARK = f", {DISTURBED_MEANS}"
UNKNOWN_LAUNCH = "the paper prints one follow-up launch, and not which of these it is"


@exhibit(
    "paper-table-6",
    table=(
        Text("device_label", "Device", badge="whose"),
        Text("backend_label", "Backend"),
        Text("launch", "Launched", below="note"),
        *(Num(kind, title, "µs", 1e-3, help=what) for kind, (title, what) in LAUNCH_KINDS.items()),
        Num("followup_ms", "Follow-up, as printed", "µs", 1e-3),
    ),
    shows=("kernel_launch",),
)
def paper_table_6(frames: Frames) -> pd.DataFrame:
    """Table 6 of the paper: kernel launch, by four numbers of which the paper prints two.

    Each launch of each backend, then what the paper prints.
    """
    measured = frames.points[frames.points["module"] == "kernel_launch"]
    columns = [f"{kind}{end}" for kind in LAUNCH_KINDS for end in ("", "_low", "_high", "_n")]
    names = ["device_label", "whose", "backend_label", "launch", "note"]
    frame = frames.published("table6_kernel_launch")
    printed = pd.DataFrame(
        {
            "device_label": frame["device_label"],
            "whose": "",
            "cold_ms": frame["cold_launch_ms"].astype(float),
            "followup_ms": frame["followup_launch_ms"].astype(float),
            "published": True,
            "source_text": frame["source"],
            "why_not": UNKNOWN_LAUNCH,
        }
    )
    why, note = measured["cold_reason"], measured["note"]
    is_disturbed = measured["point_disturbed"].notna()
    measured = measured.assign(note=note.mask(is_disturbed, note + REMARK))
    measured = measured[[*CELL, *names, *columns]]
    return pd.concat([measured.assign(cold_ms_why=why, followup_ms_why=UNKNOWN_LAUNCH), printed])


PRODUCT_SHAPE = ["batch", "m", "k", "n"]


def operations(
    number: int, module: str, unit: str, column: str = "", ways: Mapping[str, str] | None = None
) -> Exhibit:
    """Figure 5, 6 or 7 of the paper: an operation by shape, small ones first. It prints no values.

    Args:
        unit: GFLOP/s, or GB/s of what memory bounds.
        column: in which shapes differ too, with the `ways` of its values in words.
    """

    def rows(frames: Frames) -> pd.DataFrame:
        frame, amount = frames.points, "bytes" if unit == "GB/s" else "flops"
        frame = frame[frame["module"].eq(module) & frame[amount].gt(0) & frame["step_ms"].gt(0)]
        each = 1e3 / GIGA * frame[amount]
        shapes = records(frame[["module", *PRODUCT_SHAPE]])
        way = frame[column].map(ways).astype("string") if ways else ""
        return frame.assign(
            shape=pd.Series(map(formatting.shape, shapes), frame.index, "string") + way,
            rate=each / frame["step_ms"],
            rate_low=each / frame["step_ms_high"],
            rate_high=each / frame["step_ms_low"],
            size=frame[PRODUCT_SHAPE].prod(axis=1),
        ).sort_values(["size", *PRODUCT_SHAPE], kind="stable")

    return exhibit(
        f"paper-figure-{number}",
        figure=DotInterval(row="shape", value="rate", x=f"{unit}, more is better", unit=unit),
        shows=(module,),
    )(rows)


matmul = operations(5, "matmul", "GFLOP/s")
matvec = operations(6, "matvec", "GB/s", "cache", {"cold": ", from memory", "warm": ", from cache"})
vjp = operations(7, "vjp", "GFLOP/s", "forward", {"without": "", "with": ", with the forward pass"})


LAUNCH_KEY = ["model", "device"]
NEITHER = "neither measured nor printed"


@exhibit(
    "paper-choice",
    table=(
        Text("device_label", "Device", badge="whose"),
        Text("setup", "Setup"),
        Text("scenario", "Scenario"),
        Num("samples_per_s", "Speed", "samples/s", best="max"),
        Num("per_1000_usd", "For 1,000 USD", "samples/s", best="max"),
        Num("energy_per_sample_j", "Energy of the GPU", "J per sample", best="min"),
    ),
    each="model",
)
def paper_choice(frames: Frames) -> pd.DataFrame:
    """Section 5: which device for which model of Table 2, by measured and printed times and energies."""
    models = frames.published("table2_workloads")["workload_as_printed"]
    frame = pd.concat([measured(frames, models), printed(frames)], ignore_index=True).copy()
    price = [frames.sheets.price_usd(row) for row in records(frame[DEVICE])]
    frame = frame.assign(
        per_1000_usd=1e3 * frame["samples_per_s"] / pd.Series(price, frame.index, dtype=float),
        why_not=NEITHER,
        by_model=frame["model"].map({name: place for place, name in enumerate(models)}),
    )
    by = ["by_model", "computed", "samples_per_s"]
    return frame.sort_values(by, ascending=[True, True, False], kind="stable", ignore_index=True)


def measured(frames: Frames, models: pd.Series) -> pd.DataFrame:
    """The fastest training of each model on each device, with the energy of its GPU."""
    frame = frames.trainings
    usual = uses_defaults(frame) & ~frame["is_mechanism_check"] & ~frame["lora"]
    frame = frame[usual & frame["samples_per_s"].gt(0)]
    names = dict(zip(models.str.lower(), models, strict=True))
    frame = frame.assign(model=frame["model"].map(names)).dropna(subset=["model"])
    frame = frame.sort_values("samples_per_s", ascending=False, kind="stable")
    energy = frames.results.energy
    energy = energy[energy["scope"].eq("gpu") & energy["energy_per_sample_j"].notna()]
    frame = frame.drop_duplicates([*DEVICE, "model"]).merge(
        energy.drop_duplicates(POINT)[[*POINT, "energy_per_sample_j"]], on=POINT, how="left"
    )
    return frame.assign(scenario=frame["stage"], computed=False)


def printed(frames: Frames) -> pd.DataFrame:
    """The first pass of Table 4 and the energy of Table 5, by the batch's sample."""
    passes, energies, scenarios = (
        frames.published(name).rename(columns={"workload": "model"}).drop_duplicates(LAUNCH_KEY)
        for name in ("table4_pass_time", "table5_energy", "table3_configurations")
    )
    rate = passes["batch_size"].astype(float) / passes["pass_time_s"].astype(float)
    joules = energies["energy_per_iteration_j"].astype(float) / energies["batch_size"].astype(float)
    passes = passes.assign(samples_per_s=rate)[
        [*LAUNCH_KEY, "device_label", "backend", "samples_per_s"]
    ]
    energies = energies.assign(energy_per_sample_j=joules)
    energies = energies[[*LAUNCH_KEY, "device_label", "energy_per_sample_j"]]
    frame = passes.merge(energies, on=[*LAUNCH_KEY, "device_label"], how="outer")
    frame = frame.merge(scenarios[[*LAUNCH_KEY, "scenario"]], on=LAUNCH_KEY, how="left")
    scenario = frame["scenario"].map(PAPER_SCENARIOS)
    own = {"scenario": scenario, "setup": frame["backend"]}
    return frame.assign(**own, computed=True, source="", whose="the paper")
