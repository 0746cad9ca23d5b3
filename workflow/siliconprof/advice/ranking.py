"""Which device for a training: does it fit, how fast, at which energy and price, on what evidence.

Section 5.1 of Feng et al. 2025 recommends the machine that you have, though slower, if its memory is large
enough; a new Apple machine only for larger models; an NVIDIA GPU for most. Here the same is
computed device by device, and every number has its evidence (`advice.evidence`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from siliconprof import plugins
from siliconprof.advice import evidence
from siliconprof.advice.parts import (
    MEASURED,
    PREDICTED,
    PUBLISHED,
    SCOPES,
    Candidate,
    Estimate,
    Facts,
)
from siliconprof.advice.words import conclusion
from siliconprof.analyse import money
from siliconprof.cells.advice_question import Question
from siliconprof.memory import footprint, memory_model

SCENARIOS = ("fits", "near-capacity", "offload", "unknown", "cannot")
STEPS = 1000.0
BOUND = "at most: the board's power on its data sheet × the longest time"
NO_ENERGY = "unknown: not measured, not published, and {}"
RANK_OF_BUDGET = {"yes": 0, "unknown": 1, "no": 2}
OFFLOAD_UNKNOWN = (
    "unknown: no offloaded training was measured on it, and the paper shows those of ZeRO-Offload "
    "only in a figure"
)


@dataclass(frozen=True)
class Answer:
    """One device, on the backend that suits the question best."""

    candidate: Candidate
    backend: str
    scenario: str  # of SCENARIOS
    why: str  # why it cannot run, or is offloaded
    need_bytes: int | None  # with everything on the device
    offloaded_bytes: int | None  # on the device when offloading
    capacity_bytes: int | None
    capacity_source: str
    step: Estimate  # s
    energy: dict[str, Estimate]  # scope -> J a step; `at most`, where only a bound is known
    price: money.Price
    batch_size: int
    budget: str | None  # yes, no, unknown; None when none was given
    price_per_kwh: float | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second; None if unknown."""
        return self.batch_size / self.step.value if self.step.value else None

    @property
    def has_figure(self) -> bool:
        """Whether more is known of it than that it is in the registry: it is here, or has a speed or a price."""
        return self.candidate.here or bool(self.step.value) or self.price.usd is not None

    def widest(self) -> tuple[str, Estimate] | None:
        """(scope, J per step) of the widest scope, never a sum of scopes; None if unknown."""
        for scope in (*SCOPES, money.AT_MOST):
            if scope in self.energy:
                return scope, self.energy[scope]
        return None

    def cost_usd(self, joules: float | None) -> float | None:
        """USD of electricity for 1,000 steps of `joules` each; None if unknown."""
        return money.electricity_usd(joules, STEPS, self.price_per_kwh)

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        energy, electricity = self.widest(), None
        if energy and self.price_per_kwh is not None:
            scope, joules = energy
            costs = {end: self.cost_usd(getattr(joules, end)) for end in ("value", "high")}
            electricity = {"scope": scope} | costs
        return {
            "device": self.candidate.id,
            "name": self.candidate.name,
            "this_host": self.candidate.here,
            "backend": self.backend,
            "scenario": self.scenario,
            "why": self.why or None,
            "need_bytes": self.need_bytes,
            "offloaded_bytes": self.offloaded_bytes,
            "capacity_bytes": self.capacity_bytes,
            "capacity_source": self.capacity_source,
            "step_s": asdict(self.step),
            "samples_per_s": asdict(self.step.per(self.batch_size)),
            "energy_per_1000_steps_j": {
                scope: asdict(one.times(STEPS)) for scope, one in self.energy.items()
            },
            "electricity_per_1000_steps_usd": electricity,
            "price_usd": self.price.usd,
            "price_of": self.price.of if self.price.usd is not None else None,
            "price_source": self.price.said,
            "within_budget": self.budget,
        }


@dataclass(frozen=True)
class Advice:
    """All answers to a question, the most useful first, and the conclusion."""

    question: Question
    answers: Sequence[Answer]
    n_parameters: int
    flops: float
    flops_source: str
    conclusion: Sequence[str]
    unsupported: Mapping[str, str]  # a device that no backend can use -> why

    @property
    def shown(self) -> list[Answer]:
        """The answers with a figure."""
        return [answer for answer in self.answers if answer.has_figure]

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "question": asdict(self.question) | {"shape": self.question.shape_assumption()},
            "n_parameters": self.n_parameters,
            "flops_per_step": self.flops,
            "flops_source": self.flops_source,
            "conclusion": list(self.conclusion),
            "devices": [answer.as_dict() for answer in self.answers],
            "unsupported": dict(self.unsupported),
        }


def answer(
    question: Question,
    facts: Facts,
    prices: Mapping[str, float] | None = None,
    price_per_kwh: float | None = None,
    only: Sequence[str] = (),
) -> Advice:
    """The answers for every device of the registry and of this host.

    Args:
        prices: the price paid for a device, in USD, by its id.
        price_per_kwh: the price of electricity in USD.
        only: ids of the devices to include; empty = all.
    """
    asked = Asked(question, facts, prices or {}, price_per_kwh)
    chosen = [one for one in facts.candidates if not only or {one.id, *one.own_ids} & set(only)]
    answers = [
        min((asked.answer(candidate, backend) for backend in candidate.backends), key=_suits)
        for candidate in chosen
        if candidate.backends
    ]
    unsupported = {
        one.id: one.entry["unsupported"]
        for one in chosen
        if one.entry and not one.backends and "unsupported" in one.entry
    }
    answers.sort(key=usefulness)
    flops, source = asked.workload.flops_per_step()
    said = conclusion(question, answers, bool(only))
    n_parameters = asked.workload.n_parameters()
    return Advice(question, answers, n_parameters, flops, source, said, unsupported)


