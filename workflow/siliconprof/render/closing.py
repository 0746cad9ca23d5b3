"""The report in a dozen lines, which a run ends with on the terminal: `ending.SUMMARY`."""

from __future__ import annotations

from siliconprof import words
from siliconprof.render import summary
from siliconprof.render.compare import Step, steps
from siliconprof.render.data import Data
from siliconprof.render.variants import label, work_apart
from siliconprof.store.records import HERE

TRAININGS = 6  # the largest models
FINDINGS = 3
HEADER = ("training", "fastest of", "by", "step", "samples/s", "of the best product", "flags")
RIGHT = {1, 3, 4, 5}  # columns of numbers


def text(data: Data) -> str:
    """A table of this host's trainings, each in its fastest way, and the first findings."""
    own = data.only(HERE)
    families = list(steps(own).items())
    rows = [_row(own, family.label, trained) for family, trained in families[:TRAININGS]]
    lines = words.aligned([HEADER, *rows], RIGHT) if rows else []
    if more := len(families) - len(rows):
        lines.append(f"and {words.count(more, 'training')} of smaller models: see the page")
    for finding in summary.findings(own)[:FINDINGS]:
        lines.append(f"{finding.title}: {finding.sentence}")
    return "".join(f"{line.replace(words.THIN, ' ')}\n" for line in lines)


def _row(data: Data, name: str, trained: list[Step]) -> tuple[str, ...]:
    whole = [step for step in trained if not work_apart(step.row)] or trained
    best = min(whole, key=lambda step: step.middle)
    rate = words.number(best.row.get("samples_per_s"))
    share = summary.of_best_product(data, best.row)
    return (
        name.replace(" parameters", ""),
        str(len(whole)),
        label(best.row),
        words.duration(best.middle),
        words.significant(rate) if rate else words.DASH,
        words.percent(share) if share else words.DASH,
        (best.row["flags"] or "").replace(";", ", "),
    )
