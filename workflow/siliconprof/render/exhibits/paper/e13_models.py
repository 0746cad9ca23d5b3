"""Table 2: models with their parameters, 16 bytes each as printed and true, and measured peaks."""

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.memory.memory_model import BYTES_PER_PARAMETER
from siliconprof.render.exhibit import Exhibit, Num, Text
from siliconprof.render.exhibits.paper._needs import model_and_size, short_place, texts

GIB = 2.0**30
MODEL = ["module", "size"]


def rows(frames: Frames) -> pd.DataFrame:
    models = frames.results.frame("models").rename(columns={"model": "module"})
    printed = frames.published("table2_workloads").rename(columns={"source": "source_text"})
    names = [model_and_size(name) for name in printed["workload_as_printed"]]
    printed[MODEL] = pd.DataFrame(names, printed.index, MODEL)
    printed["printed_m"] = printed["parameters_m"].astype(float)
    printed["printed_gib"] = printed["theoretical_memory_gib"].astype(float)
    printed["true_gib"] = printed["printed_m"] * 1e6 * BYTES_PER_PARAMETER / GIB
    frame = models.merge(printed, on=MODEL, how="left")
    points = frames.trainings
    points = points[points["device_peak_bytes"].gt(0) & points["apart"].eq("")]
    points = points[points["stage"].eq("fits") & points["precision"].eq("fp32")]
    first = points.drop_duplicates([*MODEL, "place", "backend"])  # trainers differ little
    batch = texts(first["samples_per_step"], ", batch {:.0f}")
    place = short_place(first) + ", " if first["place"].nunique() > 1 else ""
    # The vocabulary of its data, so the number of its parameters, is the measured training's own.
    own = {"how": place + first["backend_label"] + batch, "own_parameters": first["n_parameters"]}
    columns = [*MODEL, "device_peak_bytes", *own]
    frame = frame.merge(first.assign(**own)[columns], on=MODEL, how="left")
    known = frame["own_parameters"].fillna(frame["n_parameters"])
    frame["n_parameters"] = known.astype("Int64")
    frame["theoretical_gib"] = frame["n_parameters"] * BYTES_PER_PARAMETER / GIB
    frame = frame[frame["printed_m"].notna() | frame["how"].notna()]
    missing = dict.fromkeys(("printed_m_why", "printed_gib_why", "true_gib_why"), "not in Table 2")
    return frame.assign(
        model=frame["module"] + "-" + frame["size"],
        lora_trainable_why="has no adapters here",
        **missing,
    )


EXHIBIT = Exhibit(
    id="paper-table-2",
    rows=rows,
    table=(
        Text("model", "Model"),
        Num("n_parameters", "Parameters", integer=True),
        Num("printed_m", "Parameters, printed", "10⁶", digits=4, published=True),
        Num("printed_gib", "16 bytes each, printed", "“GiB”", digits=5, published=True),
        Num("true_gib", "True, of the printed", "GiB", digits=5, computed=True),
        Num("theoretical_gib", "16 bytes each", "GiB", digits=4),
        Num("lora_trainable", "Trained with LoRA 8", integer=True),
        Num("device_peak_bytes", "Measured peak, fp32", "MiB", scale=2.0**20),
        Text("how", "Measured with"),
    ),
    needs="It needs a published Table 2.",
)
