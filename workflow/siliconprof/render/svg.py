"""Drawings as SVG: for the page, whose theme they follow and whose filter finds their marks, and as files."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from siliconprof.render import style

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FACETS = ("device", "backend", "workload", "precision")
SHOWN_AXES = (*FACETS, "trainer")  # of the page's filter; a workload has one trainer
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_LONG = re.compile(r"(\d+\.\d)\d+")
_GROUP_ID = re.compile(r'<g id="[^"]*"')
_G = f"{{{SVG}}}g"
_FONT = re.compile(r" ?font-family: [^;\"]*;?")


class Cells:
    """Every cell of which the page shows anything, numbered in the order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def of(self, row: Mapping[str, Any]) -> str:
        """The number of a row's cell; empty for a row that is about none."""
        cell = tuple(row.get(name) for name in FACETS)
        if not all(isinstance(value, str) for value in cell):
            return ""
        return str(self._numbers.setdefault(cell, len(self._numbers)))  # type: ignore[arg-type]

    def listed(self, names: Mapping[Any, str], trainers: Mapping[Any, str]) -> dict[str, Any]:
        """What the page's filter needs.

        Args:
            names: of devices; `trainers`: of workloads that have one.

        Returns:
            For each of `SHOWN_AXES` its values as [value, name]; under `cells` one list of indices into
            them for each number that stands in an attribute.
        """
        cells = pd.DataFrame([*self._numbers], columns=[*FACETS], dtype=object)
        cells["trainer"] = cells["workload"].map(trainers).fillna("none")
        coded = {axis: pd.factorize(cells[axis], sort=True) for axis in SHOWN_AXES}
        listed = {axis: [[value, value] for value in values] for axis, (_, values) in coded.items()}
        listed["device"] = [[value, names.get(value, value)] for value, _ in listed["device"]]
        places = pd.DataFrame({axis: places for axis, (places, _) in coded.items()})
        return listed | {"cells": places.to_numpy().tolist()}


def drawn(drawing: Figure) -> ET.Element:
    """A figure as an SVG element for `standalone` and then `inline`."""
    out = io.BytesIO()
    drawing.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    root = ET.fromstring(out.getvalue())
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():  # coordinates alone: a label's digits stay
        for name, value in element.attrib.items():
            element.set(name, _LONG.sub(r"\1", value))
        if "style" in element.attrib:
            element.set("style", _FONT.sub("", element.attrib["style"]))
    return root


def inline(drawing: Figure, root: ET.Element, name: str, description: str, cells: Cells) -> str:
    """An SVG element for HTML: colours are the page's variables, marks say what they show.

    Args:
        root: what was `drawn`, which this changes.
        name: of the exhibit, which begins the drawing's ids.
        description: for who cannot see it.
    """
    marked: Any = drawing.findobj(lambda artist: hasattr(artist, "marks"))
    marks_of = {artist.get_gid(): artist.marks for artist in marked}
    for group in [*root.iter(_G)]:
        marks = marks_of.get(group.attrib.pop("id", ""), [])
        parts = [group]
        if len(marks) > 1:
            *_, drawn_dots = group
            parts = [ET.Element(_G) for _ in drawn_dots]
            for part, dot in zip(parts, drawn_dots, strict=True):
                part.append(dot)
            drawn_dots[:] = parts
        for part, (row, hover) in zip(parts if marks else (), marks, strict=True):
            part.set("class", "mark")
            if of := cells.of(row):
                part.set("data-of", of)
            title = ET.Element(f"{{{SVG}}}title")
            title.text = hover
            part.insert(0, title)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", description)
    text = ET.tostring(root, encoding="unicode")
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text).replace("xlink:href", "href")
    for colour, variable in style.VARIABLE_OF.items():
        text = text.replace(colour, f"var(--{variable})")
    return text.replace(f' xmlns="{SVG}"', "").replace(f' xmlns:xlink="{XLINK}"', "")


def standalone(root: ET.Element) -> str:
    """A file of its own, in the light theme on white."""
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    margin = 8
    box = (left - margin, top - margin, width + 2 * margin, height + 2 * margin)
    names = dict(zip(("x", "y", "width", "height"), map("{:g}".format, box), strict=True))
    size = {"width": f"{box[2]:g}pt", "height": f"{box[3]:g}pt", "font-family": FONT}
    whole = ET.Element(root.tag, root.attrib | size | {"viewBox": " ".join(names.values())})
    ET.SubElement(whole, f"{{{SVG}}}rect", names | {"fill": "#ffffff"})
    whole.extend(root)
    return _GROUP_ID.sub("<g", ET.tostring(whole, encoding="unicode")) + "\n"


def for_print(drawing: Figure, path: Path) -> None:
    """The figure as SVG, PNG and PDF, beside each other."""
    path.with_suffix(".svg").write_text(standalone(drawn(drawing)), encoding="utf-8")
    for suffix in (".png", ".pdf"):
        date = {"CreationDate": None} if suffix == ".pdf" else None
        drawing.savefig(
            path.with_suffix(suffix), dpi=200, facecolor="white", bbox_inches="tight", metadata=date
        )
