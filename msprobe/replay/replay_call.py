"""Replay one API call: rebuild its arguments, run it three times, judge forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from msprobe.replay import verdicts
from msprobe.replay.api_kinds import (
    Kind,
    decisive_name,
    has_narrow_sums,
    kind_of,
    rounds_scalars,
    selects_by_value,
    skip_reason,
)
from msprobe.replay.arguments import UnreplayableError
from msprobe.replay.calls import ApiCall
from msprobe.replay.execute import Forward, Named, Setting, move_all, run_backward, run_forward
from msprobe.replay.judge import Demand, Runs, judge_runs, narrower
from msprobe.replay.plan import Plan, make_plan, one_line
from msprobe.replay.records import CallResult, Detail
from msprobe.replay.references import reference_of
from msprobe.replay.reproducer import Reproducer

_MOVES_SEED = 20220


@dataclass(frozen=True, slots=True)
class Bench:
    """What calls are replayed on.

    Attributes
    ----------
    device : str
        ``cpu``, ``cuda:0``, ``npu:1``.
    seed : int
    tensor_folder : Path or None
    reproducer : Reproducer or None
        Keeps what fails; None keeps nothing.
    """

    device: str
    seed: int
    tensor_folder: Path | None
    reproducer: Reproducer | None

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the CPU, and so its own yardstick."""
        return self.device.startswith("cpu")


class DeviceFailedError(RuntimeError):
    """A device raised where the CPU does not."""


def replay_call(call: ApiCall, bench: Bench) -> CallResult:
    """Replay a call and return what was found. Exceptions of the API become a verdict with a reason."""
    reason = call.missing or skip_reason(call.prefix, call.path)
    if reason:
        return _skipped(call, reason)
    try:
        plan, on_cpu = make_plan(call, bench.tensor_folder, bench.seed)
    except UnreplayableError as error:
        return _skipped(call, str(error))
    if bench.is_cpu and isinstance(on_cpu, Exception):
        return _skipped(call, f"cannot be repeated: {one_line(on_cpu)}")
    run = _Replay(plan, bench, on_cpu)
    forward, backward = run.forward(), run.backward()
    details = (*forward.details, *backward.details)
    failure = ""
    if verdicts.ERROR in (forward.verdict, backward.verdict) and bench.reproducer is not None:
        failure = bench.reproducer.write(plan, run.kept(), details)
    return CallResult(
        call.name,
        forward.verdict,
        backward.verdict,
        forward.reason,
        backward.reason,
        "; ".join(dict.fromkeys(plan.arguments.notes)),
        details,
        failure,
    )


@dataclass(frozen=True, slots=True)
class _Direction:
    verdict: str
    reason: str = ""
    details: tuple[Detail, ...] = ()


