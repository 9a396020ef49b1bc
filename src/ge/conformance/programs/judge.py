"""Compares results with the framework's where the framework's own answer is numerically stable.

The tolerance depends on the program and is measured by Monte Carlo arithmetic: the reference runs several times with
every rounded intermediate value perturbed by a few units in the last place. An element may differ by as much as those
runs do; integers, booleans and NaNs on which they disagree are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ge.conformance.programs.door import Door, Place, Refused, Rounding
from ge.conformance.programs.record import Program, only
from ge.conformance.programs.sampling import feeds, is_float

__all__ = ["Expected", "Reference", "Verdict", "check", "difference", "strictest", "verdict_of"]

FEW_RUNS = 2
NOISY_RUNS = 4
MANY_RUNS = 24  # noisy runs before a result is reported as wrong
MARGIN = 4.0  # times the spread of the noisy runs
ULPS = 8.0  # of the element itself
OVERFLOW = 1  # the noisy run without terms that may overflow and without other noise
_OVERFLOWS = (OVERFLOW, 4, 5)  # and with other signs, in case later operators hide one of them
INFINITE = 6  # the noisy run in which terms whose products overflow are infinite
_GRIDS = {7: 0.25, 8: 0.75}  # runs with fewer digits per term, so that nearly equal terms become equal
# Runs in which any large terms overflow while others vanish: which ones meet is a matter of order.
_SOME = tuple(range(13, 20))
_DENORMAL = (0, 2, 3)  # runs in which denormal numbers are zeros, or ordinary ones
ORDINARY = 9  # the run in which denormal operands are ordinary numbers, and nothing else changes
SMALLER = 10  # the run without the largest numbers, whose reciprocals are denormal
SIGNS = 11  # the run in which results that are zero have the other sign
# These runs decide which elements are compared, not the tolerance.
_COARSE = (OVERFLOW, INFINITE, *_GRIDS, *_SOME, ORDINARY, SMALLER, SIGNS)
GRADIENTS = 8.0  # further factor for gradients: rounding in the backward pass is not perturbed
STEPS = 8.0  # further factor for loops, which accumulate backward rounding
# Operators after a window may hide one replacement value (as Relu does), but not all signs and sizes.
_STAND_INS = (1.0, -1.0, 8.0, -8.0, math.inf, -math.inf)
# Runs in which a window keeps what is not finite and yields infinity for it: at a border, zero times an infinite weight
# is NaN to one implementation and nothing to another.
_OUTCOMES = {INFINITE: math.inf, 12: -math.inf}
_MOVED = {"float16": 1.0, "bfloat16": 1.0}  # units in the last place; 4 in wider types


@dataclass(frozen=True)
class Verdict:
    """Outcome of a program."""

    status: str  # pass, refused, invalid, wrong, error
    runs: int = 0
    mode: str = ""
    run: int = 0
    result: int = 0  # position of the wrong result
    reason: str = ""
    tolerances: tuple[float, ...] = ()  # of the elements that are compared
    unstable: tuple[int, ...] = ()  # flat positions that are not compared
    floating: bool = False
    elements: int = 0  # of all results
    judged: int = 0  # stable ones among them


def verdict_of(data: Mapping[str, Any]) -> Verdict:
    """Parse a verdict from JSON; ignores other keys."""
    known = Verdict.__dataclass_fields__
    fields: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known
    }
    return Verdict(**fields)


@dataclass(frozen=True)
class Expected:
    """One expected result: elements, tolerances, and a mask of the elements to compare."""

    array: np.ndarray
    tolerance: np.ndarray
    stable: np.ndarray
    shaped: bool = True  # the shape itself is stable


def _rounding(seed: int) -> Rounding:
    """Factors that move floating-point elements by a few units in the last place.

    The runs also cover other legal differences: the first flushes denormals, the second shrinks terms that overflow
    only in some orders of summation, the third and the fourth enlarge denormals that the framework may have flushed.
    Before a result is reported as wrong, further runs make overflowing terms infinite, all or some of them, and nearly
    equal terms equal, and three show what depends on flushed operands, on flushed reciprocals and on the sign of zero
    alone.
    """
    rng = np.random.default_rng(seed)

    def factors(array: np.ndarray, place: Place) -> np.ndarray:
        kind = array.dtype
        info = np.finfo(kind) if kind.kind == "c" else ml_dtypes.finfo(kind)
        tiny, most, eps = float(info.tiny), float(info.max), float(info.eps)
        with np.errstate(all="ignore"):
            size = np.abs(array.astype(np.complex128 if kind.kind == "c" else np.float64))
        factor = np.ones(array.shape)
        if place is not Place.ARGUMENT and (seed not in _COARSE or seed in _SOME):
            factor = 1 + rng.uniform(-1, 1, array.shape) * (_MOVED.get(kind.name, 4.0) * eps)
        if seed == 0:  # also values computed from denormals
            factor = np.where(size < (tiny if place is Place.ARGUMENT else 256 * tiny), 0.0, factor)
        if seed in _OVERFLOWS and place is Place.TERM:
            large = np.isfinite(size) & (size > most**0.4)
            signs = {1: 1.0, 4: np.sign(array.real.astype(np.float64)), 5: rng.choice([-1, 1], array.shape)}[
                seed
            ]
            factor = np.where(large, signs * most**0.2 / np.where(large, size, 1.0), factor)
        if seed == INFINITE and place is Place.TERM:
            factor = np.where(np.isfinite(size) & (size > most**0.5 / 16), np.inf, factor)
        if seed in _SOME and place is Place.TERM:
            large = np.isfinite(size) & (size > most**0.5 / 16)
            small = most**0.2 / np.where(large, size, 1.0)
            factor = np.where(large, np.where(rng.random(array.shape) < 0.5, np.inf, small), factor)
        if seed in _GRIDS and place is Place.TERM:
            step = 4 * _MOVED.get(kind.name, 4.0) * eps
            digits = np.where(np.isfinite(size) & (size > 0), np.frexp(size)[0], 0.5)
            factor = np.floor(digits / step + _GRIDS[seed]) * step / digits
        if seed == 3:
            factor = np.where((size > 0) & (size < tiny), 16 / eps, factor)
        if seed == 2:  # also values that become smaller
            factor = np.where((size > 0) & (size < 256 * tiny), 16 / eps, factor)
        if seed == ORDINARY:
            denormal = (size > 0) & (size < tiny)
            factor = np.where(denormal, 16 * tiny / eps / np.where(denormal, size, 1.0), factor)
        if seed == SMALLER:
            factor = np.where(np.isfinite(size) & (size > most / 16), 2.0**-10, factor)
        if seed == SIGNS and place is Place.RESULT:
            factor = np.where(size == 0, -1.0, factor)
        return np.asarray(factor)

    replacement = None if seed in (*_OUTCOMES, ORDINARY) else _STAND_INS[seed % len(_STAND_INS)]
    return Rounding(factors, replacement, _OUTCOMES.get(seed), seed)


def check(door: Door, program: Program) -> Verdict:
    """Run a program and compare."""
    reference = Reference(door, program)
    verdict = _judged(reference)
    if verdict.status in ("wrong", "error") and reference.shortened():
        verdict = _judged(reference)
    return verdict


def _judged(reference: Reference) -> Verdict:
    mode = reference.program.mode
    if not reference.runs:
        return Verdict("invalid")
    try:
        found = reference.door.run(reference.program, reference.runs)
    except Refused:
        return Verdict("refused")
    except Exception as error:
        return Verdict("error", 0, mode, reason=f"{type(error).__name__}: {error}"[:2000])
    count = len(reference.runs)
    elements = judged = 0
    for index, (results, exact) in enumerate(zip(found, reference.exact, strict=True)):
        if len(results) != len(exact):
            reason = f"{len(results)} results where there are {len(exact)}"
            return Verdict("wrong", count, mode, index, 0, reason)
        for position, (one, array) in enumerate(zip(results, exact, strict=True)):
            reason, other = _compared(reference, index, position, one)
            if reason:
                allowed = tuple(float(t) for t in other.tolerance[other.stable])
                unstable = tuple(int(i) for i in np.flatnonzero(~other.stable))
                floating = is_float(other.array.dtype) or other.array.dtype.kind == "c"
                return Verdict("wrong", count, mode, index, position, reason, allowed, unstable, floating)
            elements += array.size
            judged += int(other.stable.sum())
    return Verdict("pass", count, mode, elements=elements, judged=judged)


def _compared(reference: Reference, run: int, position: int, found: np.ndarray) -> tuple[str, Expected]:
    """Describe what is wrong with one result, and return what it was compared with.

    Tolerances grow with the number of perturbed runs, so a result that passes with few runs needs no more.
    """
    expected = strictest(reference.exact[run][position])
    reason = difference(found, expected)
    for count in (FEW_RUNS, NOISY_RUNS, MANY_RUNS):
        if not reason:
            return "", expected
        expected = reference.of(run, position, count)
        reason = difference(found, expected)
    if reason and _confirmed(
        reference.door, reference.program, reference.runs, run, position, found, expected
    ):
        reason = ""
    return reason, expected


def _confirmed(
    door: Door,
    program: Program,
    runs: list[list[np.ndarray]],
    run: int,
    position: int,
    found: np.ndarray,
    expected: Expected,
) -> bool:
    """True if another implementation agrees with the elements that differ from the reference."""
    alone = position < len(program.results)  # gradients, and inputs after a run, need the whole program
    try:
        others = door.second_opinion(only(program, position) if alone else program, runs)
    except Exception:
        return False
    if others is None:
        return False
    array = np.asarray(others[run][0 if alone else position])
    settled = _expected(array, {}, GRADIENTS)
    if len({(a.shape, a.dtype) for a in (array, found, expected.array)}) > 1:
        return not difference(found, settled)
    allowed = np.maximum(settled.tolerance, expected.tolerance)
    other = Expected(array, allowed, expected.stable)
    return not np.any(_wrong(found, expected) & _wrong(found, other))


class Reference:
    """The framework's results of the runs that it accepts.

    Tolerances are measured on demand: most results match so closely that they need none.
    """

    def __init__(self, door: Door, program: Program, runs: Sequence[list[np.ndarray]] | None = None) -> None:
        self.door, self.program = door, program
        self.runs = feeds(program) if runs is None else list(runs)
        # The first two runs differ only in states and random numbers.
        self._repeated = not door.has_state(program) and door.same_reference(program)
        self.exact: list[list[np.ndarray]] = []
        self._disturbed: dict[tuple[int, int], list[list[np.ndarray]]] = {}
        while self.runs and not self.exact:
            try:
                repeated = self._repeated and len(self.runs) > 1
                found = self._answers(self.runs[1:] if repeated else self.runs, None)
                self.exact = found[:1] + found if repeated else found
            except Exception:
                self.runs = self.runs[:-1]  # another size or other elements are invalid for this program

    def _answers(self, runs: list[list[np.ndarray]], rounding: Rounding | None) -> list[list[np.ndarray]]:
        return self.door.reference(self.program, runs, rounding)

    def shortened(self) -> bool:
        """Drop all runs from the first in which the framework contradicts itself; True if there is one."""
        for index, (arrays, results) in enumerate(zip(self.runs, self.exact, strict=True)):
            if self.door.contradicts(self.program, arrays, results):
                self.runs, self.exact = self.runs[:index], self.exact[:index]
                return True
        return False

    @property
    def expected(self) -> list[list[Expected]]:
        """The results of each run with their tolerances."""
        return [
            [self.of(run, position, NOISY_RUNS) for position in range(len(results))]
            for run, results in enumerate(self.exact)
        ]

    def of(self, run: int, position: int, count: int) -> Expected:
        """One result with tolerances from `count` perturbed runs.

        It is measured on its own if the whole program cannot be measured.
        """
        array = self.exact[run][position]
        if self.door.measurable(self.program):
            return self._measured(run, position, count)
        if position < len(self.program.results):
            alone = only(self.program, position)
            if self.door.measurable(alone):
                reference = Reference(self.door, alone, self.runs)
                if len(reference.exact) > run:
                    return reference.of(run, 0, count)
        others = self._perturbed(run, ORDINARY)
        return _loose(array, others[position] if others else array)

    def _measured(self, run: int, position: int, count: int) -> Expected:
        array = self.exact[run][position]
        runs = {seed: self._perturbed(run, seed) for seed in range(count)}
        others = {seed: results[position] for seed, results in runs.items() if results}
        if len(others) < min(count, NOISY_RUNS):  # control flow is not stable
            return Expected(array, np.zeros(array.shape), np.zeros(array.shape, bool))
        slack = GRADIENTS if "gradient" in self.program.options else 1.0
        steps = STEPS if any(s.blocks for s in self.program.statements) else 1.0
        return _expected(array, others, slack, steps)

    def _perturbed(self, run: int, seed: int) -> list[np.ndarray]:
        """Results of one run with every rounded value perturbed; none if the perturbed program is invalid."""
        key = (run if self._repeated else 0, seed)
        if key not in self._disturbed:
            runs = [self.runs[run]] if self._repeated else self.runs
            rounding = _rounding(seed) if self.door.measurable(self.program) else None
            if seed == ORDINARY:
                runs = [[_ordinary(array) for array in arrays] for arrays in runs]
            try:
                self._disturbed[key] = self._answers(runs, rounding)
            except Exception:  # the perturbation changed control flow
                self._disturbed[key] = []
        found = self._disturbed[key]
        results = found[0 if self._repeated else run] if found else []
        return results if len(results) == len(self.exact[run]) else []


def _expected(
    array: np.ndarray, others: Mapping[int, np.ndarray], slack: float = 1.0, steps: float = 1.0
) -> Expected:
    """Expected result with the tolerance derived from noisy runs, given by seed."""
    everything = np.ones(array.shape, bool)
    if any(o.shape != array.shape for o in others.values()):  # the shape itself is not stable
        return Expected(array, np.zeros(array.shape), ~everything, shaped=False)
    if not (is_float(array.dtype) or array.dtype.kind == "c"):
        stable = everything
        for other in others.values():
            stable = stable & (other == array)
        return Expected(array, np.zeros(array.shape), stable)
    return _measured(array, others, slack, steps)


def _ordinary(array: np.ndarray) -> np.ndarray:
    """An array whose denormal numbers are ordinary ones."""
    if not is_float(array.dtype):
        return array
    factors = _rounding(ORDINARY)(array, Place.ARGUMENT)
    return np.asarray((array.astype(np.float64) * factors).astype(array.dtype))


def _loose(array: np.ndarray, ordinary: np.ndarray) -> Expected:
    """Tolerance without measurement: half the digits of the largest element, or of one; integers are not compared.

    ordinary: the result without denormal operands. What depends on them is not compared either.
    """
    if not (is_float(array.dtype) or array.dtype.kind == "c"):
        return Expected(array, np.zeros(array.shape), np.zeros(array.shape, bool))
    wide = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
    info = np.finfo(array.dtype) if array.dtype.kind == "c" else ml_dtypes.finfo(array.dtype)
    largest = np.max(wide[np.isfinite(wide)], initial=1.0)
    stable = np.isfinite(wide)
    if ordinary.shape == array.shape:
        with np.errstate(all="ignore"):
            moved = np.abs(ordinary.astype(array.dtype) - array).astype(np.float64)
            stable &= np.isfinite(moved) & (moved <= 0.5 * wide)
    return Expected(array, np.full(array.shape, largest * float(info.eps) ** 0.5), stable)


def strictest(array: np.ndarray) -> Expected:
    """Tolerance without any rounding noise; every measured tolerance is at least this."""
    everything = np.ones(array.shape, bool)
    if not (is_float(array.dtype) or array.dtype.kind == "c"):
        return Expected(array, np.zeros(array.shape), everything)
    info = np.finfo(array.dtype) if array.dtype.kind == "c" else ml_dtypes.finfo(array.dtype)
    with np.errstate(all="ignore"):
        size = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
    size = np.where(np.isfinite(size), size, 0)
    return Expected(array, ULPS * float(info.eps) * size + 64 * float(info.tiny), everything)


def _measured(array: np.ndarray, others: Mapping[int, np.ndarray], slack: float, steps: float) -> Expected:
    kind = array.dtype
    wide: Any = np.complex128 if kind.kind == "c" else np.float64
    info = np.finfo(kind) if kind.kind == "c" else ml_dtypes.finfo(kind)
    exact = array.astype(wide)
    finite, stable, spread = np.isfinite(exact), np.ones(array.shape, bool), np.zeros(array.shape)
    with np.errstate(all="ignore"):
        for seed, other in others.items():
            moved = other.astype(wide)
            same = (moved == exact) | (np.isnan(moved) & np.isnan(exact))
            stable &= np.where(finite, np.isfinite(moved), same)
            if seed in _DENORMAL:  # it depends on whether they are flushed
                stable &= ~(finite & (np.abs(moved - exact) > 0.5 * np.maximum(np.abs(exact), np.abs(moved))))
            if seed == SMALLER:  # all else may depend on the largest numbers
                stable &= (exact != 0) | (moved == 0)
            elif seed == ORDINARY:  # nothing else changed
                stable &= ~(finite & (np.abs(moved - exact) > 64 * float(info.eps) * np.abs(exact)))
            elif seed in _COARSE:  # it depends on terms that may overflow, or on last digits
                stable &= ~(finite & (np.abs(moved - exact) > 0.5 * np.abs(exact)))
            if seed == OVERFLOW or seed not in _COARSE:
                spread = np.maximum(spread, np.where(finite & np.isfinite(moved), np.abs(moved - exact), 0))
        size = np.where(finite, np.abs(exact), 0)
        # Includes replacements of infinity and NaN.
        stable &= ~(finite & (spread > float(info.max) ** 0.5) & (spread > 8 * size))
        # The largest numbers are one rounding away from infinity, the smallest ones may be flushed to zero.
        stable &= ~(finite & (size > float(info.max) * (1 - 64 * float(info.eps))))
        spread = np.where(spread > 0.1 * size, 4 * spread, spread)  # four runs underestimate the spread
        tolerance = slack * (MARGIN * spread + ULPS * float(info.eps) * size) + 64 * float(info.tiny)
        if slack > 1:  # the backward pass computes differences from one
            tolerance = tolerance + steps * slack * float(info.eps)
    return Expected(array, np.asarray(tolerance), np.asarray(stable))


def difference(found: np.ndarray, expected: Expected) -> str:
    """Describe what is wrong with a result; "" if nothing is."""
    wanted = expected.array
    if found.dtype != wanted.dtype:
        return f"{found.dtype}{list(found.shape)} where the framework has {wanted.dtype}{list(wanted.shape)}"
    if found.shape != wanted.shape:
        if not expected.shaped or (wanted.size and not expected.stable.any()):
            return ""
        return f"{found.dtype}{list(found.shape)} where the framework has {wanted.dtype}{list(wanted.shape)}"
    wrong = np.atleast_1d(_wrong(found, expected))
    if not wrong.any():
        return ""
    first = tuple(int(i[0]) for i in np.nonzero(wrong))
    a, b = (np.atleast_1d(v)[first] for v in (found, wanted))
    allowed = np.atleast_1d(expected.tolerance)[first]
    place = f"at {list(first)} {a} where the framework has {b} (± {allowed:.3g})"
    return f"{int(wrong.sum())} of {wrong.size} elements differ, {place}"


def _wrong(found: np.ndarray, expected: Expected) -> np.ndarray:
    """Mask of the wrong elements of a result with the right type and shape."""
    wanted = expected.array
    if not (is_float(wanted.dtype) or wanted.dtype.kind == "c"):
        return np.asarray((found != wanted) & expected.stable)
    wide: Any = np.complex128 if wanted.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = found.astype(wide), wanted.astype(wide)
        near = np.abs(a - b) <= expected.tolerance
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if wanted.dtype.kind != "c":  # a factor may overflow on the way to a number near the largest one
            limit = float(ml_dtypes.finfo(wanted.dtype).max) / 16
            same |= ((a > limit) & (b > limit)) | ((a < -limit) & (b < -limit))
    right = np.where(np.isfinite(a) & np.isfinite(b), near, same)
    return np.asarray(~right & expected.stable)
