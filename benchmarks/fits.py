"""How a cost grows: the exponent of a power law, and a straight line, each with its R²."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Largest exponent that still counts as linear: measured points scatter.
LARGEST_SLOPE = 1.1


@dataclass(frozen=True, slots=True)
class Line:
    """``y = intercept + slope * x``."""

    intercept: float
    slope: float
    r2: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Cost at several sizes, and the two fits.

    ``power.slope`` is the exponent: 1 for a cost that doubles when the size doubles, less where a fixed part
    dominates. Points without a cost above zero (nothing but noise) are left out of it.
    """

    title: str
    size: str
    unit: str
    points: list[tuple[float, float]]
    line: Line
    power: Line

    @property
    def at_most_linear(self) -> bool:
        return self.power.slope <= LARGEST_SLOPE


def growth(title: str, size: str, unit: str, points: Sequence[tuple[float, float]]) -> Growth:
    """Fit both laws.

    Raises
    ------
    ValueError
        Fewer than two points have a cost above zero.
    """
    positive = [(math.log(x), math.log(y)) for x, y in points if y > 0]
    if len(positive) < 2:
        raise ValueError(
            f"{title}: {len(positive)} of {len(points)} points have a cost above zero; measure larger sizes"
        )
    return Growth(title, size, unit, list(points), fit(points), fit(positive))


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """Least squares; R² is 1 for points that all have the same y."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    intercept = mean_y - slope * mean_x
    total = sum((y - mean_y) ** 2 for _, y in points)
    rest = sum((y - intercept - slope * x) ** 2 for x, y in points)
    return Line(intercept, slope, 1 - rest / total if total else 1.0)
