"""Two entries -> a verdict with its number and its threshold."""

from __future__ import annotations

import math
from typing import Any

from msprobe.compare.rows import Decision, Differences, Entry, Metrics
from msprobe.compare.thresholds import EPSILON, Limits, ToleranceMode, limits_for

PASS = Decision("pass")
EQUAL = Decision("pass", "difference", 0.0, 0.0, "equal")
NO_DIFFERENCE = Differences(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
_DEVICES = ("cpu", "cuda", "npu", "gpu", "ascend", "xpu", "mps")
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_MEASURES = {name: f"relative {name} difference" for name in _STATISTICS}


def judge_mismatch(target: Entry, golden: Entry, *, any_dtype: bool) -> Decision | None:
    """Return the verdict on what two values are, before their numbers; None if they may be compared."""
    if target.kind != golden.kind:
        return Decision("error", message=f"{_describe(target)} here, {_describe(golden)} in golden")
    if target.kind != "tensor":
        return None
    if target.shape != golden.shape:
        return Decision("error", "shape", message=f"shape {_list(target.shape)}, golden {_list(golden.shape)}")
    if target.dtype != golden.dtype and not any_dtype:
        return Decision("error", "dtype", message=f"dtype {target.dtype}, golden {golden.dtype}")
    return None


def judge_scalar(target: Entry, golden: Entry, mode: ToleranceMode) -> Decision:
    """Compare two values that are no tensors: exactly, but for floats and names of devices."""
    a, b = target.value, golden.value
    if (a == b and isinstance(a, bool) == isinstance(b, bool)) or (is_nan(a) and is_nan(b)):
        return PASS
    if (
        isinstance(a, (int, float))
        and isinstance(b, (int, float))
        and not isinstance(a, bool)
        and not isinstance(b, bool)
    ):
        if isinstance(a, float) or isinstance(b, float):
            number = _relative(a, b, max(abs(a), abs(b)))
            return _by_limits("relative difference", number, limits_for("float", "float", mode), f"{a!r}, golden {b!r}")
        return Decision("error", "value", float(abs(a - b)), 0.0, "exact", f"{a!r}, golden {b!r}")
    if _is_device(a) and _is_device(b):
        return Decision("pass", message=f"device {a}, golden {b}")
    return Decision("error", "value", message=f"{_short(a)}, golden {_short(b)}")


def judge_checksums(target: Entry, golden: Entry) -> Decision | None:
    """Compare checksums; None if they are missing or of different kinds."""
    a, b = target.checksum, golden.checksum
    if a is None or b is None or len(a) != len(b):
        return None
    if a == b:
        return Decision("pass", "checksum", 0.0, 0.0, "exact")
    number = statistics_number(target, golden)[1] if target.norm is not None and golden.norm is not None else None
    return Decision("error", "checksum", number, 0.0, "exact: checksums were recorded", f"checksum {a}, golden {b}")


def differences_of(target: Entry, golden: Entry) -> Differences:
    """Return target minus golden of the four statistics, plain and relative to golden."""
    a, b, c, d = target.largest, target.smallest, target.mean, target.norm
    e, f, g, h = golden.largest, golden.smallest, golden.mean, golden.norm
    are_floats = a.__class__ is e.__class__ is float and _all_finite(target) and _all_finite(golden)
    if are_floats and e and f and g and h:  # nearly always: not worth eight calls
        a, b, c, d = a - e, b - f, c - g, d - h  # type: ignore[operator]  # none is None: they are finite
        return Differences(a, b, c, d, abs(a / e), abs(b / f), abs(c / g), abs(d / h))
    largest = _difference(target.largest, golden.largest)
    smallest = _difference(target.smallest, golden.smallest)
    mean = _difference(target.mean, golden.mean)
    norm = _difference(target.norm, golden.norm)
    return Differences(
        largest,
        smallest,
        mean,
        norm,
        _share(largest, golden.largest),
        _share(smallest, golden.smallest),
        _share(mean, golden.mean),
        _share(norm, golden.norm),
    )


def _difference(target: float | int | None, golden: float | int | None) -> float | None:
    if target is None or golden is None:
        return None
    return 0.0 if target == golden else float(target) - float(golden)  # equal infinities differ by nothing


def _share(difference: float | None, golden: float | int | None) -> float | None:
    if difference is None or golden is None:
        return None
    if difference == 0:
        return 0.0
    return abs(difference / golden) if golden else math.inf


def judge_statistics(target: Entry, golden: Entry, limits: Limits, noise: float = 0.0) -> Decision:
    """Compare Max, Min, Mean and Norm.

    Parameters
    ----------
    target, golden
        Tensors of equal shape.
    limits
        From `msprobe.compare.thresholds`.
    noise
        Differences up to this are rounding: one unit of the dtype of the largest value beside this one.
    """
    wrong = _nonfinite(target, golden)
    if wrong is not None:
        return wrong
    if (target.norm is None or golden.norm is None) and all(
        a is None or b is None for a, b in zip(_numbers(target), _numbers(golden), strict=True)
    ):
        empty = target.shape is not None and 0 in target.shape
        if empty:
            return Decision("pass", message="empty on both sides")
        why = target.reason or golden.reason or "no statistics on one side"
        return Decision("uncompared", message=f"nothing to compare by: {why}")
    name, number, difference = _worst(target, golden)
    decision = _by_limits(_MEASURES[name], number, limits, "")
    if decision.verdict != "pass" and difference <= noise:
        note = f"{number:.3g} is rounding beside the other values of the record (at most {noise:.3g} of them)"
        return Decision("pass", decision.measure, number, decision.threshold, limits.source, note)
    if decision.verdict == "pass" and is_nan(target.norm):
        return Decision("pass", "NaN", 0.0, 0.0, "exact", "NaN on both sides: their other elements cannot be told")
    return decision


def judge_metrics(metrics: Metrics, golden: Entry, limits: Limits, noise: float = 0.0) -> Decision:
    """Judge two tensors by their elements; parameters as for `judge_statistics`."""
    if metrics.nonfinite_mismatches:
        where = f"{metrics.worst_target} at {_list(metrics.worst)}, golden {metrics.worst_golden}"
        count = metrics.nonfinite_mismatches
        return Decision("error", "non-finite elements", float(count), 0.0, "exact", f"{count} differ, first {where}")
    if metrics.relative_euclidean is None or metrics.max_abs is None:
        return Decision("pass", message="empty on both sides")
    scale = _magnitude(golden)
    element = metrics.max_abs / scale if scale and math.isfinite(scale) else metrics.relative_euclidean
    measure, number = max(
        ("relative Euclidean distance", metrics.relative_euclidean),
        ("largest element difference", element),
        key=lambda pair: pair[1],
    )
    message = f"{metrics.worst_target} at {_list(metrics.worst)}, golden {metrics.worst_golden}" if number else ""
    decision = _by_limits(measure, number, limits, message)
    if decision.verdict != "pass" and metrics.max_abs <= noise:
        return Decision("pass", measure, number, decision.threshold, limits.source, "rounding beside other values")
    return decision


def statistics_number(target: Entry, golden: Entry) -> tuple[str, float]:
    """Return which statistic differs most, and by how much relative to golden's magnitude."""
    name, number, _ = _worst(target, golden)
    return name, number


def noise_of(entries: list[Entry]) -> float:
    """Return what rounding may do to the smaller ones of values that one operation made together.

    A gradient that is zero in exact arithmetic (a bias before a softmax) is not zero in floating point, and its noise
    differs by 100 % between two devices. One unit of the largest value beside it is its size.
    """
    sizes = [
        EPSILON[entry.dtype] * _magnitude(entry)
        for entry in entries
        if entry.kind == "tensor" and entry.dtype in EPSILON and math.isfinite(_magnitude(entry))
    ]
    return max(sizes, default=0.0)


def _by_limits(measure: str, number: float, limits: Limits, message: str) -> Decision:
    if math.isnan(number):
        return Decision("error", measure, number, limits.error, limits.source, message or "cannot be computed")
    if number > limits.error:
        return Decision("error", measure, number, limits.error, limits.source, message)
    if number > limits.warning:
        return Decision("warning", measure, number, limits.warning, limits.source, message)
    return Decision("pass", measure, number, limits.error, limits.source)


def _all_finite(entry: Entry) -> bool:
    """Tell quickly that nothing is infinite, NaN or missing; False also if the sum of finite numbers overflows."""
    a, b, c, d = entry.largest, entry.smallest, entry.mean, entry.norm
    if a is None or b is None or c is None or d is None or entry.nan or entry.inf:
        return False
    return math.isfinite(a + b + c + d)


def _nonfinite(target: Entry, golden: Entry) -> Decision | None:
    if _all_finite(target) and _all_finite(golden):
        return None
    for name, a, b in zip(_STATISTICS, _numbers(target), _numbers(golden), strict=True):
        if a is None or b is None or _same_nonfinite(a, b):
            continue
        if not (math.isfinite(a) and math.isfinite(b)):
            overflow = name in {"Mean", "Norm"} and not math.isnan(a) and not math.isnan(b)
            if overflow and all(_is_finite(e.largest) and _is_finite(e.smallest) for e in (target, golden)):
                continue  # the sum left the range of the dtype on one side; the elements did not
            return Decision("error", name, None, 0.0, "exact", f"{name} {a}, golden {b}")
    for what, count_a, count_b in (("NaN", target.nan, golden.nan), ("Inf", target.inf, golden.inf)):
        if count_a != count_b and (count_a and count_b):
            number = float(abs(count_a - count_b))
            return Decision("error", f"{what} count", number, 0.0, "exact", f"{count_a} {what}, golden {count_b}")
    return None


def _same_nonfinite(a: float, b: float) -> bool:
    if math.isnan(a):
        return math.isnan(b)
    return math.isinf(a) and a == b


def _worst(target: Entry, golden: Entry) -> tuple[str, float, float]:
    """Name, relative and plain difference of the statistic that differs most."""
    a, b, c, d = target.largest, target.smallest, target.mean, target.norm
    e, f, g, h = golden.largest, golden.smallest, golden.mean, golden.norm
    scale = _magnitude(golden)
    name, worst, plain = "Norm", 0.0, 0.0
    if d is not None and h is not None and d != h:
        difference = abs(d - h)
        relative = difference / abs(h) if h else math.inf
        # A NaN, and an infinity on both sides, are no numbers to compare: `_nonfinite` has judged them.
        if relative > worst and difference < math.inf:
            worst, plain = relative, float(difference)
    for statistic, ours, theirs in (("Max", a, e), ("Min", b, f), ("Mean", c, g)):
        if ours is None or theirs is None or ours == theirs:
            continue
        difference = abs(ours - theirs)
        relative = difference / scale if scale else math.inf
        if relative > worst and difference < math.inf:
            name, worst, plain = statistic, relative, float(difference)
    return name, worst, plain


def _numbers(entry: Entry) -> tuple[float | int | None, ...]:
    return entry.largest, entry.smallest, entry.mean, entry.norm


def _magnitude(entry: Entry) -> float:
    """Largest magnitude of an element, by Max and Min; 0 if they are unknown."""
    a, b = entry.largest, entry.smallest
    if a is None or b is None:
        return 0.0
    return float(max(abs(a), abs(b)))


def _relative(a: float, b: float, scale: float) -> float:
    difference = abs(_minus(a, b))
    return 0.0 if difference == 0 else _divided(difference, scale)


def _minus(a: float, b: float) -> float:
    if a == b:
        return 0.0  # also for two infinities of one sign
    return float(a) - float(b)


def _divided(difference: float, scale: float) -> float:
    return difference / scale if scale else math.inf


def is_nan(value: Any) -> bool:
    """Tell whether a value is a NaN; None and integers are none."""
    return isinstance(value, float) and math.isnan(value)


def _is_finite(number: float | None) -> bool:
    return number is not None and math.isfinite(number)


def _is_device(value: Any) -> bool:
    return isinstance(value, str) and value.lower().startswith(_DEVICES)


def _describe(entry: Entry) -> str:
    if entry.kind == "tensor":
        return f"a {entry.dtype} tensor of shape {_list(entry.shape)}"
    return "nothing" if entry.kind == "null" else f"{entry.dtype} {_short(entry.value)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _list(numbers: tuple[int, ...] | None) -> str:
    return str(list(numbers or ()))
