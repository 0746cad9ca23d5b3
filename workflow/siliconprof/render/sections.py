"""The sections of the study in order, whose results are drawn in each, and what draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from siliconprof.render import (
    ceilings,
    claims,
    classic,
    clocks,
    declared,
    energy,
    launch,
    losses,
    memory,
    operations,
    operators,
    others,
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
ALL, OWN = "everyone's", "this host's"
# This host's, and among the others each other host's, of the second kind where it trains.
EACH, TRAINED = "each host's", "each host's that trains"
# Section, whose results are drawn, what draws them. A section of several lines stands in several.
SECTIONS: tuple[tuple[str, str, tuple[Add, ...]], ...] = (
    ("setting", ALL, (stack.add, setting.add)),
    ("training", TRAINED, (training.add, operators.add)),
    ("training", OWN, (training.add_steps, losses.add)),
    ("paper", ALL, (paper.add,)),
    ("grid", EACH, (study.add,)),
    ("classic", EACH, (classic.add,)),
    ("classic", ALL, (classic.add_published,)),
    ("memory", OWN, (scenario_drawing.add, scenarios.add)),
    ("memory", TRAINED, (memory.add,)),
    ("memory", OWN, (memory.add_over_time,)),
    ("memory", ALL, (memory.add_models,)),
    ("energy", TRAINED, (energy.add, clocks.add)),
    ("why", OWN, (why.add,)),
    ("why", ALL, (why.add_others,)),
    ("why", OWN, (prediction.add,)),
    ("ceilings", EACH, (ceilings.add,)),
    ("ceilings", OWN, (roofline.add,)),
    ("matmul", EACH, (operations.add_products,)),
    ("operations", EACH, (operations.add,)),
    ("launch", EACH, (launch.add,)),
    ("declared", EACH, (declared.add,)),
    ("published", ALL, (published.add,)),
    ("claims", ALL, (claims.add,)),
    ("others", ALL, ()),  # a part for each host, see `drawn`
)


def drawn(data: Data) -> Iterator[tuple[str, Add]]:
    """(section, what draws a part of it, of all data and a book), in order."""
    for section, whose, adders in SECTIONS:
        if section == "others":
            yield from ((section, part) for part in others.parts(data, add_of_host))
        for add in adders:
            yield section, add if whose == ALL else here(add)


def here(add: Add) -> Add:
    """What draws this host's results of all data."""
    return lambda data, book: add(data.only(HERE), book)


def add_of_host(data: Data, book: Book) -> None:
    """What is shown of another host, its trainings first."""
    for kind in (TRAINED, EACH):
        if kind == EACH or data.training():
            for _, whose, adders in SECTIONS:
                for add in adders if whose == kind else ():
                    add(data, book)
