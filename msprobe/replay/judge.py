"""Judge the results of one direction of a call, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from msprobe.replay import verdicts
from msprobe.replay.api_kinds import Kind
from msprobe.replay.errors import Errors, Rounding, count_different, measure, reduction_length
from msprobe.replay.execute import Named
from msprobe.replay.records import Detail
from msprobe.replay.verdicts import Judgement


@dataclass(frozen=True, slots=True)
class Runs:
    """The same results from each run of one direction.

    Attributes
    ----------
    api, direction : str
    device : list of (str, torch.Tensor)
        What is judged.
    reference, moved : list of (str, torch.Tensor), or None
        In float64, as recorded and with moved inputs. Without a reference only equality with the yardstick is left.
    yardstick : list of (str, torch.Tensor), or None
        From the CPU in the recorded dtype. None: the device is the CPU, or the CPU cannot run the call.
    """

    api: str
    direction: str
    device: Named
    reference: Named | None
    moved: Named | None
    yardstick: Named | None


@dataclass(frozen=True, slots=True)
class Demand:
    """What is demanded.

    Attributes
    ----------
    kind : Kind
    narrowest : torch.dtype or None
        A result counts as computed in this dtype if that is narrower than its own.
    operands : list of torch.Tensor
        What the results are computed from.
    positions : bool
        Integers are positions of values in the first operand.
    often : bool
        Intermediate results are rounded to the dtype of the result.
    narrow_sums : bool
        Sums are kept in that dtype.
    """

    kind: Kind
    narrowest: torch.dtype | None
    operands: list[torch.Tensor]
    positions: bool
    often: bool
    narrow_sums: bool


def judge_runs(runs: Runs, demand: Demand) -> list[Detail]:
    """Return a detail for each result on the device."""
    return [_judge(runs, demand, index) for index in range(len(runs.device))]


def _judge(runs: Runs, demand: Demand, index: int) -> Detail:
    name, result = runs.device[index]
    wanted = _at(runs.reference if runs.reference is not None else runs.yardstick, index)
    if wanted is None:
        return _detail(runs, name, result, Judgement(verdicts.ERROR, "the reference has no such result"))
    if wanted.shape != result.shape:
        shapes = f"shape {list(result.shape)}, the reference {list(wanted.shape)}"
        return _detail(runs, name, result, Judgement(verdicts.ERROR, shapes))
    if not (result.dtype.is_floating_point or result.dtype.is_complex):
        return _detail(runs, name, result, _judge_positions(result, wanted, demand))
    if demand.kind is Kind.EXACT or runs.reference is None:
        return _detail(runs, name, result, verdicts.judge_exact(count_different(result, wanted), result.numel()))
    return _judge_float(runs, demand, index, wanted)


def _judge_float(runs: Runs, demand: Demand, index: int, wanted: torch.Tensor) -> Detail:
    name, result = runs.device[index]
    moved = _at(runs.moved, index)
    if moved is not None and moved.shape != wanted.shape:
        moved = None
    dtype = narrower(result.dtype, demand.narrowest)
    rounding = Rounding(dtype, reduction_length(result, demand.operands), demand.narrow_sums, moved)
    errors = measure(result, wanted, rounding)
    yardstick = _at(runs.yardstick, index)
    if errors.misplaced:
        return _detail(runs, name, result, _judge_misplaced(result, yardstick, errors, demand), errors)
    units = (errors.rms_units, errors.max_units)
    judged = verdicts.Result(str(dtype), result.numel(), demand.often)
    if yardstick is None or yardstick.shape != result.shape:
        return _detail(runs, name, result, verdicts.judge_units(units, judged), errors)
    by_cpu = measure(yardstick, wanted, rounding)
    cpu_units = (by_cpu.rms_units, by_cpu.max_units)
    judgement = verdicts.judge_ratio(units, cpu_units, judged)
    ratio = errors.rms_units / max(by_cpu.rms_units, verdicts.YARDSTICK_FLOOR)
    return _detail(runs, name, result, judgement, errors, ratio)


def _judge_misplaced(result: torch.Tensor, yardstick: torch.Tensor | None, errors: Errors, demand: Demand) -> Judgement:
    """Judge NaN and infinities that the reference does not have at the same places."""
    rule = f"NaN or infinity at {errors.misplaced} places where the reference has another value"
    if yardstick is not None and yardstick.shape == result.shape:
        if torch.equal(yardstick.isfinite(), result.isfinite()):
            return Judgement(verdicts.WARNING, f"{rule}; the CPU has them, too")
    elif demand.often and result.dtype is torch.float16:
        return Judgement(verdicts.WARNING, f"{rule}; an intermediate result may exceed the range of float16")
    return Judgement(verdicts.ERROR, rule)


def _judge_positions(result: torch.Tensor, wanted: torch.Tensor, demand: Demand) -> Judgement:
    different = count_different(result, wanted)
    if different and demand.positions and demand.operands and _same_values(demand.operands[0], result, wanted):
        return Judgement(verdicts.PASS, f"exact: {different} positions differ, of equal values")
    return verdicts.judge_exact(different, result.numel())


def _same_values(source: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of positions in `source` stand for equal values, along any of its dimensions."""
    if bool((torch.stack([first, second]) < 0).any()):
        return False
    if first.ndim == 0:
        flat = source.flatten()
        inside = max(int(first), int(second)) < flat.numel()
        return inside and bool(flat[first] == flat[second])
    for dim in range(source.ndim):
        left, right = (t if t.ndim == source.ndim else t.unsqueeze(dim) for t in (first, second))
        sizes = [size for at, size in enumerate(source.shape) if at != dim]
        if left.ndim != source.ndim or [size for at, size in enumerate(left.shape) if at != dim] != sizes:
            continue
        if max(int(left.max()), int(right.max())) < source.shape[dim] and torch.equal(
            source.gather(dim, left), source.gather(dim, right)
        ):
            return True
    return False


def narrower(first: torch.dtype, second: torch.dtype | None) -> torch.dtype:
    """Return the dtype with the larger roundoff."""
    return second if second is not None and torch.finfo(second).eps > torch.finfo(first).eps else first


def _at(results: Named | None, index: int) -> torch.Tensor | None:
    return results[index][1] if results is not None and index < len(results) else None


def _detail(  # noqa: PLR0913, PLR0917 - one argument per part of the record
    runs: Runs,
    name: str,
    result: torch.Tensor,
    judgement: Judgement,
    errors: Errors | None = None,
    ratio: float | None = None,
) -> Detail:
    measured = {}
    if errors is not None:
        keys = ("rms_units", "max_units", "max_ulp", "cosine", "max_abs", "max_rel", "rms_rel")
        measured = {key: getattr(errors, key) for key in keys}
    return Detail(
        runs.api,
        runs.direction,
        name,
        str(result.dtype),
        list(result.shape),
        judgement.verdict,
        judgement.rule,
        ratio,
        **measured,
    )
