"""Make a tensor from the statistics of a recorded one: same dtype, shape and range, same share of NaN and Inf.

Largest and smallest value are in the result, mean and norm are met approximately. Integers stay within the recorded
range, so an index stays legal; where the statistics are those of a permutation, it is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

#: A float this negative in a mask stands for minus infinity.
_MASKED = -1e4
#: The label that loss functions ignore by default; no other negative label is legal.
_IGNORED_LABEL = -100


@dataclass(frozen=True, slots=True)
class Statistics:
    """What an entry of a dump says about the values of a tensor; the counts are of elements."""

    largest: float
    smallest: float
    mean: float
    norm: float
    nan: int
    inf: int


def statistics_of(entry: Mapping[str, Any]) -> Statistics | None:
    """Read the statistics of an entry; None if it has none, or NaN instead of a range."""
    values = [entry.get(key) for key in ("Max", "Min")]
    if any(isinstance(value, str) or value is None or math.isnan(value) for value in values):
        return None
    largest, smallest = (value if isinstance(value, int) else float(value) for value in values if value is not None)
    mean, norm = entry.get("Mean"), entry.get("Norm")
    return Statistics(
        largest,
        smallest,
        float(mean) if isinstance(mean, int | float) and math.isfinite(mean) else math.nan,
        float(norm) if isinstance(norm, int | float) and math.isfinite(norm) else math.nan,
        int(entry.get("NaN", 0)),
        int(entry.get("Inf", 0)),
    )


def generate(
    statistics: Statistics, shape: list[int], dtype: torch.dtype, generator: torch.Generator, role: str = ""
) -> torch.Tensor:
    """Return a CPU tensor with the given statistics.

    Parameters
    ----------
    statistics : Statistics
    shape : list of int
    dtype : torch.dtype
    generator : torch.Generator
        Decides everything that is random.
    role : {"", "sorted", "mask"}
        ``sorted``: ascending, the largest value last. ``mask``: the first column is never masked, so that no row is.
    """
    count = math.prod(shape)
    if dtype is torch.bool:
        values = _booleans(statistics, count, generator)
    elif dtype.is_floating_point or dtype.is_complex:
        values = _floats(statistics, count, generator, role)
    else:
        values = _integers(statistics, count, generator)
    if role == "sorted":
        values = values.sort().values
    values = values.reshape(shape)
    if role == "mask" and shape:
        values[..., 0] = values.max()
    if dtype.is_complex:
        angle = torch.rand(shape, generator=generator, dtype=torch.float64) * (2 * math.pi)
        return torch.polar(values.abs(), angle).to(dtype)
    return values.to(dtype)


def _booleans(statistics: Statistics, count: int, generator: torch.Generator) -> torch.Tensor:
    """Exactly as many True as the mean says: what a mask selects has the recorded shape then."""
    if statistics.smallest == statistics.largest:
        return torch.full((count,), bool(statistics.largest))
    share = 0.5 if math.isnan(statistics.mean) else statistics.mean
    true = min(max(round(share * count), 1), max(count - 1, 1))
    return torch.randperm(count, generator=generator) < true


def _integers(statistics: Statistics, count: int, generator: torch.Generator) -> torch.Tensor:
    low, high = int(statistics.smallest), int(statistics.largest)
    if count == high - low + 1 and _is_permutation(statistics, low, high, count):
        return torch.randperm(count, generator=generator) + low
    if low == _IGNORED_LABEL and high >= 0:
        return _labels(statistics, high, count, generator)
    spread = high - low
    if spread >= 1 << 62:  # limits of the dtype used as markers: draw between them without overflow
        values = torch.where(torch.rand(count, generator=generator) < 0.5, low, high)
    elif spread > 4 * count and not math.isnan(statistics.mean):
        values = _near_mean(statistics, count, generator).round().clamp(low, high).to(torch.int64).clamp(low, high)
    else:
        values = torch.randint(low, high + 1, (count,), generator=generator)
    return _with_ends(values, low, high, generator)


def _labels(statistics: Statistics, high: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Labels, some of which are ignored: as many as bring the mean down to the recorded one."""
    share = (high / 2 - statistics.mean) / (high / 2 - _IGNORED_LABEL) if not math.isnan(statistics.mean) else 0.5
    ignored = min(max(round(share * count), 1), count)
    values = torch.randint(0, high + 1, (count,), generator=generator)
    places = torch.randperm(count, generator=generator)
    values[places[-1]] = high
    values[places[:ignored]] = _IGNORED_LABEL
    return values


def _is_permutation(statistics: Statistics, low: int, high: int, count: int) -> bool:
    squares = (high * (high + 1) * (2 * high + 1) - (low - 1) * low * (2 * low - 1)) / 6
    mean_fits = math.isclose(statistics.mean, (low + high) / 2, rel_tol=1e-3, abs_tol=1e-6)
    return count > 1 and mean_fits and math.isclose(statistics.norm, math.sqrt(squares), rel_tol=1e-3)


def _floats(statistics: Statistics, count: int, generator: torch.Generator, role: str) -> torch.Tensor:
    if statistics.nan == count:
        return torch.full((count,), math.nan, dtype=torch.float64)
    low, high = float(statistics.smallest), float(statistics.largest)
    if (role == "mask" and low < _MASKED) or math.isinf(low) or math.isinf(high):
        values = _two_valued(statistics, count, generator)
    elif low == high:
        return torch.full((count,), low, dtype=torch.float64)
    else:
        values = _with_ends(_near_mean(statistics, count, generator), low, high, generator)
    if statistics.nan:
        values[torch.randperm(count, generator=generator)[: statistics.nan]] = math.nan
    return values


def _two_valued(statistics: Statistics, count: int, generator: torch.Generator) -> torch.Tensor:
    """Values that are either the smallest or the largest, as those of an additive mask are."""
    low, high = float(statistics.smallest), float(statistics.largest)
    low_share = 0.5
    if statistics.inf:
        both = math.isinf(low) and math.isinf(high)
        inf_share = statistics.inf / count
        low_share = inf_share / 2 if both else inf_share if math.isinf(low) else 1 - inf_share
    elif not math.isnan(statistics.mean) and math.isfinite(low) and high > low:
        low_share = (high - statistics.mean) / (high - low)
    lows = min(max(round(low_share * count), 1 if count > 1 else 0), count)
    values = torch.full((count,), high, dtype=torch.float64)
    values[torch.randperm(count, generator=generator)[:lows]] = low
    return values


def _near_mean(statistics: Statistics, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw around the mean with the recorded variance; what falls outside the range is drawn inside it again."""
    low, high = float(statistics.smallest), float(statistics.largest)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
    if math.isnan(statistics.mean) or math.isnan(statistics.norm) or not low <= statistics.mean <= high:
        return uniform
    variance = max(statistics.norm**2 / max(count, 1) - statistics.mean**2, 0.0)
    values = torch.randn(count, generator=generator, dtype=torch.float64) * math.sqrt(variance) + statistics.mean
    for _ in range(4):
        outside = (values < low) | (values > high)
        again = torch.randn(count, generator=generator, dtype=torch.float64) * math.sqrt(variance) + statistics.mean
        values = torch.where(outside, again, values)
    return torch.where((values < low) | (values > high), uniform, values)


def _with_ends(values: torch.Tensor, low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    """Put the smallest and the largest value at two places."""
    if values.numel() == 1:
        return torch.full_like(values, low) if low == high else values
    if values.numel() > 1:
        places = torch.randperm(values.numel(), generator=generator)[:2]
        values[places[0]] = low
        values[places[1]] = high
    return values
