"""A drawing becomes a file (SVG) and a piece of the page (inline SVG); on request PNG and PDF.

On the page, where it takes the width that there is, text takes the page's font and colours become variables of its theme.
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
Draw = Callable[[], Figure]


def publish(name: str, draw: Draw, folder: Path) -> str:
    """Draw a figure, write its file and give what the page shows of it.

    Args:
        name: file name without suffix.
    """
    text = _svg(fitted(draw()))
    _write_svg(name, text, folder)
    return svg.inline(text)


def publish_for_print(name: str, draw: Draw, folder: Path) -> str:
    """Draw a figure and write it as SVG, PNG and PDF; the page shows nothing."""
    figure = fitted(draw())
    _write_svg(name, _svg(figure), folder)
    width, height = figure.get_size_inches()
    frame = Bbox([[-MARGIN_IN, -MARGIN_IN], [width + MARGIN_IN, height + MARGIN_IN]])
    paper: dict[str, Any] = {"facecolor": "white", "bbox_inches": frame}
    figure.savefig(folder / f"{name}.png", dpi=PNG_DPI, metadata={"Software": None}, **paper)
    undated = {"CreationDate": None, "Creator": "siliconprof", "Producer": None}
    figure.savefig(folder / f"{name}.pdf", metadata=undated, **paper)
    return ""


def _write_svg(name: str, text: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    margin = MARGIN_IN * style.POINTS_PER_IN
    (folder / f"{name}.svg").write_text(svg.standalone(text, margin), encoding="utf-8")


def placed(drawn: str, number: int, facets: marks.Facets, styles: svg.Styles) -> str:
    """A figure's piece of the page.

    Args:
        number: of the figure; its ids begin with it.
        facets: numbers the cells of its marks, for the page's filter.
        styles: of all figures of the page.
    """
    return styles.shared(svg.numbered(marks.resolve(drawn, facets), number))


def fitted(figure: Figure) -> Figure:
    """The figure, its labels as long as there is room."""
    style.fit_labels(figure)
    return figure


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return stream.getvalue()
