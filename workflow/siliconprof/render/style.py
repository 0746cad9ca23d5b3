"""How figures look: colours that mean the same everywhere, sizes, and axes placed in inches.

One hue per backend (Okabe and Ito's colour-blind safe set), lighter steps of it for lower
precision and for the phases of a step. Every colour used here is a variable of the style sheet,
so that figures on the page follow its light and dark theme; in the files it is literal.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter
from matplotlib.transforms import Affine2D

from siliconprof import plugins, words
from siliconprof.analyse.equal_work import as_usual

WIDTH_IN = 7.0  # of every figure; the page scales it
TEXT_PT = 7.5
SMALL_PT = 6.5
POINTS_PER_IN = 72.0
CHARACTER_EM = 0.56  # mean width of a character; labels are placed without measuring text
LABELS_SHARE = 0.62  # of a figure's width, that labels at its side may take
LEAST_IN = 0.3  # what axes have left at least, however much stands beside them

LIGHT = {
    "ink": "#1a1e23",
    "muted": "#59636d",
    "faint": "#b3bbc4",
    "rule": "#dfe3e7",
    "paper": "#fffffe",
    "dark": "#15181c",  # words on what is light in both themes
}
DARK = {
    "ink": "#e8ebee",
    "muted": "#9aa5b0",
    "faint": "#5a646f",
    "rule": "#31383f",
    "paper": "#14171a",
    "dark": "#14171a",
}
HUES = {  # light page, dark page
    "torch-cpu": ("#0072b2", "#58aee6"),
    "torch-cuda": ("#00855f", "#2cc796"),
    "torch-mps": ("#a8527f", "#e29cc3"),
    "mlx": ("#c25400", "#f59350"),  # theirs, darker: words stand in it and on it
    "other": ("#6a5d9e", "#a99ce0"),
    "other-2": ("#6b6b00", "#c2c24a"),
    "other-3": ("#8c3b2e", "#e58b7b"),
    "grey": ("#59636d", "#9aa5b0"),
}
OTHERS = ("other", "other-2", "other-3")  # of backends that are not named here
RAMP = (  # small to large, light page and dark page; lightness alone tells them apart too
    ("#d9a800", "#f4d35e"),
    ("#86a93b", "#a8cf63"),
    ("#2b9a78", "#4cc7a2"),
    ("#1f7a93", "#4fadc9"),
    ("#3a5390", "#7c97df"),
    ("#47216b", "#b48ae8"),
)
STEPS = (100, 80, 60, 45, 25, 12)  # per cent of a hue on paper
DARK_TINT = 0.9  # of that per cent on dark paper below 80, or bright ink on it would not be legible
PRECISION_STEP = {"fp32": 100, "tf32": 80, "bf16": 60, "amp-bf16": 60, "fp16": 45, "amp-fp16": 45}
INK, MUTED, FAINT, RULE, PAPER, DARK_INK = LIGHT.values()


def _mix(hue: str, paper: str, step: float) -> str:
    """`step` per cent of a colour on paper, as hex."""
    parts = zip(*(bytes.fromhex(c[1:]) for c in (hue, paper)), strict=True)
    return "#" + "".join(f"{round(a * step / 100 + b * (1 - step / 100)):02x}" for a, b in parts)


def _variables(theme: int) -> dict[str, str]:
    """Name -> colour of every variable; 0 light, 1 dark."""
    base = (LIGHT, DARK)[theme]
    shades = {
        f"{name}-{step}": _mix(
            hues[theme], base["paper"], step * (DARK_TINT if theme and step < 80 else 1)
        )
        for name, hues in HUES.items()
        for step in STEPS
    }
    ramp = {f"ramp-{index}": pair[theme] for index, pair in enumerate(RAMP)}
    return base | shades | ramp


VARIABLE_OF = {colour: name for name, colour in _variables(0).items()}


def css_variables(theme: int) -> str:
    """The colours as custom properties; 0 light, 1 dark."""
    return "".join(f"--{name}:{colour};" for name, colour in _variables(theme).items())


def readable(fill: str) -> str:
    """The colour of words on a filled shape: of ink, paper and dark ink, as both themes allow."""
    themes = [_variables(theme) for theme in (0, 1)]

    def worst(ink: str) -> float:
        return min(contrast(of[VARIABLE_OF[ink]], of[VARIABLE_OF[fill]]) for of in themes)

    return max((INK, PAPER, DARK_INK), key=worst)


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as WCAG 2.2 defines it."""
    lights = []
    for colour_ in (first, second):
        shares = [part / 255 for part in bytes.fromhex(colour_[1:])]
        red, green, blue = (
            s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares
        )
        lights.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def shade(backend: str, step: int = 100) -> str:
    """A step of a backend's colour."""
    return _mix(HUES[_hue(backend)][0], PAPER, step)


