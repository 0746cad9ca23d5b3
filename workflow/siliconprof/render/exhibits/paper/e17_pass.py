"""Table 4 of the paper: one pass by MLX and by PyTorch; beside it the plain loop and the HF Trainer."""

import pandas as pd

from siliconprof.analyse.frames import CELL, Frames, pairs, uses_defaults
from siliconprof.render.exhibit import Exhibit, Num, Text

STEP = "whole_step_ms"
ENDS = ("", "_low", "_high")


def rows(frames: Frames) -> pd.DataFrame:
    """Both sides of every comparison as named, `first` and `second`, and the first over the second."""
    return pd.concat([measured(frames), printed(frames)], ignore_index=True)


def measured(frames: Frames) -> pd.DataFrame:
    """Pairs of equal work on one device, in fp32 and in memory, with all choices at their defaults."""
    frame = frames.steps
    same = frame["precision"].eq("fp32") & frame["stage"].eq("fits") & ~frame["lora_rank"].gt(0)
    frame = frame[frame["module"].isin(["gpt2", "whisper"]) & same & uses_defaults(frame)]
    backends, trainers = pairs(frame, "backend"), pairs(frame, "trainer")
    backends = backends[backends["backend"].eq("mlx") & backends["trainer"].eq("plain")]
    trainers = trainers[trainers["trainer"].eq("plain") & trainers["trainer_other"].eq("hf")]
    by_trainer = "HF Trainer against plain loop, " + trainers["backend_label"]
    by_backend = backends["backend_label_other"] + " against " + backends["backend_label"]
    both = [backends.assign(compared=by_backend), trainers.assign(compared=by_trainer)]
    found = pd.concat(both).query("source == source_other").sort_values(["order", "order_other"])
    steps = {end: (found[f"{STEP}{end}_other"], found[f"{STEP}{end}"]) for end in (*ENDS, "_n")}
    return found[[*CELL, "device_label", "whose", "work_label", "compared"]].assign(
        **{f"first{end}": first for end, (first, _) in steps.items()},
        **{f"second{end}": second for end, (_, second) in steps.items()},
        times=steps[""][0] / steps[""][1],
        times_low=steps["_low"][0] / steps["_high"][1],
        times_high=steps["_high"][0] / steps["_low"][1],
        times_n=pd.concat(steps["_n"], axis=1).min(axis=1),
    )


def printed(frames: Frames) -> pd.DataFrame:
    """The paper's passes, with their ratio where it prints two of a device."""
    frame = frames.published("table4_pass_time")
    frame["ms"] = 1e3 * frame["pass_time_s"].astype(float)
    of = ["device", "workload", "batch_size"]
    is_mps = frame["backend"] == "torch-mps"
    found = frame[~is_mps].merge(frame[is_mps][[*of, "ms", "backend"]], "left", of)
    others = found["backend_y"].add(" against ").fillna("")
    return pd.DataFrame(
        {
            "compared": others + found["backend_x"],
            "device_label": found["device_label"],
            "whose": "",
            "work_label": found["workload"] + ", batch " + found["batch_size"],
            "first": found["ms_y"].fillna(found["ms_x"]),
            "second": found["ms_x"].where(found["ms_y"].notna()),
            "times": found["ms_y"] / found["ms_x"],
            "published": True,
            "times_computed": True,
            "source_text": found["source"],
            "why_not": "not printed",
        }
    )


PASS = "whole step, optimizer included; the paper does not say what is in its pass"
EXHIBIT = Exhibit(
    id="paper-table-4",
    rows=rows,
    table=(
        Text("device_label", "Device", badge="whose"),
        Text("work_label", "Training", prose=True),
        Text("compared", "Compared"),
        Num("first", "First named", "ms a pass", help=PASS),
        Num("second", "Second named", "ms a pass", help=PASS),
        Num("times", "First / second", "×", help="above 1: the first takes longer"),
    ),
    needs="It needs gpt2 or whisper in fp32 by two backends or two trainers.",
)
