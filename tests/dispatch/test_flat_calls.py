"""Calls of an optimiser step: recorded natively or from Python, the dump is the same, whatever happens in the step."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lifecycle_models import Factory

from msprobe.dispatch import api_mode
from msprobe.dispatch.flat_phase import FlatPhase
from msprobe.measure.backends import native_module

FILES = ("dump.json", "stack.json", "construct.json")
CONFIGS: dict[str, dict[str, Any]] = {
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "structure": {"level": "mix", "task": "structure"},
    "md5": {"level": "L1", "statistics": {"summary_mode": "md5"}},
    "hash": {"level": "L1", "statistics": {"summary_mode": "hash"}},
    "asynchronous": {"level": "L1", "async_dump": True},
    "all risks": {"level": "L1", "risk_level": "ALL"},
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    "AdamW, fused lists": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, centered=True, foreach=False),
    "Adafactor": torch.optim.Adafactor,
    "Rprop": torch.optim.Rprop,
}


class Told(torch.Tensor):
    """A gradient whose class is told of what is done with it, and may do something itself."""

    act: Callable[[str], None] = staticmethod(lambda name: None)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.act(func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **(kwargs or {}))
            return output.as_subclass(cls) if type(output) is torch.Tensor else output


def train(tool: Any, make: Callable[[Any], torch.optim.Optimizer], each: Callable[[Any], None], steps: int = 2) -> Any:
    """Train a small model; ``each`` is called with the optimiser before its step. Returns the parameters' values."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    optimizer = make(model.parameters())
    for _ in range(steps):
        tool.start(model)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        each(optimizer)
        optimizer.step()
        tool.stop()
        tool.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def texts(tool: Any) -> list[dict[str, Any]]:
    """Files of each step, parsed, and what its coverage says is missing."""
    found = []
    for step in sorted(Path(tool._session.config.dump_path).glob("step*")):
        (folder,) = step.iterdir()
        found.append({name: json.loads((folder / name).read_text()) for name in FILES})
        found[-1]["dump.json"].pop("dump_data_dir", None)
        found[-1]["coverage"] = json.loads((folder / "coverage.json").read_text())["not_recorded"]
    return found


def both_ways(
    debugger: Factory, monkeypatch: pytest.MonkeyPatch, run: Callable[[Any], None], config: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is written when calls are recorded natively, and when they are not."""
    assert api_mode._run_flat_call is not None
    found = []
    for native in (True, False):
        if not native:
            monkeypatch.setattr(api_mode, "_run_flat_call", None)
        tool = debugger(**{"task": "statistics", **config})
        run(tool)
        found.append(texts(tool))
    return found[0], found[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("config", CONFIGS)
def test_the_dump_is_the_same(debugger: Factory, monkeypatch: pytest.MonkeyPatch, config: str, optimizer: str) -> None:
    natively = []
    original = FlatPhase._decide
    monkeypatch.setattr(FlatPhase, "_decide", lambda *given: natively.append(1) or original(*given))

    def run(tool: Any) -> None:
        train(tool, OPTIMIZERS[optimizer], lambda _: None)

    native, python = both_ways(debugger, monkeypatch, run, CONFIGS[config])
    assert native == python
    assert len(native) == 2
    assert natively
    if config != "structure":
        assert len(native[1]["dump.json"]["data"]) > 15


@pytest.mark.parametrize("config", ["L1", "structure"])
def test_a_call_that_raises(debugger: Factory, monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    """The program sees its own exception; what the call was given is kept, and its index goes to the next call."""

    def run(tool: Any) -> None:
        def break_state(optimizer: Any) -> None:
            state = list(optimizer.state.values())
            if state:
                state[-1]["exp_avg"] = torch.zeros(7)

        with pytest.raises(RuntimeError, match="must match the size"):
            train(tool, lambda parameters: torch.optim.Adam(parameters, foreach=False), break_state)
        torch.ones(2).add(1)  # after the phase, which no hook has ended
        tool.stop()
        tool.step()

    native, python = both_ways(debugger, monkeypatch, run, CONFIGS[config])
    assert native == python
    if config == "L1":
        assert any(name.endswith("#error") for name in native[1]["dump.json"]["data"])


@pytest.mark.parametrize("call", ["lerp_", "__setitem__"])
@pytest.mark.parametrize("what", ["stop", "step", "interrupt", "gradients", "other mode"])
def test_what_a_call_may_do_inside(debugger: Factory, monkeypatch: pytest.MonkeyPatch, what: str, call: str) -> None:
    """The class of a gradient stops the capture, ends the step, raises, or changes modes in the middle of a call.

    An assignment to elements, as Rprop makes them, returns None.
    """
    optimizer = torch.optim.Adam if call == "lerp_" else torch.optim.Rprop
    trained = []

    def run(tool: Any) -> None:
        state = {"calls": 0}

        def act(name: str) -> None:
            if name != call:
                return
            state["calls"] += 1
            if state["calls"] != 3:
                return
            if what == "stop":
                tool.stop()
            elif what == "step":
                tool.stop()
                tool.step()
            elif what == "interrupt":
                raise KeyboardInterrupt
            elif what == "gradients":
                torch.set_grad_enabled(False)
            else:
                with torch.device("cpu"):
                    torch.zeros(2)

        def told(used: Any) -> None:
            for parameter in used.param_groups[0]["params"]:
                parameter.grad = parameter.grad.as_subclass(Told)

        Told.act = staticmethod(act)
        try:
            trained.append(train(tool, lambda parameters: optimizer(parameters, foreach=False), told))
        except KeyboardInterrupt:
            tool.stop()
            tool.step()
            trained.append([])
        trained.append([torch.tensor(state["calls"])])
        assert state["calls"] >= 3

    native, python = both_ways(debugger, monkeypatch, run, CONFIGS["L1"])
    assert native == python
    first, calls, second, calls_again = trained
    assert all(map(torch.equal, first + calls, second + calls_again))


def test_the_program_computes_the_same(debugger: Factory) -> None:
    class Idle:
        def start(self, *_: Any) -> None: ...
        def stop(self) -> None: ...
        def step(self) -> None: ...

    plain = train(Idle(), OPTIMIZERS["AdamW"], lambda _: None)
    recorded = train(debugger(task="statistics", level="mix"), OPTIMIZERS["AdamW"], lambda _: None)
    assert all(map(torch.equal, plain, recorded))


def test_under_another_function_mode_nothing_is_missing(debugger: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a default device, calls inside the tool would reach its mode: they are then recorded from Python."""

    def run(tool: Any) -> None:
        torch.set_default_device("cpu")
        try:
            train(tool, OPTIMIZERS["AdamW"], lambda _: None)
        finally:
            torch.set_default_device(None)

    native, python = both_ways(debugger, monkeypatch, run, CONFIGS["L1"])
    assert native == python


def test_nothing_of_a_phase_waits_for_the_garbage_collector(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L1")
    gc.collect()
    gc.disable()
    try:
        train(tool, OPTIMIZERS["AdamW"], lambda _: None)
        assert not [found for found in gc.get_objects() if type(found) is FlatPhase]
    finally:
        gc.enable()


def test_what_is_no_phase_is_refused() -> None:
    native = native_module()
    assert native is not None
    for phase in ((), [1] * 26, None):
        with pytest.raises(TypeError, match="run_flat_call"):
            native.run_flat_call(phase, torch.relu, (), None, None)
