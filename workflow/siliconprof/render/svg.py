"""matplotlib's SVG made small: for a file of its own, and for a page that holds dozens.

matplotlib writes numbers of six digits, absolute paths, a style in full on every element and a
group around each. A tenth of a point is finer than any screen shows, so paths become relative
steps of tenths; on the page, styles that elements share become classes of one style sheet, and
groups that say nothing go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from siliconprof.render import marks, style
from siliconprof.render.tables import CAPTION

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
ID = "~"  # begins every id of a drawing until the page gives it a number
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_TOKEN = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<\?.*?\?>|<!DOCTYPE[^>]*>|<[^>]+>", re.S)
_LONG = re.compile(r"\d+\.\d{2,}")
_STEP = re.compile(r"[A-Za-z]|-?[\d.]+(?:e[-+]?\d+)?")
_D = re.compile(r' d="([^"]*)"')
_UNTURNED = re.compile(r' transform="rotate\(-?0 [^"]*"')
_NUMBER = re.compile(r"-?\d[\d.]*(?:e[-+]?\d+)?")
_BOX = re.compile(r'<clipPath id="([^"]*)">\s*<rect ([^>]*)/>')
_CLIP = re.compile(r' clip-path="url\(#([^)]*)\)"')
_STROKE = re.compile(r"stroke: (?!none)")
_WIDTH = re.compile(r"stroke-width: ([\d.]+)")
_INVISIBLE = re.compile(r'<path d="[^"]*"(?: clip-path="[^"]*")? style="fill: none"/>')


def view(svg: str) -> tuple[float, ...]:
    """The four numbers of an SVG's view box, in points."""
    match = re.search(r'viewBox="([^"]*)"', svg)
    assert match, "matplotlib writes a view box"
    return tuple(float(number) for number in match[1].split())


def standalone(svg: str, margin: float) -> str:
    """An SVG file: a margin in points, white ground, system font, short numbers."""
    svg = "\n".join(_parts(marks.resolve(svg, None)))
    svg = re.sub(r"font-family: [^;\"]*", f"font-family: {FONT}", svg)
    left, top, width, height = view(svg)
    box = [f"{v:g}" for v in (left - margin, top - margin, width + 2 * margin, height + 2 * margin)]
    ground = '<rect x="{}" y="{}" width="{}" height="{}" fill="#ffffff"/>'.format(*box)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{box[2]}pt" height="{box[3]}pt" viewBox="{" ".join(box)}">{ground}'
    )
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n'


def inline(svg: str) -> str:
    """An SVG element for HTML: short ids, colours of the theme, no name of any server.

    Marks keep their group ids, see `marks.resolve`, and ids begin with `ID`, see `numbered`.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.S)
    _, _, width, height = view(svg)
    opening = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{CAPTION}" '
        'stroke-linejoin="round">'
    )
    svg = _unclipped(svg)
    used = dict.fromkeys(re.findall(r'(?:xlink:href="|url\()#([\w.-]+)', svg))
    short = {name: f"{ID}{_base36(i)}" for i, name in enumerate(used)}
    svg = "".join(_flat(_parts(svg), short))
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)
    svg = re.sub(r'xlink:href="#([\w.-]+)', lambda m: f'href="#{short[m[1]]}', svg)
    svg = re.sub(r"url\(#([\w.-]+)", lambda m: f"url(#{short[m[1]]}", svg)
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)
    return re.sub(r"#[0-9a-f]{6}\b", _themed, svg)


def _unclipped(svg: str) -> str:
    """The same without clips that cut nothing off, which is nearly all of them.

    Half the width of a line may overlap the edge by a quarter of a point, which is invisible.
    """
    boxes = {
        name: [
            float(re.search(rf'{side}="([^"]*)"', rect)[1])  # type: ignore[index]
            for side in ("x", "y", "width", "height")
        ]
        for name, rect in _BOX.findall(svg)
    }

    def without_needless_clip(match: re.Match[str]) -> str:
        clip, path = _CLIP.search(match[0]), _D.search(match[0])
        if not clip or not path or clip[1] not in boxes:
            return match[0]
        numbers = [float(number) for number in _NUMBER.findall(path[1])]
        if not numbers:
            return match[0]
        left, top, width, height = boxes[clip[1]]
        width_of_line = _WIDTH.search(match[0])
        stroke = float(width_of_line[1]) if width_of_line else 1.0
        edge = min(0.3 - stroke / 2, 0.05) if _STROKE.search(match[0]) else 0.05
        inside = all(
            first - edge <= min(values) and max(values) <= first + size + edge
            for values, first, size in ((numbers[::2], left, width), (numbers[1::2], top, height))
        )
        return match[0].replace(clip[0], "") if inside else match[0]

    return re.sub(r"<path [^>]*/>", without_needless_clip, svg)


def numbered(svg: str, number: int) -> str:
    """The same with the ids of the page's drawing of this number."""
    return re.sub(rf'( id="|href="#|url\(#){ID}', rf"\g<1>f{number}-", svg)


