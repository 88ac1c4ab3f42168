"""How far two tensors are apart, element by element, in pieces of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.compare.rows import Metrics

Array = NDArray[Any]

_PIECE = 1 << 18
#: dtype -> bits of the mantissa that are stored, smallest normal exponent.
_FORMATS = {
    "float64": (52, -1022),
    "float32": (23, -126),
    "bfloat16": (7, -126),
    "float16": (10, -14),
    "float8_e4m3fn": (3, -6),
    "float8_e4m3fnuz": (3, -7),
    "float8_e5m2": (2, -14),
    "float8_e5m2fnuz": (2, -15),
    "complex128": (52, -1022),
    "complex64": (23, -126),
    "complex32": (10, -14),
}


@dataclass(slots=True)
class _Sums:
    """What is added up over the pieces. float64 throughout: float32 squares neither overflow nor vanish."""

    product: float = 0.0
    target: float = 0.0
    golden: float = 0.0
    difference: float = 0.0
    max_abs: float = -1.0
    max_relative: float = 0.0
    thousandth: int = 0
    five_thousandths: int = 0
    max_ulp: float = 0.0
    place: int = -1
    mismatches: int = 0
    first_mismatch: int = -1


def compare_arrays(target: Array, golden: Array, dtypes: tuple[str, str] = ("float64", "float64")) -> Metrics:
    """Return the metrics of two tensors of the same shape.

    NaN on both sides at the same place is equal, so is +inf and +inf; those places are left out of the sums. Any other
    pair with a NaN or an infinity is a mismatch: it is counted, and left out of the sums too. Bools are compared as
    float64, integers too (if that makes them equal, they differ by 1), complex numbers by the modulus of their
    difference.

    Parameters
    ----------
    target, golden
        Arrays of numbers of the same shape.
    dtypes
        Of the two in their files, e.g. ``bfloat16``; for the unit in the last place.

    Raises
    ------
    ValueError
        The shapes differ.
    """
    if target.shape != golden.shape:
        raise ValueError(f"shapes {target.shape} and {golden.shape} differ: elements have no partners")
    sums = _Sums()
    mantissa = _coarser(dtypes)
    with np.errstate(all="ignore"):
        for piece in _pieces(target, golden):
            _add(sums, piece, mantissa)
    place = sums.first_mismatch if sums.mismatches else sums.place
    worst = None if place < 0 else tuple(int(i) for i in np.unravel_index(place, target.shape))
    return _finish(sums, worst, target, golden, has_ulp=mantissa is not None)


def _coarser(dtypes: tuple[str, str]) -> tuple[int, int] | None:
    formats = [_FORMATS[dtype] for dtype in dtypes if dtype in _FORMATS]
    return min(formats) if len(formats) == len(dtypes) else None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements of both sides from an offset on, as float64 or complex128.

    ``unequal`` says which integers are: beyond 2^53 neighbours are the same float64. None for other dtypes.
    """

    start: int
    target: Array
    golden: Array
    unequal: Array | None


def _pieces(target: Array, golden: Array) -> Iterator[_Piece]:
    """Yield the pieces in logical order."""
    wide = np.complex128 if "c" in target.dtype.kind + golden.dtype.kind else np.float64
    are_integers = target.dtype.kind in "iu" and golden.dtype.kind in "iu"
    flat_target, flat_golden = target.reshape(-1), golden.reshape(-1)
    for start in range(0, target.size, _PIECE):
        t, g = flat_target[start : start + _PIECE], flat_golden[start : start + _PIECE]
        yield _Piece(start, t.astype(wide), g.astype(wide), (t != g) if are_integers else None)


def _add(sums: _Sums, piece: _Piece, mantissa: tuple[int, int] | None) -> None:
    start, t, g = piece.start, piece.target, piece.golden
    special = ~(np.isfinite(t) & np.isfinite(g))
    count = 0
    if special.any():
        same = (t == g) | (np.isnan(t) & np.isnan(g))
        wrong = special & ~same
        count = int(np.count_nonzero(wrong))
        if count:
            if not sums.mismatches:
                sums.first_mismatch = start + int(np.argmax(wrong))
            sums.mismatches += count
        t, g = np.where(special, 0, t), np.where(special, 0, g)
    difference = np.abs(t - g)
    if piece.unequal is not None:
        difference[piece.unequal & (difference == 0)] = 1.0
    size_t, size_g = np.abs(t), np.abs(g)
    sums.product += float(np.vdot(g, t).real)
    sums.target += float(np.dot(size_t, size_t))
    sums.golden += float(np.dot(size_g, size_g))
    sums.difference += float(np.dot(difference, difference))
    place = int(np.argmax(difference))
    if difference[place] > sums.max_abs:
        sums.max_abs, sums.place = float(difference[place]), start + place
    relative = np.where(difference == 0, 0.0, difference / size_g)  # 0/0 is no difference
    relative[special] = 0.0
    finite = relative[size_g > 0]
    if finite.size:
        sums.max_relative = max(sums.max_relative, float(finite.max()))
    sums.thousandth += int(np.count_nonzero(relative < 0.001)) - count
    sums.five_thousandths += int(np.count_nonzero(relative < 0.005)) - count
    if mantissa is not None:
        sums.max_ulp = max(sums.max_ulp, _largest_ulp(difference, np.maximum(size_t, size_g), mantissa))


def _largest_ulp(difference: Array, size: Array, mantissa: tuple[int, int]) -> float:
    """Return the largest difference in units in the last place of the larger number (Goldberg 1991, section 1.2)."""
    bits, smallest = mantissa
    exponent = np.maximum(np.frexp(size)[1] - 1, smallest)
    return float(np.max(np.ldexp(difference, bits - exponent), initial=0.0))


def _finish(sums: _Sums, worst: tuple[int, ...] | None, target: Array, golden: Array, *, has_ulp: bool) -> Metrics:
    euclidean, norm_t, norm_g = math.sqrt(sums.difference), math.sqrt(sums.target), math.sqrt(sums.golden)
    vector = target.ndim > 0 and target.size > 0
    count = target.size
    return Metrics(
        cosine=_cosine(sums.product, norm_t, norm_g) if vector else None,
        euclidean=euclidean if count else None,
        relative_euclidean=_ratio(euclidean, norm_g) if count else None,
        max_abs=max(sums.max_abs, 0.0) if count else None,
        max_relative=sums.max_relative if count else None,
        thousandth=sums.thousandth / count if vector else None,
        five_thousandths=sums.five_thousandths / count if vector else None,
        max_ulp=sums.max_ulp if has_ulp and count else None,
        worst=worst,
        worst_target=None if worst is None else target[worst].item(),
        worst_golden=None if worst is None else golden[worst].item(),
        nonfinite_mismatches=sums.mismatches,
    )


def _cosine(product: float, norm_t: float, norm_g: float) -> float:
    if norm_t == 0 or norm_g == 0:
        return 1.0 if norm_t == norm_g else 0.0
    return max(-1.0, min(1.0, product / norm_t / norm_g))


def _ratio(difference: float, norm: float) -> float:
    if difference == 0:
        return 0.0
    return difference / norm if norm else math.inf
