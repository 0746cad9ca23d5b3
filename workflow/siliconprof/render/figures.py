"""A drawing becomes files (SVG, PNG, PDF) and a piece of the page (SVG without any outside).

Each figure is drawn twice, once for a desk and once for a phone; the style sheet shows the one
that fits. On the page text takes the page's font and colours become variables of its theme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from siliconprof.render import style

PNG_DPI = 150
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
Draw = Callable[[bool], Figure]  # narrow -> figure


def publish(name: str, draw: Draw, alt: str, folder: Path, origin: str = "") -> Markup:
    """Draw a figure, write its files and give its piece of the page.

    Args:
        name: file name without suffix, and prefix of every id in the SVG.
        draw: called with False for a desk, True for a phone.
        alt: what the figure shows, for those who cannot see it.
        origin: written into the figure where it is not of this host, since files travel alone.
    """
    wide = _marked(draw(False), origin)
    svg = _svg(wide)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.svg").write_text(standalone(svg), encoding="utf-8")
    wide.savefig(
        folder / f"{name}.png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None}
    )
    wide.savefig(
        folder / f"{name}.pdf",
        facecolor="white",
        metadata={"CreationDate": None, "Creator": "siliconprof", "Producer": None},
    )
    return Markup(
        f'<div class="wide">{inline(svg, name, alt)}</div>'
        f'<div class="narrow">{inline(_svg(_marked(draw(True), origin)), f"{name}-n", alt)}</div>'
    )


def _marked(figure: Figure, origin: str) -> Figure:
    if origin:
        figure.text(
            1, 0, origin, ha="right", va="bottom", size=style.SMALL_PT, weight="bold",
            color=style.shade("other"),
        )  # fmt: skip
    return figure


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return stream.getvalue()


def standalone(svg: str) -> str:
    """An SVG file: white ground, system font, short numbers."""
    svg = _compact(svg)
    svg = re.sub(r"font-family: [^;\"]*", f"font-family: {FONT}", svg)
    return re.sub(
        r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="#ffffff"/>', svg, count=1
    )


def inline(svg: str, prefix: str, alt: str) -> str:
    """An SVG element for HTML: ids of its own, colours of the theme, no name of any server."""
    svg = _compact(svg[svg.index("<svg") :])
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.S)
    view = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    width, height = view.groups() if view else ("0", "0")
    opening = (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(alt)}" '
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
    """Without metadata and comments, numbers of two decimals, paths in one line."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), svg)
    svg = re.sub(r' d="([^"]*)"', lambda m: f' d="{_path(m[1])}"', svg)
    svg = svg.replace(' transform="rotate(-0 ', ' transform="rotate(0 ')
    svg = re.sub(r' transform="rotate\(0 [^"]*"', "", svg)
    return re.sub(r"\n\s*", "\n", svg)


def _path(d: str) -> str:
    """A path in the short way of writing; a point drawn as a stroke becomes `h0`."""
    d = " ".join(d.split())
    d = re.sub(r"M ([\d.-]+) ([\d.-]+) L ([\d.-]+) \2(?= M|$)", _dot, d)
    return re.sub(r" ?([A-Za-z]) ?", r"\1", d)


def _dot(found: re.Match[str]) -> str:
    if abs(float(found[1]) - float(found[3])) > 0.05:
        return found[0]
    return f"M {found[1]} {found[2]} h 0"
