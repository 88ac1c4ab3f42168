"""The table of verdicts: which error is passed, warned about, refused.

Errors are measured in *units*: one unit is the error that rounding alone explains,

    unit = (u + sqrt(n) * v) * m

with ``u`` the unit roundoff of the result's dtype, ``v`` that of the accumulator (float32 for narrower dtypes, except
where an API is known to sum in the narrow one), ``n`` the reduction length, and ``m`` the magnitude that rounding acts
on: the value itself, and how far the float64 reference moves when every input is moved by one part (the condition of
the problem: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 1.5 and, for the growth with
sqrt(n), section 4.2).

On a CPU the device *is* the yardstick, so units alone decide. On another device the error divided by the error of the
yardstick (the CPU in the recorded dtype) decides; what units explain passes whatever the ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

PASS, WARNING, ERROR, SKIP = "pass", "warning", "error", "skip"

_ORDER = {SKIP: 0, PASS: 1, WARNING: 2, ERROR: 3}


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest values that still get a verdict.

    Attributes
    ----------
    pass_rms, warn_rms : float
        Root mean square of the error over the tensor.
    pass_max, warn_max : float
        Largest error of one element.
    """

    pass_rms: float
    warn_rms: float
    pass_max: float
    warn_max: float


#: In units, by dtype class and by whether intermediate results are rounded to that dtype, too. A narrow dtype has
#: little room between its own rounding and a wrong result: what is rounded once is held to what one rounding makes.
UNIT_LIMITS: dict[tuple[str, bool], Limits] = {
    ("wide", False): Limits(8.0, 32.0, 32.0, 128.0),  # float64, float32, complex
    ("wide", True): Limits(16.0, 64.0, 64.0, 256.0),
    ("narrow", False): Limits(1.0, 1.3, 4.0, 8.0),  # float16, bfloat16
    ("narrow", True): Limits(4.0, 8.0, 16.0, 32.0),
    ("tiny", False): Limits(1.0, 1.3, 4.0, 8.0),  # float8
    ("tiny", True): Limits(4.0, 8.0, 16.0, 32.0),
}

#: The root mean square of few numbers scatters: this, divided by the root of their count, is added to its limits.
FEW_NUMBERS = 2.0

#: Error of the device divided by the error of the yardstick, any dtype.
RATIO_LIMITS = Limits(2.0, 10.0, 10.0, 50.0)

#: A yardstick that happens to be exact counts as wrong by this many units.
YARDSTICK_FLOOR = 0.25


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the rule that gave it, with the numbers."""

    verdict: str
    rule: str


def worst(verdicts: list[str]) -> str:
    """Return the worst of some verdicts; ``skip`` if there are none."""
    return max(verdicts, key=_ORDER.__getitem__, default=SKIP)


def dtype_class(dtype: str) -> str:
    """Return the row of :data:`UNIT_LIMITS` for a dtype such as ``torch.bfloat16``."""
    name = dtype.removeprefix("torch.")
    if name in {"float16", "bfloat16", "complex32"}:
        return "narrow"
    return "tiny" if name.startswith(("float8", "float4")) else "wide"


def judge_exact(different: int, total: int) -> Judgement:
    """Judge a result that has to be equal, element by element."""
    if not different:
        return Judgement(PASS, "exact")
    return Judgement(ERROR, f"exact: {different} of {total} elements differ")


@dataclass(frozen=True, slots=True)
class Result:
    """What the limits depend on.

    Attributes
    ----------
    dtype : str
        ``torch.bfloat16``.
    count : int
        Number of elements.
    often : bool
        Intermediate results are rounded to the dtype, too: gradients, and APIs composed of several operators.
    """

    dtype: str
    count: int
    often: bool


def judge_units(errors: tuple[float, float], result: Result) -> Judgement:
    """Judge an error in units of rounding.

    Parameters
    ----------
    errors : tuple of (float, float)
        In units: root mean square over the tensor, and its worst element.
    result : Result
    """
    limits = UNIT_LIMITS[dtype_class(result.dtype), result.often]
    few = FEW_NUMBERS / math.sqrt(max(result.count, 1))
    limits = replace(limits, pass_rms=limits.pass_rms + few, warn_rms=limits.warn_rms + few)
    return _judge(*errors, limits, f"units of {result.dtype.removeprefix('torch.')}")


def judge_ratio(device: tuple[float, float], yardstick: tuple[float, float], result: Result) -> Judgement:
    """Judge a device by the error of the yardstick.

    Parameters
    ----------
    device, yardstick : tuple of (float, float)
        Error in units: root mean square and largest.
    result : Result
    """
    explained = judge_units(device, result)
    rms = device[0] / max(yardstick[0], YARDSTICK_FLOOR)
    largest = device[1] / max(yardstick[1], YARDSTICK_FLOOR)
    found = _judge(rms, largest, RATIO_LIMITS, "times the yardstick's error")
    return explained if explained.verdict == PASS else found


def _judge(rms: float, largest: float, limits: Limits, what: str) -> Judgement:
    # `not <=` instead of `>`: a NaN is never passed.
    if not (rms <= limits.warn_rms and largest <= limits.warn_max):
        verdict, bounds = ERROR, (limits.warn_rms, limits.warn_max)
    elif not (rms <= limits.pass_rms and largest <= limits.pass_max):
        verdict, bounds = WARNING, (limits.pass_rms, limits.pass_max)
    else:
        verdict, bounds = PASS, (limits.pass_rms, limits.pass_max)
    return Judgement(verdict, f"{what}: rms {rms:.3g} (limit {bounds[0]:.3g}), max {largest:.3g} (limit {bounds[1]:g})")
