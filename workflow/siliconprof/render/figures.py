"""A drawing becomes a file (SVG) and a piece of the page (inline SVG); on request PNG and PDF.

Each figure is drawn twice, once for a desk and once for a phone; the style sheet shows the one
that fits. On the page text takes the page's font and colours become variables of its theme.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_svg  # noqa: F401, here, so that no worker need load it first
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from siliconprof.render import marks, style, svg

PNG_DPI = 150
MARGIN_IN = 0.1  # around a figure in its files; the page has margins of its own
Draw = Callable[[bool], Figure]  # narrow -> figure
Drawn = tuple[str, str]  # for a desk, for a phone; see `placed`


def publish(name: str, draw: Draw, folder: Path, origin: str) -> Drawn:
    """Draw a figure, write its file and give what the page shows of it.

    Args:
        name: file name without suffix.
        draw: called with False for a desk, True for a phone.
        origin: written into the figure where it is not of this host, since files travel alone.
    """
    text = _svg(_marked(draw(False), origin))
    _write_svg(name, text, folder)
    shown = svg.inline(text)
    narrow = svg.inline(_svg(_marked(draw(True), origin)), first_id=svg.ids(shown))
    return shown, narrow


def publish_for_print(name: str, draw: Draw, folder: Path, origin: str) -> Drawn:
    """Draw a figure as it is on a desk, and write it as SVG, PNG and PDF; the page shows nothing."""
    wide = _marked(draw(False), origin)
    _write_svg(name, _svg(wide), folder)
    width, height = wide.get_size_inches()
    frame = Bbox([[-MARGIN_IN, -MARGIN_IN], [width + MARGIN_IN, height + MARGIN_IN]])
    paper: dict[str, Any] = {"facecolor": "white", "bbox_inches": frame}
    wide.savefig(folder / f"{name}.png", dpi=PNG_DPI, metadata={"Software": None}, **paper)
    undated = {"CreationDate": None, "Creator": "siliconprof", "Producer": None}
    wide.savefig(folder / f"{name}.pdf", metadata=undated, **paper)
    return "", ""


def _write_svg(name: str, text: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    margin = MARGIN_IN * style.POINTS_PER_IN
    (folder / f"{name}.svg").write_text(svg.standalone(text, margin), encoding="utf-8")


def placed(drawn: Drawn, number: int, facets: marks.Facets, styles: svg.Styles) -> str:
    """A figure's piece of the page.

    Args:
        number: of the figure; its ids begin with it.
        facets: numbers the cells of its marks, for the page's filter.
        styles: of all figures of the page.
    """
    desk, phone = (
        styles.shared(svg.numbered(marks.resolve(text, facets, titles), number))
        for text, titles in zip(drawn, (True, False), strict=True)
    )
    return f'<div class="wide">{desk}</div><div class="narrow">{phone}</div>'


def _marked(figure: Figure, origin: str) -> Figure:
    style.fit_labels(figure)
    if origin:
        figure.text(
            0,
            0,
            origin,
            ha="left",
            va="bottom",
            size=style.SMALL_PT,
            weight="bold",
            color=style.shade("other"),
        )
    return figure


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return stream.getvalue()
