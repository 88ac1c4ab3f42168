"""Records that the measuring code hands to the rest of the program. No framework is imported here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

#: What every reduction kernel returns: max, min, sum, sum of squares, NaN count, Inf count, zero count.
#: Integers keep exact Python ints for max and min. With a NaN present the first four are NaN.
Reduction: TypeAlias = tuple[float, float, float, float, int, int, int]

#: The largest and smallest sum of squares whose square root is trusted; outside, the norm is scaled first.
SQUARE_MAX = 1e300
SQUARE_MIN = 1e-290


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one tensor.

    Attributes
    ----------
    max, min
        Largest and smallest element: int for integer tensors (exact), bool for bool tensors, else float.
    mean, norm
        Arithmetic mean and L2 norm. The norm is never negative.
    nan, inf, zero
        Number of NaN, of infinite (either sign) and of zero (either sign) elements.
    reason
        Why there are no statistics; then the four values are None.
    """

    max: float | int | bool | None
    min: float | int | bool | None
    mean: float | None
    norm: float | None
    nan: int = 0
    inf: int = 0
    zero: int = 0
    reason: str | None = None

    @classmethod
    def unmeasured(cls, reason: str) -> Statistics:
        """Return the record of a tensor that has no statistics."""
        return cls(None, None, None, None, reason=reason)


def mean_and_norm(reduction: Reduction, numel: int) -> tuple[float, float]:
    """Return mean and L2 norm of `numel` elements (> 0) in float64.

    Sums that left the float64 range come out as Infinity or 0; see `needs_scaling`.
    """
    return reduction[2] / numel, math.sqrt(reduction[3])


def has_plain_moments(reduction: Reduction) -> bool:
    """Tell whether every element is finite and the sums stayed within the float64 range."""
    return SQUARE_MIN < reduction[3] < SQUARE_MAX or reduction[3] == reduction[0] == reduction[1] == 0


def needs_scaling(reduction: Reduction) -> bool:
    """Tell whether squares over- or underflowed although every element is finite and not all are zero."""
    largest, smallest, _, squares, nan, inf, _ = reduction
    if nan or inf or SQUARE_MIN < squares < SQUARE_MAX:
        return False
    return largest != 0 or smallest != 0
