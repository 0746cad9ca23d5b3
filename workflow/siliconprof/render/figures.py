"""A drawing becomes files (SVG, PNG, PDF) and a piece of the page (SVG without any outside).

Each figure is drawn twice, once for a desk and once for a phone; the style sheet shows the one
that fits. On the page text takes the page's font and colours become variables of its theme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from siliconprof.render import marks, style

PNG_DPI = 150
MARGIN_IN = 0.1  # around a figure in its files; the page has margins of its own
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
Draw = Callable[[bool], Figure]  # narrow -> figure


def publish(
    name: str,
    draw: Draw,
    alt: str,
    folder: Path,
    origin: str = "",
    facets: marks.Facets | None = None,
) -> Markup:
    """Draw a figure, write its files and give its piece of the page.

    Args:
        name: file name without suffix, and prefix of every id in the SVG.
        draw: called with False for a desk, True for a phone.
        alt: what the figure shows, for those who cannot see it.
        origin: written into the figure where it is not of this host, since files travel alone.
        facets: numbers the cells of its marks, for the page's filter.
    """
    wide = _marked(draw(False), origin)
    svg = _svg(wide)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.svg").write_text(standalone(svg), encoding="utf-8")
    width, height = wide.get_size_inches()
    frame = Bbox([[-MARGIN_IN, -MARGIN_IN], [width + MARGIN_IN, height + MARGIN_IN]])
    paper: dict[str, Any] = {"facecolor": "white", "bbox_inches": frame}
    wide.savefig(folder / f"{name}.png", dpi=PNG_DPI, metadata={"Software": None}, **paper)
    undated = {"CreationDate": None, "Creator": "siliconprof", "Producer": None}
    wide.savefig(folder / f"{name}.pdf", metadata=undated, **paper)
    narrow = _svg(_marked(draw(True), origin))
    return Markup(
        f'<div class="wide">{inline(svg, name, alt, facets)}</div>'
        f'<div class="narrow">{inline(narrow, f"{name}-n", alt, facets, titles=False)}</div>'
    )


def _marked(figure: Figure, origin: str) -> Figure:
    if origin:
        figure.text(
            0, 0, origin, ha="left", va="bottom", size=style.SMALL_PT, weight="bold",
            color=style.shade("other"),
        )  # fmt: skip
    return figure


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return stream.getvalue()


def standalone(svg: str) -> str:
    """An SVG file: a margin, white ground, system font, short numbers."""
    svg = _compact(marks.resolve(svg, None))
    svg = re.sub(r"font-family: [^;\"]*", f"font-family: {FONT}", svg)
    left, top, width, height = _view(svg)
    margin = MARGIN_IN * style.POINTS_PER_IN
    box = [f"{v:g}" for v in (left - margin, top - margin, width + 2 * margin, height + 2 * margin)]
    ground = '<rect x="{}" y="{}" width="{}" height="{}" fill="#ffffff"/>'.format(*box)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{box[2]}pt" height="{box[3]}pt" viewBox="{" ".join(box)}">{ground}'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)


def _view(svg: str) -> tuple[float, ...]:
    """The four numbers of an SVG's view box, in points."""
    found = re.search(r'viewBox="([^"]*)"', svg)
    assert found, "matplotlib writes a view box"
    return tuple(float(number) for number in found[1].split())


def inline(
    svg: str, prefix: str, alt: str, facets: marks.Facets | None = None, titles: bool = True
) -> str:
    """An SVG element for HTML: ids of its own, colours of the theme, no name of any server."""
    svg = _compact(marks.resolve(svg[svg.index("<svg") :], facets, titles))
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.S)
    _, _, width, height = _view(svg)
    opening = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(alt)}" '
        'stroke-linejoin="round">'
    )
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)
    used = set(re.findall(r'(?:href="|url\()#([\w.-]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(href="|url\()#', rf"\g<1>#{prefix}-", svg)
    return re.sub(r"#[0-9a-f]{6}\b", _themed, svg).replace("<g>\n", "<g>").strip()


def _themed(found: re.Match[str]) -> str:
    name = style.VARIABLE_OF.get(found[0])
    return f"var(--{name})" if name else found[0]


def _compact(svg: str) -> str:
    """Without metadata and comments, numbers of a tenth of a point, paths in one line."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r"<[^>]+>", lambda m: re.sub(r"\d+\.\d{2,}", _tenth, m[0]), svg)  # not the text
    svg = re.sub(r' d="([^"]*)"', lambda m: f' d="{_path(m[1])}"', svg)
    svg = svg.replace(' transform="rotate(-0 ', ' transform="rotate(0 ')
    svg = re.sub(r' transform="rotate\(0 [^"]*"', "", svg)
    return re.sub(r"\n\s*", "\n", svg)


def _tenth(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}".removesuffix(".0")


def _path(d: str) -> str:
    """A path in the short way of writing; a point drawn as a stroke becomes `h0`."""
    d = " ".join(d.split())
    d = re.sub(r"M ([\d.-]+) ([\d.-]+) L ([\d.-]+) \2(?= M|$)", _dot, d)
    return re.sub(r" ?([A-Za-z]) ?", r"\1", d)


def _dot(found: re.Match[str]) -> str:
    if abs(float(found[1]) - float(found[3])) > 0.05:
        return found[0]
    return f"M {found[1]} {found[2]} h 0"
