"""The answer in a few lines, which a run ends with on the terminal, and what the page's head says."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd

from siliconprof import formatting
from siliconprof.analyse import answer, findings
from siliconprof.analyse.equal_work import DISTURBED, SMALLER, flagged
from siliconprof.analyse.frames import Frames, records
from siliconprof.hosts import remedies
from siliconprof.store import captions

MOST_TRAININGS = 6  # the largest models
MOST_FINDINGS = 2
MOST_SUMMARY_LINES = 12  # what failed aside
SUMMARY_WIDTH = 110
ANSWER_HEADER = ("training", "fastest setup", "time per step", "samples/s", "faster than")


def text(frames: Frames) -> str:
    """What failed, a table of the trainings of all hosts in their fastest setups, the first findings."""
    rows = answer.fastest(frames)
    whose = r" \[[^]]*\]"  # what no line has room for
    rows = rows.assign(comparison=rows["comparison"].str.replace(whose, "", regex=True))
    rows["setup"] += (" (" + rows["remark"] + ")").where(rows["remark"].ne(""), "")
    if rows["place"].nunique() > 1:
        rows["setup"] = rows["device_label"] + ", " + rows["setup"]
    shown = [_line(row) for row in records(rows.head(MOST_TRAININGS))]
    told = [
        line
        for sentence in [*answer.failures(frames), *unreadable(frames)]
        for line in textwrap.wrap(sentence, SUMMARY_WIDTH, subsequent_indent="  ")
    ]
    lines = told + (formatting.aligned([ANSWER_HEADER, *shown], {2, 3}) if shown else [])
    if more := len(rows) - len(shown):
        lines.append(f"and {formatting.count(more, 'more training')}: see the page")
    lines = [formatting.shortened(line, SUMMARY_WIDTH) for line in lines]
    last = [*lines_of_model(rows), *emulated(frames)]
    most = MOST_SUMMARY_LINES - len(last) + len(told)
    sentences = findings.sentences(frames).head(MOST_FINDINGS)
    for name, sentence in sentences[["name", "sentence"]].itertuples(index=False):
        wrapped = textwrap.wrap(f"{name}: {sentence}", SUMMARY_WIDTH, subsequent_indent="  ")
        lines += wrapped if len(lines) + len(wrapped) <= most else []
    lines += last
    return "".join(f"{line.replace(formatting.NARROW, ' ')}\n" for line in lines)


def unreadable(frames: Frames) -> list[str]:
    """A sentence of the records that could not be read, with the first one's reason."""
    errors = frames.results.frame("unreadable")["error"]
    if errors.empty:
        return []
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    why = formatting.shortened(errors.iloc[0], answer.LONGEST_REASON)
    return [f"{formatting.count(len(errors), 'record')} could not be read: {why}{more}"]


def lines_of_model(rows: pd.DataFrame) -> list[str]:
    """Lines on each training of the user's model, and on why it is slower elsewhere."""
    lines = []
    for row in records(rows.dropna(subset="of_model")):
        told = [row["of_model"]]
        if isinstance(row["cause"], str):
            told.append(f"main causes {row['cause_of']}: {row['cause']}")
        for text in told:
            line = f"{row['training']}: {text}"
            lines += textwrap.wrap(line, SUMMARY_WIDTH, subsequent_indent="  ")
    return lines


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    against = row["comparison"].replace("× faster than", "×")
    against = against.replace("no faster beyond noise than", "as fast as")
    half = (row[f"{answer.STEP}_high"] - row[f"{answer.STEP}_low"]) / 2 / row[answer.STEP]
    n = formatting.number(row[f"{answer.STEP}_n"])
    spread = (
        f" {formatting.spread(n, f'{formatting.whole_percent(half):>4}')}" if half == half else ""
    )
    return (
        row["training"],
        row["setup"],
        formatting.duration(row[answer.STEP] / 1e3) + spread,
        formatting.significant(row["samples_per_s"])
        if row["samples_per_s"] > 0
        else formatting.DASH,
        against or formatting.DASH,
    )


def host_line(host: Mapping[str, Any]) -> str:
    """The host that the page is about in one line."""
    cpu = host["cpu"]
    gpus = [
        device["name"]
        + (" (simulated)" if device.get("simulated") else "")
        + ("" if device["backends"] else " (not measured)")
        for device in host["devices"]
        if device["kind"] == "gpu"
    ]
    memory = formatting.mebibytes(cpu["memory_bytes"]) if cpu["memory_bytes"] else ""
    system = host["os"]["distribution"] or f"{host['os']['system']} {host['os']['release']}"
    parts = [
        *gpus,
        f"{cpu['model']} with {formatting.count(cpu['usable_cores'], 'usable core')}",
        f"{memory} of memory" if memory else "",
        system,
    ]
    return f"{host['label']}: {', '.join(filter(None, parts))}"


def when(cells: pd.DataFrame) -> str:
    """First to last start of a cell, UTC."""
    starts = sorted(cells["started_at"].dropna())
    if not starts:
        return ""
    first, last = (start[:16].replace("T", " ") for start in (starts[0], starts[-1]))
    same_day = first[:10] == last[:10]
    return f"{first} to {last[11:] if same_day else last} UTC" if first != last else f"{first} UTC"


def emulated(frames: Frames) -> list[str]:
    """A line for each precision of the cells here that the processor has no instructions for."""
    cells = frames.cells[frames.cells["here"] & frames.cells["device_kind"].eq("cpu")]
    cpu = frames.matrix.host["cpu"]
    reasons = (remedies.emulation(cpu, precision) for precision in cells["precision"].unique())
    return [
        f"{reason[0].upper()}{reason[1:]}, which takes many times as long as fp32."
        for reason in dict.fromkeys(filter(None, reasons))
    ]


def smaller_batches(measured: pd.DataFrame) -> list[str]:
    """A line for each batch that is not the config's: `gpt2-small: batch 2 in place of 8: …`."""
    cells = measured[flagged(measured, SMALLER)]
    found = {
        f"{row['model']}: {detail}": None
        for row in records(cells)
        for code, detail in formatting.flags(row)
        if code == SMALLER
    }
    return [*found]


def banners(frames: Frames) -> list[str]:
    """What holds for the whole run: what failed, flags of every cell, what others disturbed."""
    measured = frames.cells[frames.cells["here"] & frames.cells["status"].eq("ok")]
    disturbed = measured[measured["disturbed"]]
    common = sorted(frames.flags_of_all - formatting.STATISTICAL_FLAGS - {DISTURBED})
    lines = answer.failures(frames)
    lines += [f"Every cell: {captions.flag_words().get(code, code)}" for code in common]
    lines += smaller_batches(measured)
    if disturbed.empty:
        return lines
    names = list(dict.fromkeys(disturbed["workload"] + "/" + disturbed["backend"]))
    shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    return [
        *lines,
        f"Other processes used the processor while {len(disturbed)} of "
        f"{formatting.count(len(measured), 'cell')} were measured ({shown}): those times may be too long. "
        "To measure one again: snakemake --cores 1 report --forcerun with its record.",
    ]
