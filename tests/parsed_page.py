"""The page as tests read it."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser


class Page(HTMLParser):
    """What the tests ask of a page: its tags in order, its tables, its sections' text.

    Raises:
        AssertionError: tags that do not nest, or an id that is there twice.
    """

    FIGURE = re.compile(r'<figure(?: class="table")? id="([^"]*)"[^>]*>(.*?)</figure>', re.S)
    VOID = {"meta", "br", "hr", "img", "input", "link"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}  # by section
        self.cells: list[tuple[str, str]] = []  # (class, text) of those of tables
        self.markup = dict(self.FIGURE.findall(html))  # by the ids of figures and tables
        self._section = ""
        self.feed(html)
        self.close()
        ids = [values["id"] for _, values in self.tags if values.get("id")]
        self.ids = set(ids)
        assert not self.stack and len(ids) == len(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag == "section":
            self._section = values["id"] or ""
        if tag == "td":
            self.cells.append((values.get("class") or "", ""))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        opened = self.stack.pop() if self.stack else None
        assert opened == tag, f"</{tag}> closes <{opened}>, line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("script", "style", "title"):
            self.text.setdefault(self._section, []).append(data)
        if "td" in self.stack:
            css, text = self.cells[-1]
            self.cells[-1] = (css, text + data)

    def of(self, *sections: str) -> str:
        """The text of sections, spaces made even."""
        joined = " ".join(part for name in sections for part in self.text.get(name, []))
        return " ".join(joined.split())

    def hover(self, exhibit: str = "") -> list[str]:
        """What the pointer tells at the marks of an exhibit, or of all."""
        chosen = self.markup[exhibit] if exhibit else self.html
        return [unescape(said) for said in re.findall(r"<title>([^<]*)</title>", chosen)]

    def rows(self, table: str) -> list[str]:
        """The `data-of` of each row of a table; empty where it has none."""
        body = self.markup[table].split("<tbody>")[1]
        tags = re.findall(r"<tr([^>]*)>", body)
        return [(re.findall(r'data-of="([^"]*)"', tag) or [""])[0] for tag in tags]
