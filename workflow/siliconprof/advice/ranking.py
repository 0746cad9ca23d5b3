"""Which device for a training: does it fit, how fast, at which energy and price, on what evidence.

Section 5.1 of Feng et al. 2025 recommends the machine that you have, though slower, if its memory is large
enough; a new Apple machine only for larger models; an NVIDIA GPU for most. Here the same is
computed device by device, and every number has its evidence (`advice.evidence`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from siliconprof import plugins
from siliconprof.advice import evidence, published
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
Shares = Mapping[str, Sequence[published.Share]]
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
        """Samples per second at the slow end of the range; None if unknown.

        For ranges by Table 4 that end assumes 128 tokens, as its own rows do here.
        """
        longest = self.step.value or self.step.high
        return self.batch_size / longest if longest else None

    @property
    def is_guess(self) -> bool:
        """Whether it is a CPU of unknown speed, whose memory alone does not make it useful."""
        return self.candidate.kind == "cpu" and self.samples_per_s is None

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
        energy = self.widest()

        def estimate(one: Estimate) -> dict[str, Any]:
            return {
                "low": one.low,
                "value": one.value,
                "high": one.high,
                "evidence": one.evidence,
                "said": one.basis,
            }

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
            "step_s": estimate(self.step),
            "samples_per_s": {
                "low": self.batch_size / self.step.high if self.step.high else None,
                "value": self.batch_size / self.step.value if self.step.value else None,
                "high": self.batch_size / self.step.low if self.step.low else None,
            },
            "energy_per_1000_steps_j": {
                scope: estimate(one.times(STEPS)) for scope, one in self.energy.items()
            },
            "electricity_per_1000_steps_usd": {
                "scope": energy[0],
                "value": self.cost_usd(energy[1].value),
                "high": self.cost_usd(energy[1].high),
            }
            if energy and self.price_per_kwh is not None
            else None,
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
    conclusion: Sequence[str] = field(default_factory=tuple)

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        question = self.question
        return {
            "question": {
                "model": question.model,
                "parameters": question.parameters,
                "batch_size": question.batch_size,
                "seq_len": question.seq_len,
                "precision": question.precision,
                "lora_rank": question.lora_rank,
                "trainer": question.trainer,
                "budget_usd": question.budget_usd,
                "shape": question.shape_assumption(),
            },
            "n_parameters": self.n_parameters,
            "flops_per_step": self.flops,
            "flops_source": self.flops_source,
            "conclusion": list(self.conclusion),
            "devices": [answer.as_dict() for answer in self.answers],
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
    workload, shares = question.workload(), published.table4_shares(facts)
    answers = [
        _best(
            [
                _answer(
                    question,
                    workload,
                    candidate,
                    backend,
                    facts,
                    shares,
                    prices or {},
                    price_per_kwh,
                )
                for backend in candidate.backends
            ]
        )
        for candidate in facts.candidates
        if candidate.backends and (not only or {candidate.id, *candidate.own_ids} & set(only))
    ]
    answers.sort(key=usefulness)
    flops, source = workload.flops_per_step()
    return Advice(
        question,
        answers,
        workload.n_parameters(),
        flops,
        source,
        tuple(conclusion(question, answers, bool(only))),
    )


def usefulness(one: Answer) -> tuple:
    """Sort key: able, known to be useful, budget, scenario, known speed, speed, known price, price."""
    speed = one.samples_per_s
    return (
        one.scenario == "cannot",
        one.is_guess,
        RANK_OF_BUDGET.get(one.budget or "yes", 0),
        SCENARIOS.index(one.scenario),
        speed is None,
        -(speed or 0.0),
        one.price.usd is None,
        one.price.usd or 0.0,
        one.candidate.id,
    )


def _best(answers: Sequence[Answer]) -> Answer:
    """The answer with the best scenario, then the best evidence, then the highest speed."""
    kinds = (MEASURED, PUBLISHED, PREDICTED, None)
    return min(
        answers,
        key=lambda one: (
            SCENARIOS.index(one.scenario),
            kinds.index(one.step.evidence),
            -(one.samples_per_s or 0.0),
        ),
    )


def _answer(
    question: Question,
    workload: Any,
    candidate: Candidate,
    backend: str,
    facts: Facts,
    shares: Shares,
    prices: Mapping[str, float],
    price_per_kwh: float | None,
) -> Answer:
    plugin = plugins.load("backends", backend)
    capacity, source = candidate.capacity()
    need = footprint.total(workload.memory_bytes(question.precision, backend))
    offloaded = footprint.total(workload.offloaded_memory_bytes(question.precision, backend))
    refusal = _refusal(question, workload, candidate, plugin)
    if refusal:
        scenario, why = "cannot", refusal
    elif not capacity:
        scenario, why = "unknown", "its memory is unknown"
    else:
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
        scenario = "cannot" if decision.status else decision.applied
    step = Estimate(basis=f"it cannot run: {why}")
    energy: dict[str, Estimate] = {}
    if scenario != "cannot":
        step, energy = _figures(question, workload, candidate, backend, scenario, facts, shares)
    price = money.price_of(candidate.entry, [candidate.id, *candidate.own_ids], prices)
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
        price_per_kwh,
    )


def _refusal(question: Question, workload: Any, candidate: Candidate, plugin: Any) -> str | None:
    """Why the device cannot run this training, whatever its memory; None where it can."""
    trainer = plugins.load("trainers", question.trainer)()
    return (
        plugin.precisions.get(question.precision)
        or workload.supports(plugin.framework, question.precision)
        or trainer.supports(plugin.framework, candidate.kind, question.precision)
    )


def _figures(
    question: Question,
    workload: Any,
    candidate: Candidate,
    backend: str,
    scenario: str,
    facts: Facts,
    shares: Shares,
) -> tuple[Estimate, dict[str, Estimate]]:
    """(seconds of a step, joules of a step by scope)."""
    energy: dict[str, Estimate] = {}
    measurement = evidence.measured(question, workload, candidate, backend, scenario, facts)
    if measurement:
        step, point = measurement
        energy = evidence.measured_energy(point, facts)
    elif scenario == "offload":
        return Estimate(basis=OFFLOAD_UNKNOWN), {}
    else:
        step = published.published(question, candidate, backend, facts) or evidence.predicted(
            question, workload, candidate, backend, facts, shares
        )
    energy = energy or published.published_energy(question, candidate, facts)
    if not energy:
        energy = _bound(candidate, step)
    return step, energy


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
