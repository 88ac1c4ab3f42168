"""The one table of what counts as a difference, and where each number comes from.

The measures
------------
Statistics: |difference| of Max, Min and Mean relative to the largest magnitude in golden's tensor, and of Norm relative
to golden's Norm; the largest of the four counts. Max and Min are relative to the magnitude of the tensor, not to
themselves, so that a Min that happens to be near zero does not raise alarms.

Tensors: |t - g| / |g| (Euclidean) and the largest |t - g| relative to the largest |g|; the larger one counts.

Checksums: equal or not.

The thresholds
--------------
``warning`` is what one operation may differ between two devices or kernels: some units in the last place of the dtype,
for float32 many, since sums of some thousand products lose about sqrt(n) of them. ``error`` is what a deep network,
too, does not reach by rounding alone. For float32 they leave room for TF32 and HF32 (10 bits) only as a warning. The
fixed rules of mindstudio-probe (10 % on the input norm and 50 % on the output norm) miss a wrong weight in one row of a
matrix. Integers, bools and strings are exact.

Measured thresholds (``--tolerance measured``) replace the table: `FACTOR` times what a second golden run, or a float64
run, differs from golden at the same value. Rounding errors of two runs are of the same size, not equal, and vary by a
small factor between seeds and devices. The floor is `FLOOR_UNITS` units in the last place, for values that happen to
agree exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

ToleranceMode = Literal["default", "exact", "measured"]

FACTOR = 8.0
FLOOR_UNITS = 4.0

#: dtype -> unit in the last place of 1.0.
EPSILON: Mapping[str, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float8_e8m0fnu": 1.0,
    "complex32": 2.0**-10,
    "complex64": 2.0**-23,
    "complex128": 2.0**-52,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """From which number on a value is a warning, and from which an error."""

    warning: float
    error: float
    source: str


_EXACT = Limits(0.0, 0.0, "exact")

#: dtype -> (warning, error); see the text above.
_TABLE: Mapping[str, tuple[float, float]] = {
    "float64": (1e-9, 1e-7),
    "float32": (1e-4, 2e-3),
    "float16": (4e-3, 2e-2),
    "bfloat16": (2e-2, 6e-2),
    "float8_e4m3fn": (1.25e-1, 3e-1),
    "float8_e4m3fnuz": (1.25e-1, 3e-1),
    "float8_e5m2": (2.5e-1, 5e-1),
    "float8_e5m2fnuz": (2.5e-1, 5e-1),
    "float8_e8m0fnu": (1.0, 1.0),
    "complex32": (4e-3, 2e-2),
    "complex64": (1e-4, 2e-3),
    "complex128": (1e-9, 1e-7),
}

_DEFAULTS: Mapping[str, Limits] = {dtype: Limits(*pair, f"default for {dtype}") for dtype, pair in _TABLE.items()}
_SCALARS = Limits(1e-6, 2e-3, "default for Python floats")


@lru_cache(maxsize=4096)
def limits_for(target_dtype: str, golden_dtype: str, mode: ToleranceMode) -> Limits:
    """Return the limits for two tensors, those of the coarser dtype.

    Parameters
    ----------
    target_dtype, golden_dtype
        Without the framework's name: ``float32``. ``float`` stands for a Python number.
    mode
        ``measured`` returns those of the table, too: for values that the reference run does not have.
    """
    if mode == "exact":
        return _EXACT
    coarser = max(target_dtype, golden_dtype, key=lambda dtype: EPSILON.get(dtype, 0.0))
    if coarser == "float":
        return _SCALARS
    return _DEFAULTS.get(coarser, _EXACT)


def measured_limits(number: float, dtype: str, reference: str) -> Limits:
    """Return the limits that follow from how far a reference run is from golden at this value.

    Parameters
    ----------
    number
        The measure (see the module's text) of golden against the reference run.
    dtype
        Of golden's value; for the floor.
    reference
        What to call the reference run.
    """
    floor = FLOOR_UNITS * EPSILON.get(dtype, 0.0)
    limit = max(FACTOR * number, floor)
    if limit == floor:
        return Limits(limit, 2 * limit, f"measured: {FLOOR_UNITS:g} units of {dtype}, as {reference} agrees")
    return Limits(limit, 2 * limit, f"measured: {FACTOR:g} times what {reference} differs from golden ({number:.3g})")
