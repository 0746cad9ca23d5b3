"""The sections of the study in order, and what draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from siliconprof.render import (
    ceilings,
    claims,
    classic,
    declared,
    energy,
    launch,
    losses,
    memory,
    operations,
    operators,
    paper,
    prediction,
    published,
    roofline,
    scenario_drawing,
    scenarios,
    setting,
    stack,
    study,
    training,
    why,
)
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.store.records import HERE

Add = Callable[[Data, Book], None]
# Section, and what draws it of the results of all hosts.
SECTIONS: tuple[tuple[str, tuple[Add, ...]], ...] = (
    ("setting", (stack.add, setting.add)),
    ("training", (training.add, operators.add, losses.add)),
    ("paper", (paper.add,)),
    ("grid", (study.add,)),
    ("classic", (classic.add,)),
    (
        "memory",
        (scenario_drawing.add, scenarios.add, memory.add, memory.add_over_time, memory.add_models),
    ),
    ("energy", (energy.add,)),
    ("why", (why.add, prediction.add)),
    ("ceilings", (ceilings.add, roofline.add)),
    ("matmul", (operations.add_products,)),
    ("operations", (operations.add,)),
    ("launch", (launch.add,)),
    ("declared", (declared.add,)),
    ("published", (published.add,)),
    ("claims", (claims.add,)),
)


def drawn() -> Iterator[tuple[str, Add]]:
    """(section, what draws a part of it, of all data and a book), in order."""
    return ((section, add) for section, adders in SECTIONS for add in adders)


def here(add: Add) -> Add:
    """What draws this host's results of all data."""
    return lambda data, book: add(data.only(HERE), book)
