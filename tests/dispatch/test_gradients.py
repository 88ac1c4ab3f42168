"""Backward records hold the gradients that autograd computes, at the place of the argument they belong to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from debugger_traces import dump_of
from gradient_cases import CASES, IN_PLACE, Reference, Values
from gradient_models import MODELS, EveryCall, full_backward_hooks

from msprobe.store import Dump

TENSORS = {"task": "tensor", "level": "L1", "risk_level": "ALL"}


def stored(dump: Dump, name: str, side: str) -> Values:
    """Tensors of one side of a backward record; None where there is no gradient."""
    assert name in dump.data, f"no {name} among {list(dump.data)}"
    entries = dump.data[name][side]
    return [None if entry is None else load(dump, entry) for entry in entries]


def load(dump: Dump, entry: dict[str, Any]) -> torch.Tensor:
    assert dump.tensor_folder is not None
    return torch.load(Path(dump.tensor_folder) / entry["data_name"], weights_only=True)


def same(found: Values, wanted: Values) -> bool:
    pairs = list(zip(found, wanted, strict=False))
    return len(found) == len(wanted) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs
    )


@pytest.mark.parametrize("name", CASES)
def test_api_gradients_are_those_of_autograd_for(debugger: Callable[..., Any], name: str) -> None:
    torch.manual_seed(3)
    reference = Reference(split=True)
    wanted = reference.gradients(CASES[name](reference))

    tool = debugger(**TENSORS)
    torch.manual_seed(3)
    with tool.capture():
        CASES[name](Reference(split=False)).backward()
    dump = dump_of(tool)
    for record, (results, arguments) in wanted.items():
        assert same(stored(dump, record, "input"), results), f"{record}: gradients of the outputs"
        assert same(stored(dump, record, "output"), arguments), f"{record}: gradients of the inputs"


@pytest.mark.parametrize("name", IN_PLACE)
def test_api_gradients_are_right_for(debugger: Callable[..., Any], name: str) -> None:
    tool = debugger(**TENSORS)
    torch.manual_seed(3)
    with tool.capture():
        loss, wanted = IN_PLACE[name]()
        loss.backward()
    dump = dump_of(tool)
    for record, (results, arguments) in wanted.items():
        assert same(stored(dump, record, "input"), results), f"{record}: gradients of the outputs"
        assert same(stored(dump, record, "output"), arguments), f"{record}: gradients of the inputs"


@pytest.mark.parametrize("name", MODELS)
def test_module_gradients_are_those_of_full_backward_hooks_in(debugger: Callable[..., Any], name: str) -> None:
    def run(around: Callable[[torch.nn.Module], Any]) -> Any:
        torch.manual_seed(5)
        model, x = MODELS[name]()
        with around(model) as found:
            model(x).square().sum().backward()
        return found

    wanted = run(full_backward_hooks)
    tool = debugger(**{**TENSORS, "level": "L0"})
    run(tool.capture)
    dump = dump_of(tool)
    assert len(wanted) > 3
    assert [record for record in dump.data if ".backward." in record and record not in wanted] == []
    for record, (arrived, sent) in wanted.items():
        if record in dump.data or any(gradient is not None for gradient in sent):
            found = stored(dump, record, "input")
            assert same(found[: len(arrived)], arrived), f"{record}: gradients of the outputs"
            assert not any(found[len(arrived) :])  # states in the nested tuple of a recurrent layer, which nobody used
            assert same(stored(dump, record, "output"), sent), f"{record}: gradients of the inputs"


@pytest.mark.parametrize("name", MODELS)
def test_every_api_gradient_is_that_of_a_node_of_its_own_in(debugger: Callable[..., Any], name: str) -> None:
    torch.manual_seed(5)
    model, x = MODELS[name]()
    reference = EveryCall()
    with reference:
        loss = model(x).square().sum()
    loss.backward()

    tool = debugger(**TENSORS)
    torch.manual_seed(5)
    model, x = MODELS[name]()
    with tool.capture():
        model(x).square().sum().backward()
    dump = dump_of(tool)
    names = [record.replace(".forward", ".backward") for record in dump.data if record.endswith(".forward")]
    names = [record for record in names if record in dump.data]
    wanted = reference.gradients()
    assert len(names) == len(wanted) > 5
    for record, (arrived, sent) in zip(names, wanted, strict=True):
        assert same(stored(dump, record, "input"), arrived), f"{record}: gradients of the outputs"
        assert same(stored(dump, record, "output"), sent), f"{record}: gradients of the inputs"
