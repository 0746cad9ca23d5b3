"""Section 5: which device for which model of Table 2, by measured and printed times and energies."""

import pandas as pd

from siliconprof.analyse.frames import DEVICE, POINT, Frames, records, uses_defaults
from siliconprof.render.exhibit import Exhibit, Num, Text
from siliconprof.render.exhibits.paper._needs import SCENARIOS

KEY = ["model", "device"]
NEITHER = "neither measured nor printed"


def measured(frames: Frames, models: pd.Series) -> pd.DataFrame:
    """The fastest training of each model on each device, with the energy of its GPU."""
    frame = frames.trainings
    has_adapters = pd.to_numeric(frame["lora_rank"]).gt(0)
    usual = uses_defaults(frame) & ~frame["is_mechanism_check"] & ~has_adapters
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
        frames.published(name).rename(columns={"workload": "model"}).drop_duplicates(KEY)
        for name in ("table4_pass_time", "table5_energy", "table3_configurations")
    )
    rate = passes["batch_size"].astype(float) / passes["pass_time_s"].astype(float)
    joules = energies["energy_per_iteration_j"].astype(float) / energies["batch_size"].astype(float)
    passes = passes.assign(samples_per_s=rate)[[*KEY, "device_label", "backend", "samples_per_s"]]
    energies = energies.assign(energy_per_sample_j=joules)
    energies = energies[[*KEY, "device_label", "energy_per_sample_j"]]
    frame = passes.merge(energies, on=[*KEY, "device_label"], how="outer")
    frame = frame.merge(scenarios[[*KEY, "scenario"]], on=KEY, how="left")
    scenario = frame["scenario"].map(SCENARIOS)
    own = {"scenario": scenario, "setup": frame["backend"]}
    return frame.assign(**own, computed=True, source="", whose="the paper")


def rows(frames: Frames) -> pd.DataFrame:
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


EXHIBIT = Exhibit(
    id="paper-choice",
    rows=rows,
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