def _hue(backend: str) -> str:
    """A backend's own hue, else one of those for others: in turn for the plug-ins found."""
    if backend in HUES:
        return backend
    others = [name for name in plugins.names("backends") if name not in HUES]
    place = others.index(backend) if backend in others else zlib.crc32(backend.encode())
    return OTHERS[place % len(OTHERS)]


def colour(row: Any) -> str:
    """The colour of a row: its backend's, lighter for lower precision."""
    return shade(row["backend"], PRECISION_STEP.get(row["precision"], 100))


def ramp(index: int, of: int) -> str:
    """The colour of the `index`-th of so many ordered values; more of them than colours share."""
    if of <= 1:
        return RAMP[len(RAMP) // 2][0]
    return RAMP[round(index / (of - 1) * (len(RAMP) - 1))][0]


def dashes(row: Any) -> tuple[float, ...]:
    """Solid for the plain loop, dashed for any other trainer; broken up for every variant."""
    plain = row["trainer"] == "plain"
    if row.get("offloads"):
        return (6, 1, 1, 1, 1, 1) if plain else (3, 1, 1, 1, 1, 1)
    if row.get("lora_rank"):
        return (1, 1) if plain else (3, 1, 1, 1)
    if not as_usual(row):
        return (8, 1.2, 2, 1.2) if plain else (8, 1.2)
    return (1, 0) if plain else (3, 1.2)


PUBLISHED_HATCH = "/////"


def published(backend: str = "other") -> dict[str, Any]:
    """How a published value is drawn as a bar or patch: hatched, never filled."""
    return {
        "facecolor": "none",
        "edgecolor": shade(backend),
        "hatch": PUBLISHED_HATCH,
        "linewidth": 0.6,
    }


DEVICE_MARKS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h", "*")
_mark_of: dict[str, str] = {}


def know_devices(devices: Iterable[str]) -> None:
    """Give every device of the page its marker, in this order; after twelve they repeat."""
    _mark_of.clear()
    for index, device in enumerate(dict.fromkeys(devices)):
        _mark_of[device] = DEVICE_MARKS[index % len(DEVICE_MARKS)]


def device_mark(device: str) -> str:
    """The marker of a device, the same in every figure."""
    return _mark_of.get(device, DEVICE_MARKS[0])


def apply() -> None:
    """Set matplotlib up; nothing outside this process sees it."""
    rcParams.update(
        {
            "font.size": TEXT_PT,
            "font.family": "sans-serif",
            "text.color": INK,
            "text.parse_math": False,  # a `$` in a host's name is a `$`
            "axes.edgecolor": MUTED,
            "axes.labelcolor": MUTED,
            "axes.titlecolor": INK,
            "axes.facecolor": "none",
            "axes.linewidth": 0.5,
            "axes.axisbelow": True,
            "axes.unicode_minus": True,
            "grid.color": RULE,
            "grid.linewidth": 0.5,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "xtick.labelsize": SMALL_PT,
            "ytick.labelsize": SMALL_PT,
            "xtick.major.width": 0.5,
            "ytick.major.width": 0.5,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "xtick.minor.size": 0,
            "ytick.minor.size": 0,
            "hatch.linewidth": 0.6,
            "lines.linewidth": 1.1,
            "path.simplify": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "siliconprof",  # the same data make the same bytes
            "pdf.fonttype": 3,  # type 42 would take three times as long to write
        }
    )


def text_in(text: str, size_pt: float = TEXT_PT) -> float:
    """About how wide a text is, in inches."""
    return len(text) * size_pt * CHARACTER_EM / POINTS_PER_IN


def labels_in(labels: Sequence[str], small: bool) -> float:
    """About how wide the widest of labels at a figure's side is, lines apart, in inches.

    At most `LABELS_SHARE` of the figure; `fit_labels` shortens what is longer.
    """
    size = SMALL_PT if small else TEXT_PT
    lines = (line for name in labels for line in name.split("\n"))
    widest = max((text_in(line, size) for line in lines), default=0.0)
    return min(widest, LABELS_SHARE * WIDTH_IN)


def fitting(text: str, width: float, size: float) -> str:
    """Words whose lines are no wider than so many inches."""
    limit = int(width / text_in("x", size))
    return "\n".join(words.shortened(line, limit) for line in text.split("\n"))


def fit_labels(figure: Figure) -> None:
    """Shorten the labels at the left of axes to the room that they have."""
    for ax in figure.axes:
        if not isinstance(ax.yaxis.get_major_locator(), FixedLocator):
            continue
        labels = ax.get_yticklabels()
        size = min((float(label.get_fontsize()) for label in labels), default=TEXT_PT)
        room = ax.get_position().x0 * figure.get_size_inches()[0]
        texts = [label.get_text() for label in labels]
        short = [fitting(text, room, size) for text in texts]
        if short != texts:
            ax.yaxis.set_ticks(ax.get_yticks(), short)


def canvas(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches."""
    return Figure(figsize=(width, height))


def axes(figure: Figure, left: float, top: float, width: float, height: float) -> Any:
    """Axes at a place in inches from the figure's upper left corner, two spines, no grid.

    They stay within the figure and have a size, whatever was taken off for what is beside them.
    """
    full_width, full_height = figure.get_size_inches()
    left = min(left, full_width - LEAST_IN)
    width, height = max(width, LEAST_IN), max(height, LEAST_IN / 10)
    bottom = full_height - top - height
    ax = figure.add_axes(
        (left / full_width, bottom / full_height, width / full_width, height / full_height)
    )
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def line(ax: Any, xs: Sequence[float], ys: Sequence[float], **look: Any) -> Any:
    """A line, or markers, on axes that have their ends: `plot` would reckon new ones each time."""
    return ax.add_artist(Line2D(xs, ys, **look))


def write(figure: Figure, x: float, y: float, text: str, **style: Any) -> Any:
    """Text at a place in inches from the figure's upper left corner."""
    width, height = figure.get_size_inches()
    return figure.text(x / width, 1 - y / height, text, **style)


LEGEND_ROW_IN = 0.17
Sample = Callable[[float, float], Sequence[Artist]]  # at a place in inches
Entry = tuple[Sample, str]  # and its name


def _legend_places(entries: Sequence[Entry], width: float) -> list[tuple[float, int]]:
    """(x in inches, row) of each entry, wrapped at the width."""
    places, x, row = [], 0.0, 0
    for _, name in entries:
        needed = 0.2 + text_in(name, SMALL_PT) + 0.1
        if x and x + needed > width:
            x, row = 0.0, row + 1
        places.append((x, row))
        x += needed
    return places


def legend_height(entries: Sequence[Entry], width: float) -> float:
    """Inches that a legend needs."""
    return LEGEND_ROW_IN * (_legend_places(entries, width)[-1][1] + 1)


def legend(
    figure: Figure,
    entries: Sequence[Entry],
    top: float,
    left: float = 0.0,
    width: float | None = None,
) -> None:
    """Samples with their names in rows, as wide as the figure unless a width is given, in inches."""
    width = figure.get_size_inches()[0] if width is None else width
    full_height = figure.get_size_inches()[1]
    inches = Affine2D().scale(1, -1).translate(0, full_height) + figure.dpi_scale_trans
    places = _legend_places(entries, width)
    for (draw, name), (x, row) in zip(entries, places, strict=True):
        x, y = left + x, top + LEGEND_ROW_IN * (row + 0.5)
        for artist in draw(x, y):
            artist.set_transform(inches)
            figure.add_artist(artist)
        write(figure, x + 0.2, y, name, va="center", size=SMALL_PT, color=MUTED)


def swatch(face: str, hatch: str | None = None) -> Sample:
    """A legend sample: a filled box."""
    look: dict[str, Any] = {
        "facecolor": face,
        "hatch": hatch,
        "edgecolor": MUTED if hatch else "none",
    }
    return lambda x, y: [Rectangle((x, y - 0.045), 0.15, 0.09, linewidth=0, **look)]


def sample(marker: str | None = None, line: Any = "none", **style: Any) -> Sample:
    """A legend sample: a marker, a piece of line, or both."""

    def draw(x: float, y: float) -> list[Artist]:
        xs = [x, x + 0.15] if marker is None else [x + 0.075]
        return [Line2D(xs, [y] * len(xs), marker=marker, linestyle=line, **style)]

    return draw


def backends(rows: Iterable[Any], size: float) -> list[Entry]:
    """Legend entries of the backends of rows, each once, in their colours."""
    backend_of = {words.backend_name(row): row["backend"] for row in rows}
    return [
        (sample("o", color=shade(backend), markersize=size), name)
        for name, backend in backend_of.items()
    ]


def lines(rows: Sequence[Any], names: Sequence[str]) -> list[Entry]:
    """Legend entries of rows that are lines, each in its colour and dashes."""
    return [
        (sample(None, "-", color=colour(row), dashes=dashes(row)), name)
        for row, name in zip(rows, names, strict=True)
    ]


def devices(rows: Iterable[Any], name: Callable[[Any], str], size: float) -> list[Entry]:
    """Legend entries of the devices of rows, each with its marker; none where there is only one.

    Args:
        name: what a row's device is called.
    """
    name_of = {row["device"]: name(row) for row in rows}
    if len(name_of) < 2:
        return []
    look = {"color": MUTED, "markersize": size, "markerfacecolor": "none"}
    return [(sample(device_mark(device), **look), called) for device, called in name_of.items()]


def plain_ticks(axis: Any, most: int = 5, scale: float = 1.0) -> None:
    """A few round ticks with plain numbers."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g}".replace("-", "−")))


def log_ticks(axis: Any, low: float, high: float, scale: float = 1.0) -> None:
    """Round numbers on a logarithmic axis, as many as it has room for.

    Of each decade 1, 2 and 5, or 1 and 3, or 1; between two of them, those of a linear axis.

    Args:
        scale: what the numbers written are over.
    """
    most = ticks_in(axis)
    low, high = low / scale, high / scale
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**n for n in decades for m in mantissas if low <= m * 10.0**n <= high]
        if len(ticks) <= most:
            break
    ticks = ticks[:: math.ceil(len(ticks) / most) or 1]
    axis.set_minor_locator(FixedLocator([]))
    axis.set_minor_formatter(NullFormatter())
    if len(ticks) < 2:
        plain_ticks(axis, max(most - 1, 2), scale)
        return
    axis.set_major_locator(FixedLocator([tick * scale for tick in ticks]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words.significant(value / scale, 1)))


def ticks_in(axis: Any) -> int:
    """How many tick labels an axis has room for, at least two."""
    upright = axis.axis_name == "y"
    box = axis.axes.get_position()
    width, height = axis.axes.figure.get_size_inches()
    room = (box.height * height) / 0.25 if upright else (box.width * width) / 0.42
    return max(int(room), 2)
