"""How far a result is from its reference: in units of rounding, in ULPs, relative, and as an angle.

All of it is computed in float64 on the CPU. Shapes of result and reference are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from msprobe.replay.verdicts import dtype_class

#: Relative size of the moves of the inputs that measure how far the reference moves.
DELTA = 2.0**-22


@dataclass(frozen=True, slots=True)
class Errors:
    """Error of one tensor.

    Attributes
    ----------
    rms_units, max_units : float
        In units of rounding, see :mod:`msprobe.replay.verdicts`.
    max_ulp : float
        In units in the last place of the dtype at the reference's value.
    cosine : float
        Of the angle between result and reference; 1.0 if both are zero.
    max_abs, max_rel, rms_rel : float
        Largest absolute and relative error; norm of the error over the norm of the reference.
    misplaced : int
        NaN and infinities that are not where the reference has the same.
    """

    rms_units: float
    max_units: float
    max_ulp: float
    cosine: float
    max_abs: float
    max_rel: float
    rms_rel: float
    misplaced: int


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounding explains.

    Attributes
    ----------
    dtype : torch.dtype
        Narrowest dtype that takes part in the result.
    length : float
        Reduction length.
    narrow_sums : bool
        Sums are kept in the dtype itself, not in float32.
    moved : torch.Tensor or None
        The reference computed from inputs that were moved by :data:`DELTA`; None: the inputs cannot be moved.
    """

    dtype: torch.dtype
    length: float
    narrow_sums: bool
    moved: torch.Tensor | None

    @property
    def unit(self) -> float:
        """Relative error of one rounding and of the accumulation together."""
        roundoff = float(torch.finfo(self.dtype).eps) / 2
        wide = self.dtype in (torch.float64, torch.complex128)
        accumulator = roundoff if wide or self.narrow_sums else 2.0**-24
        return roundoff + math.sqrt(self.length) * accumulator


def reduction_length(result: torch.Tensor, operands: list[torch.Tensor]) -> float:
    """Estimate how many terms are summed for one element of a result.

    For a contraction of A and B to C it is ``sqrt(|A| |B| / |C|)``, for a reduction of A ``|A| / |C|``; sums along the
    last dimension (norms, softmax) show in no size, so the longest of these counts.
    """
    size = max(result.numel(), 1)
    sizes = sorted((operand.numel() for operand in operands), reverse=True)[:2]
    candidates: list[float] = [1.0, *(operand.numel() / size for operand in operands)]
    candidates += [float(operand.shape[-1]) for operand in operands if operand.ndim]
    if len(sizes) == 2:
        candidates.append(math.sqrt(float(sizes[0] * sizes[1]) / size))
    return max(candidates)


def measure(result: torch.Tensor, reference: torch.Tensor, rounding: Rounding) -> Errors:
    """Measure a floating-point or complex result.

    Parameters
    ----------
    result : torch.Tensor
        On the CPU, in any floating-point or complex dtype.
    reference : torch.Tensor
        Same shape, float64 or complex128.
    rounding : Rounding
    """
    found, wanted = _as_real(result), _as_real(reference)
    # A reference beyond the dtype's range is an infinity in that dtype, too.
    narrow = _as_real(reference.to(result.dtype)) if result.dtype.itemsize < reference.dtype.itemsize else wanted
    wanted = torch.where(narrow.isinf() & found.isinf(), narrow, wanted)
    finite = found.isfinite() & wanted.isfinite()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    misplaced = int((~finite & ~same).sum())
    if not bool(finite.any()):
        return Errors(0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, misplaced)
    magnitude = _magnitude(wanted, rounding.moved)[finite]
    found, wanted = found[finite], wanted[finite]
    error = (found - wanted).abs()
    least = _smallest(result.dtype)
    rms_magnitude = _rms(magnitude)
    unit = rounding.unit
    per_element = unit * (magnitude.square() + rms_magnitude**2).sqrt() + least
    relative = error / wanted.abs()
    return Errors(
        rms_units=_rms(error) / (unit * rms_magnitude + least),
        max_units=float((error / per_element).max()),
        max_ulp=float((error / _ulp(wanted, result.dtype)).max()),
        cosine=_cosine(found, wanted),
        max_abs=float(error.max()),
        max_rel=float(torch.where(wanted == 0, 0.0, relative).max()),
        rms_rel=_rms(error) / _rms(wanted) if bool(wanted.any()) else float(bool(error.any())),
        misplaced=misplaced,
    )


def count_different(result: torch.Tensor, reference: torch.Tensor) -> int:
    """Count the elements that differ from the reference rounded to the dtype of the result; NaN equals NaN."""
    found, wanted = result, reference.to(result.dtype)
    if dtype_class(str(result.dtype)) == "tiny":
        found, wanted = found.to(torch.float32), wanted.to(torch.float32)
    different = found != wanted
    if found.dtype.is_floating_point or found.dtype.is_complex:
        different &= ~(found.isnan() & wanted.isnan())
    return int(different.sum())


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the norm of the error over the norm of the reference, as a reproducer script prints it.

    Infinite where shapes or non-finite places differ; of integers 1.0 if any differs, else 0.0.
    """
    if result.shape != reference.shape:
        return math.inf
    if not (reference.is_floating_point() or reference.is_complex()):
        return float(bool((result != reference).any()))
    result = result.to(reference.dtype)
    finite = reference.isfinite()
    if not torch.equal(result.isfinite(), finite):
        return math.inf
    error = (result[finite] - reference[finite]).norm()
    return float(error / reference[finite].norm()) if error else 0.0


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return float64 values: real and imaginary part of a complex number are two of them."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float64)


def _magnitude(wanted: torch.Tensor, moved: torch.Tensor | None) -> torch.Tensor:
    """Return what rounding acts on: the value, and what a relative move of the inputs is multiplied by."""
    if moved is None:
        return wanted.abs()
    steps = (_as_real(moved) - wanted) / DELTA
    steps = torch.where(steps.isfinite(), steps, 0.0)
    return (wanted.square() + steps.square()).sqrt()


def _smallest(dtype: torch.dtype) -> float:
    """Return the error that flushing subnormal numbers to zero makes; float16 keeps them on every device."""
    info = torch.finfo(dtype)
    return float(info.smallest_normal * info.eps if dtype is torch.float16 else info.tiny)


def _ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    exponents = torch.frexp(values.abs().clamp_min(float(info.tiny))).exponent - 1
    return torch.ldexp(torch.full_like(values, float(info.eps)), exponents)


def _rms(values: torch.Tensor) -> float:
    if not values.numel():
        return 0.0
    scale = float(values.abs().max())
    if scale == 0.0 or not math.isfinite(scale):
        return scale
    return scale * float((values / scale).square().mean().sqrt())


def _cosine(found: torch.Tensor, wanted: torch.Tensor) -> float:
    scale = max(float(found.abs().max()), float(wanted.abs().max()))
    if scale == 0.0:
        return 1.0
    left, right = found / scale, wanted / scale
    norms = float(left.norm() * right.norm())
    return min(1.0, float(torch.dot(left, right)) / norms) if norms else 0.0
