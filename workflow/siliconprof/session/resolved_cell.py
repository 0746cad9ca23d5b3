"""A cell with its plug-ins: whether and how it can be measured, before any framework is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from siliconprof import plugins
from siliconprof.backends.base import Backend
from siliconprof.errors import UserError
from siliconprof.memory import footprint, memory_model
from siliconprof.probes import page_faults
from siliconprof.store.cell import Cell

# Settings that need less memory: key, value, in words.
OTHERWISE = (
    ("gradient_checkpointing", True, "gradient_checkpointing: true"),
    ("lora_rank", 8, "lora_rank: 8"),
)
AUTO = "auto"  # a batch size that the memory model finds
# Parameter of a cell: the config's, where a smaller one fits in its place.
BATCH_ASKED = "batch_size_asked"
THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)


class ResolvedCell:
    """A cell with its plug-ins, for the planner, the supervisor and the measuring process.

    Attributes:
        backend: the plug-in's class; no device is open.
        workload: with its parameters, defaults and an automatic batch size filled in.
        trainer: None for a workload that times its operations itself.

    Raises:
        LookupError: the cell names a plug-in that does not exist.
        UserError: its batch size is `auto` in a scenario other than near-capacity.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.backend: type[Backend] = plugins.load("backends", cell.backend)
        self.trainer: Any = plugins.load("trainers", cell.trainer)() if cell.trainer else None
        self._plugin = plugins.load("workloads", cell.module)
        self.workload: Any = self._workload(
            (self._largest_batch or 1) if self._auto_batch else None
        )

    def _workload(self, batch_size: int | None = None) -> Any:
        """The workload, with its defaults filled in and the batch size replaced if not None."""
        own = {} if batch_size is None else {"batch_size": batch_size}
        return self._plugin({**self._plugin.defaults(), **self.cell.parameters, **own})

    @property
    def trains(self) -> bool:
        """Whether the cell is a training."""
        return self._plugin.kind == "training"

    @property
    def compiles(self) -> bool:
        """Whether the training step is compiled."""
        return bool(self.trains and self.workload.parameters.get("compile"))

    @cached_property
    def packages(self) -> list[str]:
        """Distributions whose version the cell's numbers depend on."""
        framework = self.backend.framework
        names = {*self.backend.packages, *self.workload.packages(framework)}
        if self.trainer:
            names.update(self.trainer.LIBRARIES.get(framework, ()))
            names.update(self.trainer.OFFLOAD_LIBRARIES if self.offloads else ())
        return sorted(names)

    def imports(self) -> list[tuple[str, Callable[[], Any]]]:
        """Third-party modules that its process imports, in order: (name, function that imports it).

        Processes of cells whose lists begin alike have those modules in common.
        """
        framework = self.backend.framework
        theirs = self.workload.imports(framework)
        if self.trainer:
            theirs = self.trainer.imports(theirs, self.workload)
        if self.trainer and self.offloads:
            theirs = [*theirs, ("deepspeed", self.trainer.import_deepspeed)]
        return [(framework, self.backend().import_framework), *theirs]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of the measuring process, the cell's thread count among them.

        Args:
            inherited: the variables that the process would have otherwise.
        """
        cell, threads = self.cell, str(self.cell.threads)
        own = self.backend.features.environment(cell.device_index, cell.precision, inherited)
        return own | {
            **dict.fromkeys(THREAD_VARIABLES, threads),
            "TOKENIZERS_PARALLELISM": "false",
            "ACCELERATE_MIXED_PRECISION": "no",  # else transformers takes the shell's
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    @property
    def _auto_batch(self) -> bool:
        """Whether the memory model has to find the batch size."""
        if self.cell.parameters.get("batch_size") != AUTO:
            return False
        if self.cell.scenario != "near-capacity":
            raise UserError(
                f"--cell: batch_size is 'auto' in scenario {self.cell.scenario}; expected an "
                "integer, or scenario near-capacity"
            )
        return True

    @cached_property
    def _capacity(self) -> tuple[int | None, str]:
        """(bytes that the cell may use, source of that number)."""
        return memory_model.capacity_of(self.cell)

    @cached_property
    def _largest_batch(self) -> int | None:
        """The largest batch within the cell's share of the capacity; 0 = none, None = unknown."""
        capacity, _ = self._capacity
        if not capacity or not self._predicted_bytes(1):
            return None
        return memory_model.largest_batch(
            lambda batch_size: footprint.total(self._predicted_bytes(batch_size)),
            self.cell.parameters["near_capacity_share"] * capacity,
        )

    def fitting_batch(self) -> int | None:
        """The largest of the cell's batch and the powers of two below it that fits, with room to spare.

        None where none does, where that is unknown, and where the cell need not fit.
        """
        cell, most, capacity = self.cell, self.workload.batch_size, self._capacity[0]
        is_fitted = cell.scenario in ("auto", "fits") and not cell.parameters.get("skip")
        if not is_fitted or self._unsupported():
            return None
        sizes = [most, *(2**n for n in reversed(range((most - 1).bit_length())))]
        need = {size: footprint.total(self._predicted_bytes(size)) or None for size in sizes}
        fits = (s for s in sizes if memory_model.derive_scenario(need[s], capacity) == "fits")
        return next(fits, None)

    @property
    def smaller_batch(self) -> str | None:
        """A sentence that its batch is smaller than the config's; None where it is not."""
        asked = self.cell.parameters.get(BATCH_ASKED)
        if asked is None:
            return None
        return (
            f"batch {self.workload.batch_size} in place of {asked}: the largest power of two that fits, "
            "by the memory model, wherever this host trains it, so that all setups do equal work"
        )

    @property
    def _device(self) -> tuple[str, str, str | None]:
        """Arguments of `Workload.memory_bytes`."""
        return self.cell.precision, self.cell.backend, self.cell.device_capability

    def _predicted_bytes(self, batch_size: int) -> Mapping[str, int]:
        return self._workload(batch_size).memory_bytes(*self._device)

    @cached_property
    def _question(self) -> memory_model.ScenarioInputs:
        cell = self.cell
        predicted = self.workload.memory_bytes(*self._device)
        capacity, source = self._capacity
        near = self.trains and cell.scenario == "near-capacity"
        offloaded = self.workload.memory_bytes(*self._device, offloads=True) if self.trains else {}
        return memory_model.ScenarioInputs(
            requested=cell.scenario,
            predicted_bytes=footprint.total(predicted) if predicted else None,
            capacity_bytes=capacity,
            capacity_source=source,
            offloaded_bytes=footprint.total(offloaded) if offloaded else None,
            cannot_offload=self.backend.features.offload or self.trainer.cannot_offload
            if self.trainer
            else "only a training can be offloaded",
            on_cpu=cell.device_kind == "cpu",
            trains=self.trains,
            force=cell.parameters.get("force", False),
            share=cell.parameters["near_capacity_share"] if near else 1.0,
            largest_batch=self._largest_batch if near or self._exceeds(predicted) else None,
            would_do=tuple(self._would_do()) if self._exceeds(predicted) else (),
            auto_batch=self._auto_batch,
        )

    def _would_do(self) -> Iterator[str]:
        """The settings that would each make a training fit that does not."""
        for key, value, text in OTHERWISE:
            own = {**self._plugin.defaults(), **self.cell.parameters}
            if key in own and not own[key]:
                need = self._plugin({**own, key: value}).memory_bytes(*self._device)
                if footprint.total(need) <= (self._capacity[0] or 0):
                    yield text

    def _exceeds(self, predicted: Mapping[str, int]) -> bool:
        """Whether a training of one batch size is predicted to exceed its capacity."""
        capacity = self._capacity[0]
        one = {"batch_size", "near_capacity_share"} <= self.workload.parameters.keys()
        return bool(self.trains and one and capacity and footprint.total(predicted) > capacity)

    @cached_property
    def _decision(self) -> memory_model.ScenarioChoice:
        return memory_model.decide(self._question)

    @property
    def offloads(self) -> bool:
        """Whether it trains under ZeRO-Offload, by request or by the memory model."""
        return self.trainer is not None and self._decision.applied == "offload"

    def scenario(self) -> dict[str, Any]:
        """The scenario part of the cell's record, as far as it is known before anything runs."""
        cell, workload, question = self.cell, self.workload, self._question
        need, have = question.predicted_bytes, question.capacity_bytes
        near = memory_model.near_above(question.share)
        offloaded = workload.memory_bytes(*self._device, offloads=True) if self.offloads else None
        return {
            "requested": cell.scenario,
            "derived": memory_model.derive_scenario(need, have, near),
            "applied": self._decision.applied,
            "batch_size": workload.batch_size if self.trains else None,
            "batch_size_found": question.auto_batch,
            "batch_size_asked": cell.parameters.get(BATCH_ASKED),
            "predicted_bytes": need,
            "predicted_parts_bytes": workload.memory_bytes(*self._device),
            "offloaded_parts_bytes": offloaded,
            "device_memory_bytes": cell.device_memory_bytes,
            "capacity_bytes": have,
            "capacity_source": question.capacity_source,
            "share": need / have if need is not None and have else None,
            "reason": self._decision.reason,
            "limit": None,
            "confirmed_peak_bytes": None,
            "confirmed_share": None,
            "confirmed_by": None,
        }

    def refusal(self) -> tuple[str, str] | None:
        """(status, reason) of a cell that is not to be measured, or None.

        `unsupported`: such a cell cannot run. `skipped`: the experiment leaves it out here, or by
        prediction it does not fit.
        """
        if reason := self._unsupported() or self._kernel_refusal():
            return "unsupported", reason
        if skip := self.cell.parameters.get("skip"):  # the experiment's decision
            return "skipped", skip
        decision = self._decision
        return (decision.status, str(decision.reason)) if decision.status else None

    def _unsupported(self) -> str | None:
        """Why backend, workload or trainer cannot run the cell, whatever its memory."""
        cell, framework = self.cell, self.backend.framework
        reason = self.backend.features.refuses(cell.precision, cell.device_capability)
        reason = reason or self.workload.supports(framework, cell.precision)
        if not reason and self.trainer is not None:
            reason = self.trainer.supports(framework, cell.device_kind, cell.precision)
        if not reason and self.trains and cell.parameters.get("allocator") == "retain":
            # Kernels ask by default, and do without where it cannot be: on a Mac all would fail.
            why = page_faults.cannot_retain_memory()
            reason = why and f"allocator retain: {why}; leave it at default"
        return reason

    def _kernel_refusal(self) -> str | None:
        """Why the requested compiled step, attention or AdamW is not available; None where it is."""
        if self.trainer is None:
            return None
        cell, parameters = self.cell, self.workload.parameters
        features = self.backend.features
        if self.compiles:
            if not self.trainer.compiles:
                return f"compile: trainer {cell.trainer} runs eager steps; use trainer plain"
            if self.offloads:
                return "compile: a step of DeepSpeed's engine is not compiled here"
            if reason := features.cannot_compile(cell.device_kind):
                return f"compile: {reason}"
        if self.offloads and parameters.get("adamw", "default") != "default":
            return "adamw: offloaded, DeepSpeed's own Adam updates the weights"
        for key, offered in (("attention", features.attentions), ("adamw", features.adamws)):
            asked = parameters.get(key, "default")
            if asked not in ("default", *offered):
                choice = f"a choice of {', '.join(offered)}" if offered else "one, which it chooses"
                return f"{key}: {asked} is not to be had, {self.backend.name} has {choice}"
        attention = parameters.get("attention", "default")
        reason = features.refuses_attention(attention, cell.precision, cell.device_capability)
        return reason and f"attention: {attention} {reason}"
