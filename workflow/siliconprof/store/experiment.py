"""The experiment as a config file says it. What a machine or cluster needs is in a profile instead.

Each key has its meaning, unit and default here, of which docs/generate.py makes config/README.md. What a
workload's module adds is its plug-in's `Parameters`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from siliconprof import plugins
from siliconprof.parameters import Count, NotNegative, Positive, Several, one_of
from siliconprof.store.cell import PRECISIONS, SCENARIOS
from siliconprof.store.model import Id, Label, Part, absent, key, matches, required
from siliconprof.store.names import LONGEST_LABEL

Backends = Several[Annotated[str, one_of("backends")]]
Scenarios = Several[Annotated[str, one_of(SCENARIOS)]]
Precisions = Several[Annotated[str, one_of(PRECISIONS)]]
Kinds = Several[Literal["cpu", "gpu"]]
Repeats = Annotated[int, Field(ge=1, le=100)]
Resource = Annotated[str, matches("[a-z][a-z0-9_]*")]
# Executor plug-ins insert some resources into a shell's command as they are.
OfAShell = Annotated[
    str,
    matches(
        r"[A-Za-z0-9 ._:,=@%+/&|*()\[\]-]+",
        "letters, digits, spaces and . _ : , = @ % + / & | * ( ) [ ] -",
    ),
]


class Timing(Part):
    """How long to warm up and to measure."""

    warmup_iterations: Count = key(3, "warm-up iterations at least")
    warmup_budget_s: NotNegative = key(1.0, "seconds of warm-up at most, once the least is done")
    iterations: Annotated[int, Field(ge=2)] = key(6, "measured iterations at least")
    max_iterations: Annotated[int, Field(ge=2)] = key(1000, "measured iterations at most")
    budget_s: NotNegative = key(
        2.0, "seconds of measuring at most, once the least is done; less at a 95 % interval of 2 %"
    )
    retries: Annotated[int, Field(ge=0)] = key(
        1,
        "times that an operation is measured again at most, each after a pause of 0.5 s, when its times "
        "scatter or drift; once at least where other processes kept it from a core; a training never is",
    )
    retry_budget_s: NotNegative = key(
        2.0, "seconds of a cell that this may take in all, pauses included"
    )
    energy_window_s: NotNegative = key(
        10,
        "seconds of unsynchronised training steps over which energy is read, where it can be; 0 = never",
    )
    energy_idle_s: NotNegative = key(
        5, "seconds of idle power before and after, where energy can be read"
    )
    time_limit_s: Positive = key(
        300, "seconds after which the whole cell is ended, waiting for the host not counted"
    )


class Node(Part):
    """A kind of node that a cluster lends."""

    device: Id = required(
        "device that a node must turn out to have: an id of `config/devices.yaml`, such as "
        "`h200`, one that begins with `cpu-` or `gpu-` of a device without an entry, or `cpu` for "
        "whatever CPU the node has; a cell that reaches a node without it fails and says so"
    )
    resources: dict[Resource, OfAShell | int] = key(
        {},
        "what leads to such a node, as the executor plug-in takes it: for Slurm `slurm_partition`, "
        "`constraint`, `gres`, `cpus_per_task`, `mem_mb`, ...; `runtime`, in minutes, is computed from "
        "a cell's `time_limit_s` where it is not given, with room to wait for one other cell",
    )


class Dataset(Part):
    """A data set; `dataset_spec` says which keys belong to which kind."""

    kind: Literal["text", "speech", "images"] = key(
        "text",
        "what it holds: `text` becomes tokens for a language model, `speech` log-mel features and "
        "transcripts for Whisper, `images` 28 x 28 grey images of ten classes, laid out like MNIST",
    )
    source: Literal["builtin", "hub", "folder"] = required(
        "`builtin` needs no download: documentation as text, generated clips and patterns "
        "(labelled synthetic) as speech and images; `hub` is a `datasets` name; `folder` the hub's own "
        "layout on disk, or for text what IMDb's `aclImdb` and PTB's `simple-examples` unpack to, or "
        "for speech a language of Mozilla's Common Voice archive (`clips/` beside `train.tsv`), or "
        "for images the four IDX files of MNIST (`train-images-idx3-ubyte`, ..., as they are or `.gz`)"
    )
    path: str | None = key(
        None,
        "hub name (`stanfordnlp/imdb`, `ptb-text-only/ptb_text_only`, `zalando-datasets/fashion_mnist`) "
        "or folder; Common Voice left the hub in October 2025, so it is a folder",
    )
    subset: str | None = key(
        None,
        "configuration name in the hub's sense; on `refs/convert/parquet` the subfolder of that name",
    )
    revision: str | None = key(
        None,
        "commit or branch on the hub, the main branch when null; `refs/convert/parquet` is the hub's "
        "parquet copy of a data set that is a script, as PTB is",
    )
    split: str = key(
        "train",
        "text, speech: split to read; in a folder of Common Voice the name of a list, `validated` for "
        "`validated.tsv`",
    )
    text_column: str = key(
        "text",
        "text, speech: column that holds the text or transcript; `sentence` in PTB and Common Voice",
    )
    tokenizer: str | None = key(
        None,
        "text, speech: hub name or folder that holds a `tokenizer.json`, such as openai-community/gpt2 "
        "or openai/whisper-medium; null = a byte-level BPE is trained on the text",
    )
    vocab_size: Annotated[int, Field(ge=257, le=262144)] = absent(
        "text, speech, which must have it: tokens of the byte-level BPE that is trained on the text, "
        "261 at least for speech; with a tokenizer given, at least its size"
    )
    max_bytes: Annotated[int, Field(ge=1000)] = key(4_000_000, "text: bytes used at most")
    clip_seconds: Annotated[int, Field(ge=1, le=30)] = key(
        2,
        "speech: seconds of every clip; shorter ones are padded with silence, longer ones left out; "
        "Whisper's own is 30",
    )
    max_clips: Count = key(128, "speech: clips used at most")
    audio_column: str = key(
        "audio",
        "speech: column that holds the audio, or its file's name, relative to the data set's folder",
    )
    n_mels: Annotated[int, one_of((80, 128))] = key(
        80, "speech: mel bands of the features; 80 in Whisper, 128 in its large-v3"
    )
    n_train: Count = key(50_000, "images: the first so many of the source's `train` are trained on")
    n_validation: Count = key(
        10_000, "images: the last so many of the source's `train` are for validation"
    )
    n_test: Count = key(10_000, "images: the first so many of the source's `test` are for the test")
    image_column: str = key("image", "images: column that holds the image; the IDX files have none")
    label_column: str = key("label", "images: column that holds the class, 0 to 9")


class Workload(Part):
    """What every workload entry may have, whatever its module."""

    module: Annotated[str, one_of("workloads")] = required("workload plug-in")
    trainer: str = absent("trainer plug-in, for a workload that trains: `plain` or `hf`")
    dataset: str = absent("name of an entry in `datasets`, for a workload that reads one")
    device_kinds: Kinds = key(["cpu", "gpu"], "kinds of device that this entry is for")
    backends: Backends = absent("backends of this entry; the experiment's when absent")
    precisions: Precisions = absent("precisions of this entry; the experiment's when absent")
    scenarios: Scenarios = absent("scenarios of this entry; the experiment's when absent")
    repeats: Repeats = absent(
        "fresh processes of each cell of this entry; the experiment's when absent"
    )
    fit_batch: bool = key(
        False,
        "take a smaller batch where `batch_size` does not fit: the largest power of two that by the memory "
        "model fits on every device of the host that can train it, under every backend and in every precision; "
        "entries that train the same model, by another trainer say, take the same batch; record, plan and "
        "page say so. Without it the entry is offloaded or skipped there",
    )
    capture: str = key(
        "",
        "command put before the measuring process, such as a profiler; `{output}` in it is the path of "
        "its file below `results/captures/{cell}/`. The cell is slower under it, which its flag "
        "`captured` says",
    )
    timing: Timing = absent("as above, for this entry alone")


class AnyWorkload(Workload, extra="ignore"):
    """An entry whose module is unknown, and with it the keys that it adds."""


class Report(Part):
    """The page."""

    title: str = key("How fast does this machine train?", "headline of the report")
    host: Label | None = key(
        None,
        "label of the host that the page is about, also one whose records were imported or collected; "
        "null = this host where it has cells, else the first label of `cluster` that has",
    )


class Experiment(Part):
    """A whole config; entries of `workloads` have the keys of their modules as well."""

    experiment: Annotated[str, Field(max_length=LONGEST_LABEL)] = key(
        "default", "name of this experiment, printed on the report"
    )
    prefix: Annotated[str, Field(max_length=200)] = key(
        "",
        "the `prefix:` of a `module` where another workflow uses this one, below which its `results/` "
        "lies",
    )
    host: Label = key(
        "auto",
        "label of this host, the first part of every record's path; `auto` takes the hostname in the "
        "first run and keeps it in `results/hosts/auto.json`",
    )
    devices: Annotated[
        list[Annotated[str, Field(max_length=LONGEST_LABEL)]], Field(min_length=1)
    ] = key(
        ["local"],
        "devices under test, ids of `config/devices.yaml` or of this host; `local` is every device that "
        "this host has; one that this host lacks is reported as not measured",
    )
    cluster: dict[Label, Node] = key(
        {},
        "kinds of node that a cluster lends, by the label that their records carry; where there are "
        "any, each cell goes to a node that has its label's device, by the executor of a profile "
        "(`snakemake --workflow-profile profiles/slurm report`), and the host where Snakemake is "
        "started is not measured; `devices: [local]` are all labels, ids or labels choose fewer",
    )
    backends: Backends = Field(
        description="software paths to measure, as far as the host has them; all when absent",
        default_factory=lambda: plugins.names("backends"),
    )
    scenarios: Scenarios = key(
        ["auto"],
        "memory situations to ask for; `auto` measures the one that the memory model derives",
    )
    precisions: Precisions = key(
        ["fp32"], "arithmetic to ask for; each workload may have a list of its own"
    )
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = key(
        0, "of the initial weights, the order of the data and the operands"
    )
    cpu_threads: Count | Literal["auto"] = key(
        "auto",
        "CPU threads of every cell; `auto` = an Apple chip's performance cores, the physical cores of "
        "a hybrid Intel processor, else all processors that this host may use",
    )
    timing: Timing = key(
        Timing(), "how long to warm up and to measure; each workload may override any of these"
    )
    repeats: Repeats = key(
        1,
        "fresh processes in which each cell is measured, one after the other within its time limit; "
        "from two on every interval is the one between them; a change measures the cell anew",
    )
    remeasure_contended_s: NotNegative = key(
        30,
        "a training of the answer's table that other processes disturbed (flag `contended`) is measured "
        "once more if it took at most so many seconds and they have ended; the less disturbed record "
        "stays, `results/history` has both; cells with `capture` are left out; 0 = never",
    )
    datasets: dict[Label, Dataset] = key(
        {},
        "data sets by name, prepared once and given to all frameworks as the same arrays",
    )
    model: str | None = key(
        None,
        "a model of yours, a hub id (with `@revision`) or a folder with a config.json: it is trained in the "
        "place of `workloads`, of which the operations of `quick` stay, since they explain its speed; "
        "`make report MODEL=…`",
    )
    batch: Count | None = key(
        None, "with `model`: samples per training step; null = 1 on a processor, 8 on a GPU"
    )
    seq_len: Annotated[int, Field(ge=2)] | None = key(
        None, "with `model`: tokens per sequence; null = 128 on a processor, 512 on a GPU"
    )
    lora: Annotated[int, Field(ge=0)] | None = key(
        None, "with `model`: rank of LoRA adapters; null or 0 = train every parameter"
    )
    workloads: Annotated[dict[Label, dict[str, Any]], Field(min_length=1)] = required(
        "what is trained or computed, by name; the keys that a module adds are listed below"
    )
    emulated_workloads: list[Annotated[str, Field(max_length=LONGEST_LABEL)]] | None = key(
        None,
        "workloads measured on a processor in a precision that is computed without instructions for "
        "it, such as bf16 on x86 without AVX-512 BF16 and AMX, or by MLX but on a Mac; all others are "
        "skipped there, with the reason; null = all are measured",
    )
    only_forked: list[Annotated[str, Field(max_length=LONGEST_LABEL)]] = key(
        [],
        "workloads measured only where a cell's process is forked from one that has imported its libraries, "
        "as it is on Linux but for MLX on a GPU; elsewhere, as on macOS, each cell imports them anew, which "
        "takes seconds, and these are skipped, with the reason",
    )
    quick: list[Annotated[str, Field(max_length=LONGEST_LABEL)]] = key(
        [],
        "workloads that the target `quick` measures for a first answer, in half a minute on two cores; the target "
        "`report` goes on from there",
    )
    report: Report = key(Report(), "the page")
