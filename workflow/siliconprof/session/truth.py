"""Are the numbers true? The checks of every cell, in its own process, before it measures.

The clock is compared with sleeps of a given length. A product and a sum are timed as everything is
timed, with some work and with twice as much, and after a timed call their result must be there. A
check that fails flags the cell and changes nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from siliconprof.backends.base import Backend
from siliconprof.session.timing import SLEEP_LATE, call_s, clock_check
from siliconprof.stats import statistics

CALL_S, AIM_S = 2e-3, 3e-3  # a call lasts the first at least; sizes aim at the second
SLOW_S = 40e-3  # a sum that takes longer gets fewer values
LOOKS, FEWEST_LOOKS, LOOK_S = 5, 3, 20e-3  # at how long a call lasts; the third ends them
PROPORTIONAL = (1.8, 2.2)  # times as long for twice the work
LAUNCH_S = 1e-4  # more than handing work over takes, and less than the work that is fitted
ROUNDS, SLOW_ROUNDS, ROUNDS_S = 5, 2, 0.06  # of one attempt; the second where they take the third
MOST_ROUNDS, MOST_ROUNDS_S = 50, 0.4  # of an attempt that shows no proportion
VECTOR_BYTES, MOST_VECTOR_BYTES = 2**26, 2**32 - 2**20  # Metal's arrays end at 4 GiB
COLUMNS = 2**12
SIDE, MOST_SIDE = 2**8, 2**12  # of the products
PRODUCTS = 2**6  # of one side, before a larger side is tried


class Work(NamedTuple):
    """A kernel with so much work."""

    launch: Callable[[], Any]
    read: Callable[[Any], Any]  # fetches a value of the result to the host
    flops: int
    bytes: int  # read


class Workshop:
    """One long random vector, and the two kernels that take what they need of it."""

    def __init__(self, backend: Backend, seed: int, most_bytes: int) -> None:
        self.backend, self.seed = backend, seed
        self.most_bytes = min(most_bytes, MOST_VECTOR_BYTES)
        self.lengthen(VECTOR_BYTES)

    def lengthen(self, n_bytes: int) -> None:
        """Make the vector this many bytes long, as far as allowed, in the cell's product dtype.

        Its values are the products of two short random vectors: drawing all of them would take
        longer than all the rest.
        """
        backend = self.backend
        self.vector: Any = None
        one = backend.normal((1, 1), self.seed)
        row = backend.matmul(one, backend.normal((1, COLUMNS), self.seed + 1))
        backend.evaluate(row)
        self.width = int(row.itemsize)
        rows = min(n_bytes, self.most_bytes) // (COLUMNS * self.width)
        column = backend.matmul(backend.normal((rows, 1), self.seed + 2), one)
        self.vector = (column * row).reshape(-1)
        self.length = rows * COLUMNS
        backend.evaluate(self.vector)

    def _part(self, begin: int, *shape: int) -> Any:
        part = self.vector[begin : begin + math.prod(shape)].reshape(shape)
        self.backend.evaluate(part)
        return part

    def sum(self, n: int) -> Work:
        """The sum of n values."""
        part = self._part(0, n)
        return Work(lambda: part.sum(), lambda total: total.item(), n, n * self.width)

    def products(self, side: int, n: int) -> Work:
        """n products of two square matrices of that side, added up, in one call.

        The operands have shapes (side, n·side) and (n·side, side), laid out so that n does not
        change the distance between neighbours.
        """
        a = self._part(0, n * side, side).T
        b = self._part(n * side**2, n * side, side)
        return Work(
            lambda: self.backend.matmul(a, b),
            lambda product: product[0][0].item(),
            2 * n * side**3,
            2 * n * side**2 * self.width,
        )

    # -- timing them -----------------------------------------------------------------------------

    def call_s(self, work: Work) -> float:
        """Seconds of one call, exactly as operations are timed."""
        return call_s(lambda: self.backend.evaluate(work.launch()), self.backend)

    def marked_s(self, work: Work) -> float:
        """Seconds of one call between two of the backend's marks, as phases are timed."""
        backend = self.backend
        backend.synchronize()
        begin = backend.mark()
        backend.evaluate(work.launch())
        end = backend.mark()
        backend.synchronize()
        return backend.seconds_between(begin, end)

    def finished(self, work: Work) -> tuple[float, float]:
        """(seconds of one timed call, seconds from its end until a value of its result is read)."""
        results: list[Any] = []

        def operation() -> None:
            results.append(work.launch())
            self.backend.evaluate(results[0])

        timed_s = call_s(operation, self.backend)
        began = time.perf_counter()
        work.read(results[0])
        return timed_s, time.perf_counter() - began

    def lasts_s(self, work: Work) -> float:
        """Seconds that a call really takes, even where the timed call does not wait for its end."""
        sum(self.finished(work))  # compiles, loads and touches memory
        durations_s: list[float] = []
        while len(durations_s) < (LOOKS if sum(durations_s) < LOOK_S else FEWEST_LOOKS):
            durations_s.append(sum(self.finished(work)))
        return min(durations_s)

    # -- how much work ---------------------------------------------------------------------------

    def fit_sum(self) -> tuple[int, float]:
        """(how many values to sum in one call, its seconds); the vector has twice as many."""
        while True:
            n = self.length // 2
            lasts = self.lasts_s(self.sum(n))
            if lasts >= CALL_S or not self.can_grow():
                return (n if lasts < SLOW_S else max(int(n * AIM_S / lasts), COLUMNS)), lasts
            self.lengthen(self.length * self.width * min(8, max(2, int(CALL_S / lasts))))

    def fit_products(self) -> tuple[int, int, float]:
        """(side, how many products to add up in one call, its seconds)."""
        side, n = SIDE, 1
        while True:
            lasts = self.lasts_s(self.products(side, n))
            if lasts >= CALL_S:
                return side, n, lasts
            needed = math.ceil(n * AIM_S / lasts)
            here, larger = self.room(side), self.room(2 * side) if side < MOST_SIDE else 0
            if needed <= min(here, PRODUCTS):
                n = needed
            elif larger:
                side, n = 2 * side, min(max(needed // 8, 1), larger)
            elif n < here:
                n = min(needed, here)
            else:
                return side, n, lasts

    def can_grow(self) -> bool:
        """Whether a longer vector is allowed."""
        return (self.length + COLUMNS) * self.width <= self.most_bytes

    def room(self, side: int) -> int:
        """How many products of that side the vector has operands for, twice over."""
        return self.length // (4 * side**2)


def proportional(attempt: Mapping[str, Any]) -> bool:
    """Whether twice the work took about twice as long, and the work longer than its launch.

    Ratios of the few microseconds of launches are of any size now and then.
    """
    ratio = attempt["ratio"] or 0
    return PROPORTIONAL[0] <= ratio <= PROPORTIONAL[1] and min(attempt["once_s"]) >= LAUNCH_S


def rounds(time_one: Callable[[Work], float], once: Work, twice: Work) -> dict[str, Any]:
    """Raw seconds of both in turn, and the ratio of the shortest ones.

    Five rounds, or two of slow kernels. A disturbance only makes a call longer: while the shortest
    are not proportional, more rounds follow, up to a limit.
    """
    once_s: list[float] = []
    twice_s: list[float] = []
    attempt: dict[str, Any] = {"flops": once.flops, "bytes": once.bytes}
    attempt |= {"once_s": once_s, "twice_s": twice_s}
    while len(once_s) < MOST_ROUNDS and sum(once_s) + sum(twice_s) < MOST_ROUNDS_S:
        once_s.append(time_one(once))
        twice_s.append(time_one(twice))
        attempt["ratio"] = min(twice_s) / min(once_s) if min(once_s) > 0 else None
        slow = sum(once_s) + sum(twice_s) > ROUNDS_S
        if len(once_s) >= (SLOW_ROUNDS if slow else ROUNDS) and proportional(attempt):
            break
    return attempt


if TYPE_CHECKING:
    from siliconprof.session.session import Session

ATTEMPTS = 3  # each with more work, since on a busy host every call takes a while longer
GROWTH, LONGEST_S = 4, 0.1  # no call grows beyond the second
PAUSE_S = 0.1
BUDGET_S = 1.0  # of one kernel, after which no further attempt is made
SMALLEST_VECTOR_BYTES = 2**23
SHARE_OF_MEMORY = 1 / 16
WAITED_SHARE = 0.5  # of the time until a result is read, at least, lies inside the timed call
COARSEST_S = 1e-5  # resolution and cost of the clock
METHOD = {
    "checks": (
        "in this process, before the first measurement: a sleep of 20 ms is measured as 20 to "
        "30 ms; a product of (side, n side) and (n side, side) and a sum over a vector take 1.8 to "
        f"2.2 times as long with twice the work, least of {ROUNDS} interleaved calls each or, where "
        "they do not, of more, "
        f"in one of {ATTEMPTS} attempts; at least half of the time until a result can be read is "
        "inside the timed call; the error of a product against float64 tells the precision. All "
        "attempts are kept, what fails is flagged"
    ),
    "noise": (
        "scatter: IQR over 10 % of the median; drift: medians of the two halves of a series more "
        "than 5 % apart, and their 95 % intervals, widened by what neighbours have in common, "
        "disjoint; change point: more than 5 %, and p below 0.001 in Pettitt's test, its statistic "
        "divided by the same. An operation that scatters or drifts is measured again after a "
        "pause, within retries and retry_budget_s; the last attempt stands, all are kept. "
        "Trainings are not repeated. What scatters or drifts in the end is flagged"
    ),
}

Check = dict[str, Any]  # `verdict`: ok, failed or not checked; `reason` unless ok; and numbers


def verdict(reason: str | None, **numbers: Any) -> Check:
    """A check that is ok, or failed for a reason."""
    return {"verdict": "failed" if reason else "ok", "reason": reason, **numbers}


def not_checked(reason: str, **numbers: Any) -> Check:
    """A check that could not be made."""
    return {"verdict": "not checked", "reason": reason, **numbers}


# -- the clock -----------------------------------------------------------------------------------


def clock_checks(session: Session) -> dict[str, Check]:
    """`clock` and `sleep`; either flags the cell with `clock`."""
    clock = clock_check()
    resolution, cost = clock["resolution_s"], clock["reading_cost_s"]
    asked_s, measured_s = clock["sleep_asked_s"], clock["sleep_measured_s"]
    coarse = late = None
    if max(resolution, cost) > COARSEST_S:
        coarse = f"it resolves {resolution:.1e} s and takes {cost:.1e} s to read"
    if not asked_s <= measured_s <= SLEEP_LATE * asked_s:
        late = f"a sleep of {asked_s} s was measured as {measured_s:.4f} s"
        late += f", the last of {len(clock['sleeps_s'])}" if len(clock["sleeps_s"]) > 1 else ""
    for reason in (coarse, late):
        if reason:
            session.flag("clock", reason)
    return {
        "clock": verdict(coarse, resolution_s=resolution, reading_cost_s=cost),
        "sleep": verdict(late, asked_s=asked_s, measured_s=measured_s, all_s=clock["sleeps_s"]),
    }


# -- twice the work ------------------------------------------------------------------------------


def doubled(
    kernel: str,
    clock: str,
    time_one: Callable[[Work], float],
    sized: Callable[[float], tuple[Work, Work]],
    grow: bool,
) -> Check:
    """The check of one kernel by one clock, tried a few times; it has every attempt.

    Args:
        sized: maps a factor to (once, twice) the fitted work times that factor.
        grow: whether further attempts get more work: not where the clock may miss their time.
    """
    attempts: list[Check] = []
    until_s = time.monotonic() + BUDGET_S
    factor = 1.0
    for attempt in range(ATTEMPTS):
        if attempt:
            if proportional(attempts[-1]) or time.monotonic() > until_s:
                break
            time.sleep(PAUSE_S)
            lasts = max(min(attempts[-1]["once_s"]), 1e-6)
            factor *= min(max(GROWTH, AIM_S / lasts), max(LONGEST_S / lasts, 1)) if grow else 1
        once, twice = sized(factor)
        for warm in (once, twice):
            time_one(warm)
        attempts.append(rounds(time_one, once, twice))
    last, reason = attempts[-1], None
    if not proportional(last):
        ratios = ", ".join(f"{attempt['ratio'] or 0:.2f}" for attempt in attempts)
        reason = (
            f"twice the work of a {kernel} took {ratios} times as long by {clock}, lastly "
            f"{min(last['twice_s']):.2e} s against {min(last['once_s']):.2e} s"
        )
    return verdict(reason, kernel=kernel, clock=clock, ratio=last["ratio"], attempts=attempts)


def kernel_checks(session: Session) -> dict[str, Check]:
    """`twice_the_work` and `synchronisation`; a check that fails flags the cell.

    The first is `not_checked` where the memory that it may use holds too little work for a call
    that lasts long enough, though each call is waited for.
    """
    backend, cell = session.backend, session.cell
    memory = cell.device_memory_bytes or backend.memory_limit_bytes()
    most_bytes = int(memory * SHARE_OF_MEMORY) if memory else VECTOR_BYTES
    if most_bytes < SMALLEST_VECTOR_BYTES:
        reason = f"the device has {memory} bytes of memory: too little for calls that can be timed"
        return {name: not_checked(reason) for name in ("twice_the_work", "synchronisation")}
    shop = Workshop(backend, cell.seed, most_bytes)
    values, sum_s = shop.fit_sum()
    side, products, product_s = shop.fit_products()

    def sums(factor: float) -> tuple[Work, Work]:
        n = int(factor * values)
        if 2 * n > shop.length and shop.can_grow():
            shop.lengthen(2 * n * shop.width)
        n = min(n, shop.length // 2)
        return shop.sum(n), shop.sum(2 * n)

    def sums_of_products(factor: float) -> tuple[Work, Work]:
        n = min(int(factor * products), shop.room(side))
        return shop.products(side, n), shop.products(side, 2 * n)

    kernels = (("product", sums_of_products, product_s), ("sum", sums, sum_s))
    waited = {kernel: waited_share(shop, sized(1)[0]) for kernel, sized, _ in kernels}
    missing = [kernel for kernel, share in waited.items() if share < WAITED_SHARE]
    synchronised = verdict(
        f"only {waited[missing[0]]:.0%} of the time until the result of a {missing[0]} could be "
        "read lay inside the timed call"
        if missing
        else None,
        waited_shares=waited,
    )
    clocks = [("the host's clock", shop.call_s, not missing)]
    if type(backend).mark is not Backend.mark:
        clocks.append(("the backend's marks", shop.marked_s, False))
    checks = []
    for kernel, sized, lasts_s in kernels:
        for clock, time_one, grow in clocks:
            check = doubled(kernel, clock, time_one, sized, grow)
            if check["verdict"] == "failed" and lasts_s < CALL_S and not missing:
                check |= not_checked(
                    f"a {kernel} of all the memory it may use, {most_bytes} bytes, takes only "
                    f"{lasts_s:.1e} s; {check['reason']}"
                )
            checks.append(check)
    for code, check in (
        ("not_synchronised", synchronised),
        *(("not_proportional", c) for c in checks),
    ):
        if check["verdict"] == "failed":
            session.flag(code, check["reason"])
    return {
        "twice_the_work": {
            "verdict": worst(check["verdict"] for check in checks),
            "reason": "; ".join(check["reason"] for check in checks if check["reason"]) or None,
            "kernels": checks,
        },
        "synchronisation": synchronised,
    }


def waited_share(shop: Workshop, work: Work) -> float:
    """The share of the time until a result is read that is inside the timed call; median of 3."""
    shares = []
    for _ in range(3):
        timed_s, rest_s = shop.finished(work)
        shares.append(timed_s / (timed_s + rest_s))
    return statistics.median(shares)


def worst(verdicts: Iterable[str]) -> str:
    """The verdict of several checks together."""
    distinct = set(verdicts)
    return next((verdict for verdict in ("failed", "not checked") if verdict in distinct), "ok")


def before(session: Session) -> dict[str, Check]:
    """The checks before the first measurement; their memory is freed."""
    checks = clock_checks(session)
    try:
        checks |= kernel_checks(session)
    except Exception as error:  # out of memory, an operator that the device lacks
        text = " ".join(f"{type(error).__name__}: {error}".split())
        checks |= {name: not_checked(text) for name in ("twice_the_work", "synchronisation")}
    session.backend.release_memory()
    session.backend.reset_peak_memory()
    return checks


# -- after the measurement -----------------------------------------------------------------------


def precision_check(requested: str, effective: str | None, evidence: Mapping[str, Any]) -> Check:
    """Whether the arithmetic was what the cell asked for."""
    differs = (
        None if effective == requested else f"asked for {requested}, the arithmetic was {effective}"
    )
    return verdict(
        differs,
        requested=requested,
        effective=effective,
        product_error=evidence.get("product_error"),
    )


def results_check(points: Sequence[Mapping[str, Any]]) -> Check:
    """How far results were from float64; a wrong one has ended the cell before it was timed."""
    errors = [p["result_error"] for p in points if p.get("result_error") is not None]
    if not errors:
        return not_checked("no point has a result that a float64 reference was computed for")
    return verdict(None, worst_error=max(errors), points=len(errors))