class Styles:
    """The styles of all drawings of a page, each a class once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def shared(self, svg: str) -> str:
        """The same with classes for styles; those that name an element of the drawing stay."""

        def name(match: re.Match[str]) -> str:
            if "url(" in match[1]:
                return match[0]
            return f' class="{self._names.setdefault(match[1], f"s{_base36(len(self._names))}")}"'

        return re.sub(r' style="([^"]*)"', name, svg)

    def css(self) -> str:
        """The rules."""
        return "".join(f".{name}{{{rule}}}" for rule, name in self._names.items())


def _base36(number: int) -> str:
    more, digit = divmod(number, len(DIGITS))
    return (_base36(more) if more else "") + DIGITS[digit]


def _themed(match: re.Match[str]) -> str:
    name = style.VARIABLE_OF.get(match[0])
    return f"var(--{name})" if name else match[0]


def _parts(svg: str) -> Iterator[str]:
    """Tags, and texts between them as they are, without metadata and comments, made short."""
    at = 0
    for match in _TOKEN.finditer(svg):
        if text := svg[at : match.start()].strip("\n "):
            yield text
        at = match.end()
        tag = match[0]
        if tag[1] in "!?" or tag.startswith("<metadata"):
            continue
        yield tag if marks.is_mark(tag) else _short(tag)


def _short(tag: str) -> str:
    """A tag with numbers of a tenth of a point."""
    path = _D.search(tag)
    if path:
        begin, end = tag[: path.start()], tag[path.end() :]
        return f'{begin} d="{shorter(path[1])}"{_LONG.sub(_tenth, end)}'
    if "." not in tag and "rotate" not in tag:
        return tag
    return _UNTURNED.sub("", _LONG.sub(_tenth, tag))


def _flat(parts: Iterator[str], ids_: Mapping[str, str]) -> Iterator[str]:
    """The same without groups that say nothing, and without what is invisible."""
    is_kept: list[bool] = []
    for part in parts:
        if part.startswith("<g") and part.endswith("/>"):
            continue  # nothing was drawn, such as an empty label
        if part.startswith("<g"):
            part = part if marks.is_mark(part) else _renamed(part, ids_)
            is_kept.append(part != "<g>")
            if not is_kept[-1]:
                continue
        elif part == "</g>":
            if not is_kept.pop():
                continue
        elif part[0] == "<":
            if _INVISIBLE.fullmatch(part):
                continue
            part = _renamed(part, ids_)
        yield part


def _renamed(tag: str, ids_: Mapping[str, str]) -> str:
    return re.sub(
        r' id="([^"]*)"', lambda m: f' id="{ids_[m[1]]}"' if m[1] in ids_ else "", tag, count=1
    )


def _tenth(match: re.Match[str]) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")


def shorter(d: str) -> str:
    """A path of M, L, Q, C and z as relative steps of tenths.

    Steps too short to be seen go, but of a line that is nothing else `h0` stays: it is a dot.
    """
    written: list[str] = []
    last = ""  # the command that a pair of numbers without one continues
    x = y = start_x = start_y = 0
    drawn, dot = True, False  # in this part of the path

    def write(command: str, numbers: list[int]) -> None:
        nonlocal last
        text = ""
        for number in numbers:
            shown = _number(number)
            text += shown if not text or shown[0] == "-" else f" {shown}"
        if command != last:
            text = command + text
        elif text and text[0] != "-":
            text = f" {text}"
        written.append(text)
        last = "l" if command == "m" else command

    tokens = _STEP.findall(d)
    at = 0
    while at < len(tokens):
        command = tokens[at]
        if command in "zZ":
            if dot and not drawn:
                write("h", [0])
            written.append("z")
            x, y, last, drawn, dot, at = start_x, start_y, "z", True, False, at + 1
            continue
        count = {"M": 2, "L": 2, "Q": 4, "C": 6}[command]
        numbers = [round(10 * float(token)) for token in tokens[at + 1 : at + 1 + count]]
        at += 1 + count
        step = [value - (x, y)[i % 2] for i, value in enumerate(numbers)]
        x, y = numbers[-2:]
        if command == "M":
            if dot and not drawn:
                write("h", [0])
            write("m", step)  # the first of a path counts from 0, 0
            start_x, start_y, drawn, dot = x, y, False, False
            continue
        if not any(step):
            dot = True
            continue
        drawn = True
        if command == "L" and 0 in step:
            write("h" if step[1] == 0 else "v", [step[0] or step[1]])
        else:
            write(command.lower(), step)
    if dot and not drawn:
        write("h", [0])
    return "".join(written)


@cache
def _number(tenths: int) -> str:
    """`12`, `1.5`, `.5`, `-.5`"""
    whole, rest = divmod(abs(tenths), 10)
    sign = "-" if tenths < 0 else ""
    if not rest:
        return f"{sign}{whole}"
    return f"{sign}{whole or ''}.{rest}"