def usefulness(one: Answer) -> tuple:
    """Sort key: able, budget, scenario, known speed, speed, known price, price."""
    speed = one.samples_per_s
    return (
        one.scenario == "cannot",
        RANK_OF_BUDGET.get(one.budget or "yes", 0),
        SCENARIOS.index(one.scenario),
        speed is None,
        -(speed or 0.0),
        one.price.usd is None,
        one.price.usd or 0.0,
        one.candidate.id,
    )


def _suits(one: Answer) -> tuple:
    """Sort key: the best scenario, then the best evidence, then the highest speed."""
    kinds = (MEASURED, PUBLISHED, PREDICTED, None)
    rank = SCENARIOS.index(one.scenario), kinds.index(one.step.evidence)
    return *rank, -(one.samples_per_s or 0.0)


@dataclass(frozen=True)
class Asked:
    """A question with all that answers it."""

    question: Question
    facts: Facts
    prices: Mapping[str, float]
    price_per_kwh: float | None

    @cached_property
    def workload(self) -> Any:
        """The training, for its work, memory and parameters."""
        return self.question.workload()

    def answer(self, candidate: Candidate, backend: str) -> Answer:
        """Of one device on one backend."""
        question, workload = self.question, self.workload
        capacity, source = candidate.capacity()
        need = footprint.total(workload.memory_bytes(question.precision, backend))
        offloaded = footprint.total(workload.offloaded_memory_bytes(question.precision, backend))
        scenario, why = self._scenario(candidate, backend, need, offloaded)
        step = Estimate(basis=f"it cannot run: {why}")
        energy: dict[str, Estimate] = {}
        if scenario != "cannot":
            step, energy = self._figures(candidate, backend, scenario)
        price = money.price_of(candidate.entry, [candidate.id, *candidate.own_ids], self.prices)
        return Answer(
            candidate,
            backend,
            scenario,
            why,
            need,
            offloaded if scenario == "offload" else None,
            capacity,
            source,
            step,
            energy,
            price,
            question.batch_size,
            _within(question.budget_usd, price, candidate.here),
            self.price_per_kwh,
        )

    def _scenario(
        self, candidate: Candidate, backend: str, need: int, offloaded: int
    ) -> tuple[str, str]:
        """(how it could run, why not or why so), by the memory model, as for every cell."""
        question, plugin = self.question, plugins.load("backends", backend)
        trainer = plugins.load("trainers", question.trainer)()
        refusal = (
            plugin.precisions.get(question.precision)
            or self.workload.supports(plugin.framework, question.precision)
            or trainer.supports(plugin.framework, candidate.kind, question.precision)
        )
        if refusal:
            return "cannot", refusal
        capacity, source = candidate.capacity()
        if not capacity:
            return "unknown", "its memory is unknown"
        decision = memory_model.decide(
            memory_model.Question(
                requested="auto",
                predicted_bytes=need,
                capacity_bytes=capacity,
                capacity_source=source,
                offloaded_bytes=offloaded,
                cannot_offload=plugin.offload,
                on_cpu=candidate.kind == "cpu",
            )
        )
        why = (decision.reason or "").removesuffix("; force: true measures it all the same")
        return "cannot" if decision.status else decision.applied, why

    def _figures(
        self, candidate: Candidate, backend: str, scenario: str
    ) -> tuple[Estimate, dict[str, Estimate]]:
        """(seconds of a step, joules of a step by scope)."""
        of, facts = (self.question, self.workload, candidate, backend), self.facts
        energy: dict[str, Estimate] = {}
        measurement = evidence.measured(*of, scenario, facts)
        if measurement:
            step, point = measurement
            energy = evidence.measured_energy(point, facts)
        elif scenario == "offload":
            return Estimate(basis=OFFLOAD_UNKNOWN), {}
        else:
            published = evidence.published(self.question, candidate, backend, facts)
            step = published or evidence.predicted(*of, facts)
        energy = energy or evidence.published_energy(self.question, candidate, facts)
        return step, energy or _bound(candidate, step)


def _bound(candidate: Candidate, step: Estimate) -> dict[str, Estimate]:
    """At most the energy that the board can draw in the time of a step."""
    power = (candidate.entry or {}).get("power_w")
    longest = step.high or step.value
    if not power or not longest:
        return {}
    basis = f"{BOUND} ({power['value']:g} W)"
    return {money.AT_MOST: Estimate(None, None, power["value"] * longest, PREDICTED, basis)}


def no_energy(one: Answer) -> str:
    """Why there is no energy, not even a bound."""
    if (one.candidate.entry or {}).get("power_w"):
        return NO_ENERGY.format("without a time the board's power gives no bound")
    return NO_ENERGY.format("no power on a data sheet")


def _within(budget_usd: float | None, price: money.Price, here: bool) -> str | None:
    if budget_usd is None:
        return None
    if here:
        return "yes"  # it has been bought
    if price.usd is None:
        return "unknown"
    return "yes" if price.usd <= budget_usd else "no"
