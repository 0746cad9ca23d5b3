"""The looks of drawings: colours of both themes, markers, and what matplotlib is told.

A drawing is made in the colours of the light theme. The page replaces each by its variable.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rcParamsDefault

from siliconprof import plugins

TEXT_PT, SMALL_PT = 7.5, 6.5
LIGHT = {
    "ink": "#1a1e23",
    "muted": "#59636d",
    "faint": "#b3bbc4",
    "rule": "#dfe3e7",
    "paper": "#fffffe",
}
DARK = {
    "ink": "#e8ebee",
    "muted": "#9aa5b0",
    "faint": "#5a646f",
    "rule": "#31383f",
    "paper": "#14171a",
}
INK, MUTED, FAINT, RULE_COLOUR, PAPER = LIGHT.values()
HUES = {  # light page, dark page
    "torch-cpu": ("#0072b2", "#58aee6"),
    "torch-cuda": ("#00855f", "#2cc796"),
    "torch-mps": ("#a8527f", "#e29cc3"),
    "mlx": ("#c25400", "#f59350"),
    "other": ("#6a5d9e", "#a99ce0"),
    "other-2": ("#6b6b00", "#c2c24a"),
    "other-3": ("#8c3b2e", "#e58b7b"),
}
OTHER_COLOURS = ("other", "other-2", "other-3")  # of backends that are not named here
RAMP = (  # small to large, light page and dark page; lightness alone tells them apart too
    ("#d9a800", "#f4d35e"),
    ("#86a93b", "#a8cf63"),
    ("#2b9a78", "#4cc7a2"),
    ("#1f7a93", "#4fadc9"),
    ("#3a5390", "#7c97df"),
    ("#47216b", "#b48ae8"),
    ("#8c8f94", "#8c8f95"),
    ("#c9ced4", "#4a5159"),
)
LIGHTNESS_STEPS = (100, 80, 60, 45, 25)  # per cent of a hue on paper
DARK_TINT = 0.9  # of that per cent on dark paper below 80, or bright ink on it would not be legible
PRECISION_STEP = {"fp32": 100, "tf32": 80, "bf16": 60, "amp-bf16": 60, "fp16": 45, "amp-fp16": 45}
DEVICE_MARKS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h", "*")
HATCH = "/////"  # of published values, which are never filled


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
        for name, hues in (HUES | {"grey": (LIGHT["muted"], DARK["muted"])}).items()
        for step in LIGHTNESS_STEPS
    }
    ramp_ = {f"ramp-{index}": pair[theme] for index, pair in enumerate(RAMP)}
    return base | shades | ramp_


VARIABLE_OF = {colour: name for name, colour in _variables(0).items()}


def css() -> str:
    """The colours of both themes as custom properties."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in _variables(theme).items())
        for theme in (0, 1)
    )
    return (
        f":root{{{light}}}@media screen{{:root[data-theme=dark]{{{dark}}}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
    )


def shade(backend: Any, step: int = 100) -> str:
    """A step of a backend's colour: its own hue, else one of those for others; grey without one."""
    if backend is None:
        return _mix(MUTED, PAPER, step)
    name = str(backend)
    if name not in HUES:
        others = [other for other in plugins.names("backends") if other not in HUES]
        place = others.index(name) if name in others else zlib.crc32(name.encode())
        name = OTHER_COLOURS[place % len(OTHER_COLOURS)]
    return _mix(HUES[name][0], PAPER, step)


def colour(row: Mapping[str, Any]) -> str:
    """The colour of a row: its backend's, lighter for lower precision."""
    if row.get("backend") is None or row["backend"] != row["backend"]:
        return MUTED
    return shade(row["backend"], PRECISION_STEP.get(str(row.get("precision")), 100))


def ramp(index: int, of: int) -> str:
    """The colour of the `index`-th of so many ordered values."""
    if of > 6:
        return RAMP[index % len(RAMP)][0]
    return RAMP[round(index / max(of - 1, 1) * 5)][0]


LOOK = rcParamsDefault | {  # in which all is drawn, whatever the host's own matplotlibrc says
    "backend": "svg",
    "font.size": TEXT_PT,
    "font.family": "sans-serif",
    "text.color": INK,
    "text.parse_math": False,  # a `$` in a host's name is a `$`
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": SMALL_PT,
    "axes.facecolor": "none",
    "axes.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "grid.color": RULE_COLOUR,
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": SMALL_PT,
    "ytick.labelsize": SMALL_PT,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "legend.loc": "upper left",
    "legend.borderaxespad": 0,
    "legend.borderpad": 0,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.35,
    "legend.frameon": False,
    "legend.fontsize": SMALL_PT,
    "legend.labelcolor": MUTED,
    "path.simplify": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "siliconprof",  # the same data make the same bytes
}


def text_in(text: str, size_pt: float = TEXT_PT) -> float:
    """About how wide a text is, in inches."""
    return len(text) * size_pt * 0.57 / 72


def widest_in(labels: Sequence[str], size_pt: float = TEXT_PT) -> float:
    """About how wide the widest of some texts is, in inches."""
    return max((text_in(label, size_pt) for label in labels), default=0.0)