class _Replay:
    """The runs of one call."""

    def __init__(self, plan: Plan, bench: Bench, on_cpu: Forward | Exception) -> None:
        self._plan = plan
        self._bench = bench
        self._on_cpu = on_cpu
        self._with_gradients = plan.gradients is not None
        self._api = (plan.call.prefix, plan.call.path)
        self._name = decisive_name(*self._api)
        self._device: Forward | None = None
        self._reference: Forward | None = None
        self._moved: Forward | None = None
        self._forward: Runs | None = None
        self._backward: Runs | None = None

    def kept(self) -> list[Runs]:
        """Return the results that were judged."""
        return [runs for runs in (self._forward, self._backward) if runs is not None]

    def forward(self) -> _Direction:
        """Run the call and judge what it returns."""
        try:
            self._device, results = self._run_device()
        except DeviceFailedError as error:
            return _Direction(verdicts.ERROR, str(error))
        refused = self._run_reference()
        kind = self._kind()
        if self._reference is None and (kind is Kind.FLOAT or self._bench.is_cpu):
            return _Direction(verdicts.SKIP, f"no float64 reference: {refused}")
        self._forward = Runs(
            self._plan.call.name,
            "forward",
            results,
            self._reference.on_cpu() if self._reference is not None else None,
            self._moved.on_cpu() if self._moved is not None else None,
            self._yardstick(),
        )
        operands = self._plan.arguments.tensors
        narrow_sums = has_narrow_sums(*self._api, "forward")
        positions = selects_by_value(*self._api)
        demand = Demand(kind, self._plan.autocast, operands, positions, narrow_sums, narrow_sums)
        details = judge_runs(self._forward, demand)
        return _direction(details, "the call returns no values")

    def backward(self) -> _Direction:
        """Run the backward pass and judge the gradients of the inputs."""
        gradients = self._plan.gradients
        if gradients is None or self._device is None or self._forward is None:
            return _Direction(verdicts.SKIP)
        if self._positions_differ():
            return _Direction(verdicts.SKIP, "equal values: the gradient goes to another one of them")
        try:
            self._backward = self._run_backward(self._device, gradients)
        except DeviceFailedError as error:
            return _Direction(verdicts.ERROR, str(error))
        except UnreplayableError as error:
            return _Direction(verdicts.SKIP, str(error))
        details = judge_runs(self._backward, self._backward_demand(self._device, gradients))
        return _direction(details, "no input has a gradient")

    def _run_backward(self, device: Forward, gradients: list[torch.Tensor | None]) -> Runs:
        """Run the backward pass wherever the forward ran.

        Raises
        ------
        UnreplayableError
            The CPU cannot run it.
        DeviceFailedError
            The device cannot run it, but the CPU can.
        """
        yardstick: Named | None = None
        if self._reference is None:
            raise UnreplayableError("no float64 reference")
        try:
            reference = run_backward(self._reference, gradients)
            if not self._bench.is_cpu and isinstance(self._on_cpu, Forward):
                yardstick = run_backward(self._on_cpu, gradients)
        except RuntimeError as error:
            raise UnreplayableError(one_line(error)) from error
        try:
            found = run_backward(device, gradients)
        except (UnreplayableError, RuntimeError) as error:
            if self._bench.is_cpu:
                raise UnreplayableError(one_line(error)) from error
            raise DeviceFailedError(f"{self._bench.device} failed: {one_line(error)}") from error
        return Runs(self._plan.call.name, "backward", found, reference, self._moved_backward(gradients), yardstick)

    def _run_device(self) -> tuple[Forward, Named]:
        if self._bench.is_cpu and isinstance(self._on_cpu, Forward):
            return self._on_cpu, self._on_cpu.on_cpu()
        setting = Setting(self._bench.device, autocast=self._plan.autocast)
        function = self._plan.resolved.function
        try:
            found = run_forward(function, self._plan.arguments, setting, gradients=self._with_gradients)
            return found, found.on_cpu()
        except Exception as error:
            raise DeviceFailedError(f"{self._bench.device} failed: {one_line(error)}") from error

    def _run_reference(self) -> str:
        """Compute the references; return why there are none, or an empty text."""
        if self._name == "view" and any(isinstance(value, torch.dtype) for value in self._plan.arguments.args):
            return "the call reads the bits of its input"
        function = reference_of(self._name, self._plan.resolved.function)
        rounds = rounds_scalars(*self._api)
        setting = Setting("cpu", wide=True, rounds_scalars=rounds)
        arguments = self._plan.arguments
        try:
            self._reference = run_forward(function, arguments, setting, gradients=self._with_gradients)
        except Exception as error:  # noqa: BLE001 - whatever an API raises is the reason
            return one_line(error)
        try:
            moving = replace(setting, moves=_MOVES_SEED)
            self._moved = run_forward(function, arguments, moving, gradients=self._with_gradients)
        except Exception:  # noqa: BLE001 - moved inputs may leave the domain: the bound is that of the value alone
            self._moved = None
        return ""

    def _moved_backward(self, gradients: list[torch.Tensor | None]) -> Named | None:
        if self._moved is None:
            return None
        try:
            return run_backward(self._moved, move_all(gradients, _MOVES_SEED + 1))
        except (UnreplayableError, RuntimeError):
            return None

    def _yardstick(self) -> Named | None:
        if self._bench.is_cpu or not isinstance(self._on_cpu, Forward):
            return None
        return self._on_cpu.on_cpu()

    def _kind(self) -> Kind:
        kind = kind_of(*self._api)
        computes = self._name in ("abs", "abs_", "__abs__", "absolute", "sgn", "sign", "round")
        complex_input = any(tensor.is_complex() for tensor in self._plan.arguments.tensors)
        return Kind.FLOAT if computes and (complex_input or self._name == "round") else kind

    def _backward_demand(self, device: Forward, gradients: list[torch.Tensor | None]) -> Demand:
        arriving = [gradient for gradient in gradients if gradient is not None]
        taking_part = [*self._plan.arguments.tensors, *arriving, *device.outputs]
        narrowest = self._plan.autocast
        for tensor in taking_part:
            if tensor.dtype.is_floating_point:
                narrowest = tensor.dtype if narrowest is None else narrower(narrowest, tensor.dtype)
        operands = [*self._plan.arguments.tensors, *arriving]
        narrow_sums = has_narrow_sums(*self._api, "backward")
        return Demand(Kind.FLOAT, narrowest, operands, positions=False, often=True, narrow_sums=narrow_sums)

    def _positions_differ(self) -> bool:
        runs = self._forward
        if runs is None or runs.reference is None or not selects_by_value(*self._api):
            return False
        return any(
            not found.dtype.is_floating_point and found.shape == wanted.shape and not torch.equal(found, wanted)
            for (_, found), (_, wanted) in zip(runs.device, runs.reference, strict=False)
        )


def _direction(details: list[Detail], empty: str) -> _Direction:
    if not details:
        return _Direction(verdicts.SKIP, empty)
    verdict = verdicts.worst([detail.verdict for detail in details])
    bad = next((detail for detail in details if detail.verdict == verdict and verdict != verdicts.PASS), None)
    return _Direction(verdict, f"{bad.tensor}: {bad.rule}" if bad is not None else "", tuple(details))


def _skipped(call: ApiCall, reason: str) -> CallResult:
    return CallResult(call.name, verdicts.SKIP, verdicts.SKIP, reason)
