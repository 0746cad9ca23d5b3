"""The types of what a file may hold that are shared with plug-ins, which import without pydantic.

A plug-in's `Parameters` are annotations, and defaults of those that a config may leave out:

    class Parameters(OperationWorkload.Parameters):
        factor: Annotated[int, Limits(ge=2), "what each is multiplied by"] = 4

The last text of an annotation describes it. `store.model.model_of` makes a pydantic model of them; what
measures is spared pydantic, and annotated_types, which takes 10 ms to import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, TypeVar

from siliconprof import plugins
from siliconprof.errors import nearest

T = TypeVar("T")

# A number to YAML 1.2 and to a person; YAML 1.1 asks for a point before the exponent.
_FLOAT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")


class Limits:
    """Metadata of a type: what pydantic's `Field` takes, such as `ge`, `lt` and `min_length`."""

    __is_annotated_types_grouped_metadata__ = True  # by which pydantic iterates over it

    def __init__(self, **limits: Any) -> None:
        self.limits = limits

    def __iter__(self) -> Iterator[Any]:
        import pydantic

        return iter(pydantic.Field(**self.limits).metadata)


class Checked:
    """Metadata of a type: a function that pydantic calls.

    Args:
        when: Before, After or Plain (instead), of pydantic's own check of the type.
        check: value -> value; it raises a `ValueError` that says what the value is and should be.
        schema: JSON schema in the place of the type's own.
    """

    __is_annotated_types_grouped_metadata__ = True

    def __init__(self, when: str, check: Callable[[Any], Any], schema: Any = None) -> None:
        self.when, self.check, self.schema = when, check, schema

    def __iter__(self) -> Iterator[Any]:
        import pydantic

        yield getattr(pydantic, f"{self.when}Validator")(self.check)
        if self.schema:
            yield pydantic.WithJsonSchema(self.schema)


def one_of(values: Iterable[Any] | str) -> Checked:
    """Metadata of a type: one of some values, of just that type (`4.0` is not `4`).

    Args:
        values: or a kind of plug-in, whose names they are.
    """
    listed = plugins.names(values) if isinstance(values, str) else [*values]

    def check(value: Any) -> Any:
        if not any(type(one) is type(value) and one == value for one in listed):
            expected = f"expected one of: {', '.join(map(str, listed))}"
            raise ValueError(f"is {shown(value)}; {expected}{nearest(value, listed)}")
        return value

    return Checked("Plain", check, {"enum": listed})


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value


def _each_once(values: list[Any]) -> list[Any]:
    if any(value in values[:place] for place, value in enumerate(values)):
        raise ValueError(f"is {shown(values)}; expected each value once")
    return values


def shown(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# A whole number stays one: 2 is not 2.0 in the text that a cell is compared by.
Number = Annotated[int | float, Checked("Before", _number, {"type": "number"})]
Whole = Annotated[int, Limits(ge=0)]  # a count, bytes
NotNegative = Annotated[Number, Limits(ge=0)]
Positive = Annotated[Number, Limits(gt=0)]
Count = Annotated[int, Limits(ge=1)]
EachOnce = Checked("After", _each_once)
Several = Annotated[list[T], Limits(min_length=1)]
