"""The interface of a workload: what is trained or computed, and how much work that is.

A workload is one file. Its `Parameters` are the keys that its entries in the config may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from siliconprof.declarations import Bytes, Parameter, Quantity, Settings
from siliconprof.session.cell_run import CellRun
from siliconprof.store.cell import PRECISIONS

NARROW_S = 2.0  # in which an operation's interval becomes narrow, whatever its budget
# framework -> modules that it imports with its first optimizer or dispatch mode
LATER_MODULES = {"torch": ("torch._dynamo",)}


def only_fp32(because: str) -> dict[str, str]:
    """`Workload.refuses` of work that no precision affects."""
    others = (name for name in PRECISIONS if name != "fp32")
    return dict.fromkeys(others, f"{because}: measured under fp32 only")


class Workload:
    """Base of all workloads."""

    family: ClassVar[str] = "Other models"  # what the page groups it under
    kind: ClassVar[str]  # training: driven by a trainer; kernels: times operations itself
    frameworks: ClassVar[tuple[str, ...]] = ("torch", "mlx")
    refuses: ClassVar[Mapping[str, str]] = {}  # precision -> why it cannot run in it
    LIBRARIES: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # framework -> what it may import
    swept: ClassVar[tuple[str, ...]] = ()  # parameters whose values make points
    POINT: ClassVar[Mapping[str, Parameter]] = {}  # its points' parameters, by name
    # The parameter with the bytes that repeated calls use; None = the bytes that one call moves.
    working_set: ClassVar[str | None] = None
    QUANTITIES: ClassVar[Mapping[str, Quantity]] = {}  # what it yields of each point

    class Parameters:
        """The settings that an entry of the config has, see `siliconprof.parameters`."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = parameters

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The settings that have a default."""
        parts = reversed(cls.Parameters.__mro__)
        values = [(name, value) for part in parts for name, value in vars(part).items()]
        return {name: value for name, value in values if not name.startswith("__")}

    @classmethod
    def describe_point(cls, row: Mapping[str, Any]) -> str:
        """A point's description from its line of points.csv: by default all that identifies it."""
        return ", ".join(
            parameter.text(row[name])
            for name, parameter in cls.POINT.items()
            if parameter.identifies and not parameter.derived and row.get(name) is not None
        )

    @classmethod
    def common_settings(cls, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """A cell's settings, of any version, that all its points share; a point's own take precedence."""
        return parameters

    @classmethod
    def model_spec(cls, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
        """The model that a file of `results/models/` describes, if it needs one; see `model_facts`."""
        return None

    def imports(self, framework: str) -> list[tuple[str, Callable[[], Any]]]:
        """Third-party modules beside the framework, in order: (name, function that imports it)."""
        return []

    def packages(self, framework: str) -> tuple[str, ...]:
        """Distributions, beside the framework's, whose version the workload's numbers depend on."""
        return self.LIBRARIES.get(framework, ())

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        """Mistakes that no schema expresses, `key: what is wrong`; values may break the schema."""
        return []

    def supports(self, framework: str, precision: str) -> str | None:
        """Why it cannot run in this framework and precision; None when it can."""
        if framework not in self.frameworks:
            return f"this workload has no {framework} implementation"
        return self.refuses.get(precision)

    def planned_s(self, each_s: float) -> float:
        """Seconds that measuring should take, for the plan.

        Args:
            each_s: the budgets of warm-up and of measuring together.
        """
        raise NotImplementedError

    def memory_bytes(self, precision: str, backend: str, capability: str | None = None) -> Bytes:
        """Predicted device memory by part, in bytes: weights, gradients, optimizer, activations.

        Args:
            capability: see `Features.memory_profile_on`.
        """
        return {}


class KernelWorkload(Workload):
    """Operations timed without a trainer, many points in one process."""

    kind = "kernels"
    family = "Single operations"
    QUANTITIES = {
        "step_s": Quantity("time", "s", "lower", series=True),
        "flop_per_s": Quantity("operations", "FLOP/s", "higher"),
        "bytes_per_s": Quantity("throughput", "byte/s", "higher"),
    }

    fresh_processes: ClassVar[int] = 0  # that it starts, each of which imports the framework

    def n_points(self) -> int:
        """Approximate number of points, for the plan."""
        return len(self.parameters.get("shapes", [0]))

    def planned_s(self, each_s: float) -> float:
        return self.n_points() * min(each_s, NARROW_S)

    def measure(self, cell_run: CellRun) -> None:
        """Time every point and hand each to `CellRun.add_point`."""
        raise NotImplementedError
