"""``register_custom_api``: calls are recorded, and restoring leaves everything as it was."""

from __future__ import annotations

import logging
import types
from typing import Any

import pytest
import torch
from debugger_traces import dump_of, leftovers
from lifecycle_models import Factory

from msprobe.pytorch import LifecycleError


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Base:
    def plain(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self, Base)
        return double(x)

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return double(x)

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        assert issubclass(cls, Base)
        return double(x)

    @property
    def number(self) -> int:
        return 3


class Derived(Base):
    pass


@pytest.mark.parametrize("name", ["plain", "static", "of_class"])
@pytest.mark.parametrize("holder", ["class", "derived class", "object"])
def test_methods_of_every_kind_are_recorded_and_restored(debugger: Factory, name: str, holder: str) -> None:
    thing: Any = {"class": Base, "derived class": Derived, "object": Derived()}[holder]
    before = dict(vars(thing))
    tool = debugger(level="L1", task="statistics")
    tool.register_custom_api(thing, name, prefix="Mine")
    caller = thing if holder == "object" else thing()
    with tool.capture():
        results = [getattr(caller, name)(torch.ones(2))]
        if name != "plain" and holder != "object":
            results.append(getattr(thing, name)(torch.ones(2)))
    tool.restore_custom_api(thing, name)
    assert all(torch.equal(result, torch.full((2,), 2.0)) for result in results)
    assert dict(vars(thing)) == before
    assert list(dump_of(tool).data) == [f"Mine.{name}.{number}.forward" for number in range(len(results))]


def test_a_function_of_a_module_is_restored_as_the_same_object(debugger: Factory) -> None:
    module = types.ModuleType("library")
    module.double = double
    tool = debugger(level="L1", task="statistics")
    tool.register_custom_api(module, "double")
    tool.register_custom_api(module, "double")
    with tool.capture():
        x = torch.ones(2, requires_grad=True)
        module.double(x).sum().backward()
    tool.restore_custom_api(module, "double")
    tool.restore_custom_api(module, "double")
    assert module.double is double
    assert {"library.double.0.forward", "library.double.0.backward"} <= set(dump_of(tool).data)


def test_an_attribute_that_is_no_function_is_refused(debugger: Factory) -> None:
    tool = debugger(level="L1", task="statistics")
    with pytest.raises(LifecycleError, match=r"Base\.number is a property"):
        tool.register_custom_api(Base, "number")
    with pytest.raises(AttributeError):
        tool.register_custom_api(Base, "missing")


def test_what_replaced_the_attribute_since_is_left_alone(debugger: Factory, caplog: pytest.LogCaptureFixture) -> None:
    module = types.ModuleType("library")
    module.double = double
    tool = debugger(level="L1", task="statistics")
    tool.register_custom_api(module, "double")
    inner = module.double
    module.double = lambda x: inner(x + 0)
    outer = module.double
    with caplog.at_level(logging.WARNING, "msprobe"):
        tool.restore_custom_api(module, "double")
    assert module.double is outer
    assert "library.double was replaced after" in caplog.text
    assert torch.equal(module.double(torch.ones(1)), torch.full((1,), 2.0))


def test_only_the_outer_one_of_two_nested_registered_functions_is_recorded(debugger: Factory) -> None:
    module = types.ModuleType("library")
    module.double = double
    module.quadruple = lambda x: module.double(module.double(x))
    tool = debugger(level="L1", task="statistics", risk_level="ALL")
    for name in ("double", "quadruple"):
        tool.register_custom_api(module, name)
    with tool.capture():
        x = torch.ones(2)
        module.quadruple(x)
        module.double(x)
    names = [name for name in dump_of(tool).data if not name.startswith("Torch.ones")]
    assert names == ["library.quadruple.0.forward", "library.double.0.forward"]


@pytest.mark.parametrize("word", ["stop", "step"])
def test_a_capture_may_end_inside_a_registered_function(debugger: Factory, word: str) -> None:
    module = types.ModuleType("library")
    tool = debugger(level="L1", task="statistics")

    def ending(x: torch.Tensor) -> torch.Tensor:
        getattr(tool, word)()
        return double(x)

    module.ending = ending
    tool.register_custom_api(module, "ending")
    tool.start()
    with torch.overrides.BaseTorchFunctionMode() as outer:
        module.ending(torch.ones(2))
        stack = torch.overrides._get_current_function_mode_stack()
        assert stack[-1] is outer
        assert len(stack) == (1 if word == "stop" else 2)
    if word == "stop":
        assert leftovers([]) == []
    tool.stop()
    tool.step()
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_capture_may_end_and_begin_inside_a_registered_function(debugger: Factory) -> None:
    module = types.ModuleType("library")
    tool = debugger(level="L1", task="statistics")

    def again(x: torch.Tensor) -> torch.Tensor:
        tool.stop()
        tool.start()
        return x

    module.again = again
    tool.register_custom_api(module, "again")
    tool.start()
    module.again(torch.ones(2))
    torch.exp(torch.ones(2))
    tool.stop()
    tool.step()
    assert leftovers([]) == []
    assert "Torch.exp.0.forward" in dump_of(tool).data


def test_a_registered_function_may_leave_a_mode_behind(debugger: Factory) -> None:
    module = types.ModuleType("library")
    entered = torch.overrides.BaseTorchFunctionMode()
    module.enter = lambda x: entered.__enter__() and x
    module.leave = lambda x: entered.__exit__(None, None, None) or x
    tool = debugger(level="L1", task="statistics")
    for name in ("enter", "leave"):
        tool.register_custom_api(module, name)
    with torch.overrides.BaseTorchFunctionMode() as outer, tool.capture():
        (ours, *_) = before = torch.overrides._get_current_function_mode_stack()
        module.enter(torch.ones(2))
        assert torch.overrides._get_current_function_mode_stack() == [ours, outer, entered]
        module.leave(torch.ones(2))
        assert torch.overrides._get_current_function_mode_stack() == before
    assert torch.overrides._get_current_function_mode_stack() == []
    assert {"library.enter.0.forward", "library.leave.0.forward"} <= set(dump_of(tool).data)
