"""Which backward pass a record belongs to: several, partial and accumulated passes, recomputation, own containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import dump_of
from neutral_scenarios import SCENARIOS, Lambda
from test_gradients import TENSORS, load, same, stored
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.store import Dump

MIX = {**TENSORS, "level": "mix"}
Factory = Callable[..., Any]


# -- several passes


def test_a_second_pass_over_a_graph_is_tagged_and_a_new_graph_is_not(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = nn.Sequential(nn.Linear(3, 3))
    with tool.capture(model):
        out = model(torch.ones(2, 3))
        loss = out.square().sum()
        loss.backward(retain_graph=True)
        (loss * 3).backward()
        model(torch.ones(2, 3)).sum().backward()
    dump = dump_of(tool)
    (first,), (second,) = (stored(dump, f"Functional.linear.0.backward{tag}", "input") for tag in ("", "#2"))
    assert torch.equal(first * 3, second)
    assert same(stored(dump, "Module.0.Linear.backward.0#2", "input"), [second])
    assert same(stored(dump, "Functional.linear.1.backward", "input"), [torch.ones(2, 3)])
    assert not [name for name in dump.data if "#" in name and "backward" not in name]


@pytest.mark.parametrize("by_grad", [False, True], ids=["backward(inputs=...)", "autograd.grad"])
def test_a_pass_to_some_inputs_records_what_it_reaches_and_no_more(debugger: Factory, by_grad: bool) -> None:
    tool = debugger(**MIX)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    with tool.capture(model):
        x = torch.ones(2, 3, requires_grad=True)
        h = model[1](model[0](x))
        loss = model[2](h).square().sum()
        if by_grad:
            wanted = list(torch.autograd.grad(loss, [h, model[2].weight]))
        else:
            loss.backward(inputs=[h, model[2].weight])
            wanted = [h.grad, model[2].weight.grad]
    dump = dump_of(tool)
    assert same(stored(dump, "Functional.linear.1.backward", "output"), [*wanted, None])
    assert same(stored(dump, "Module.2.Linear.backward.0", "output"), wanted[:1])
    assert "Functional.linear.0.backward" not in dump.data
    assert "Module.0.Linear.parameters_grad.0" not in dump.data
    assert ("Module.2.Linear.parameters_grad.0" in dump.data) is not by_grad


def test_the_first_pass_of_a_double_backward_is_recorded_and_the_second_is_tagged(debugger: Factory) -> None:
    tool = debugger(**TENSORS)
    with tool.capture():
        x = torch.randn(3, requires_grad=True)
        y = x.pow(3)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.sum() + gradient.square().sum()).backward()
    dump = dump_of(tool)
    assert same(stored(dump, "Tensor.pow.0.backward", "output"), [gradient.detach()])
    assert same(stored(dump, "Tensor.pow.0.backward#2", "input"), [torch.ones(3)])


def test_gradients_of_a_retained_graph_do_not_extend_it(debugger: Factory) -> None:
    tool = debugger(**TENSORS)
    with tool.capture():
        x = torch.randn(3, requires_grad=True)
        (gradient,) = torch.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
        nodes, pending = set(), [gradient.grad_fn]
        while pending:
            node = pending.pop()
            nodes.add(node)
            pending += [owner for owner, _ in node.next_functions if owner is not None and owner not in nodes]
    x = x.detach().requires_grad_()
    (plain,) = torch.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
    names, pending = [], [plain.grad_fn]
    seen = set()
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            names.append(node.name())
            pending += [owner for owner, _ in node.next_functions if owner is not None]
    assert sorted(node.name() for node in nodes) == sorted(names)


# -- parameters


def test_accumulated_parameter_gradients_are_recorded_after_every_pass(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    kept = []
    with tool.capture(model):
        for number in range(3):
            model(torch.full((4, 3), number + 1.0)).sum().backward()
            kept.append((model[2].weight.grad.clone(), model[2].bias.grad.clone()))
    dump = dump_of(tool)
    for number, (weight, bias) in enumerate(kept):
        record = dump.data[f"Module.2.Linear.parameters_grad.{number}"]
        assert torch.equal(load(dump, record["weight"][0]), weight)
        assert torch.equal(load(dump, record["bias"][0]), bias)


def test_tied_weights_show_their_whole_gradient_under_every_owner(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False))
    model[2].weight = model[0].weight
    with tool.capture(model):
        model(torch.tensor([1, 2, 2])).square().sum().backward()
    dump = dump_of(tool)
    for name in ("Module.0.Embedding.parameters_grad.0", "Module.2.Linear.parameters_grad.0"):
        assert torch.equal(load(dump, dump.data[name]["weight"][0]), model[0].weight.grad)
    assert "Module.0.Embedding.parameters_grad.1" not in dump.data


def test_frozen_parameters_have_no_record(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    with tool.capture(model):
        model(torch.ones(2, 3)).sum().backward()
    dump = dump_of(tool)
    assert "Module.0.Linear.parameters_grad.0" not in dump.data
    assert list(dump.data["Module.1.Linear.parameters_grad.0"]) == ["weight"]


# -- containers and keyword arguments


@dataclass
class Packed:
    hidden: torch.Tensor
    other: list[torch.Tensor]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


CONTAINERS: dict[str, tuple[Callable[..., Any], Callable[[Any], list[torch.Tensor]]]] = {
    "dict": (lambda a, b: {"a": a, "n": 3, "b": b}, lambda out: [out["a"], out["b"]]),
    "dataclass": (lambda a, b: Packed(a, [b]), lambda out: [out.hidden, *out.other]),
    "named tuple": (Pair, list),
    "nested tuple": (lambda a, b: (a, (None, [b])), lambda out: [out[0], out[1][1][0]]),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_outputs_in_a_container_have_their_gradients_in_order(debugger: Factory, kind: str) -> None:
    pack, unpack = CONTAINERS[kind]
    model = nn.Sequential(Lambda(lambda _m, x, *, scale: pack(x * 2, x + scale)))
    tool = debugger(**{**MIX, "level": "L0"})
    x, scale = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    with tool.capture(model):
        first, second = unpack(model[0](x, scale=scale))
        (first * torch.arange(3.0) + second.square()).sum().backward()
    dump = dump_of(tool)
    wanted = [torch.arange(3.0), 2 * second.detach()]
    assert same(stored(dump, "Module.0.Lambda.backward.0", "input"), wanted)
    assert same(stored(dump, "Module.0.Lambda.backward.0", "output"), [x.grad, scale.grad])


def test_a_module_called_with_keywords_lists_positional_gradients_first(debugger: Factory) -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True))
    tool = debugger(**{**MIX, "level": "L0"})
    q, k, v = (torch.randn(2, 3, 4, requires_grad=True) for _ in range(3))
    with tool.capture(model):
        out, _weights = model[0](q, value=v, key=k, need_weights=False)
        out.square().sum().backward()
    assert same(stored(dump_of(tool), "Module.0.MultiheadAttention.backward.0", "output"), [q.grad, v.grad, k.grad])


def test_an_input_used_twice_inside_a_module_has_the_sum_of_that_module_only(debugger: Factory) -> None:
    model = nn.Sequential(Lambda(lambda m, x: m.inner(x) + x, inner=nn.Linear(3, 3)))
    tool = debugger(**{**MIX, "level": "L0"})
    x = torch.randn(2, 3, requires_grad=True)
    with tool.capture(model):
        h = x * 1
        (model[0](h).sum() + 100 * h.sum()).backward()
    wanted = torch.ones(2, 3) @ model[0].inner.weight.detach() + 1
    assert same(stored(dump_of(tool), "Module.0.Lambda.backward.0", "output"), [wanted])


def test_one_tensor_passed_twice_to_a_module_has_its_sum_at_the_first_place(debugger: Factory) -> None:
    """Which use came from which argument cannot be told without a node in between, and a node would not be neutral."""
    model = nn.Sequential(Lambda(lambda _m, a, b: a * 2 + b * 3))
    tool = debugger(**{**MIX, "level": "L0"})
    with tool.capture(model):
        h = torch.randn(3, requires_grad=True).exp()
        model[0](h, h).sum().backward()
    assert same(stored(dump_of(tool), "Module.0.Lambda.backward.0", "output"), [torch.full((3,), 5.0), None])


def test_an_output_that_is_used_inside_shows_the_whole_gradient_as_retain_grad_does(debugger: Factory) -> None:
    """Hidden states that a module returns besides what it computes from them."""
    model = nn.Sequential(Lambda(lambda m, x: (m.inner(x), m.inner(m.inner(x))), inner=nn.Linear(3, 3)))

    def forward(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = m.inner(x)
        return hidden, m.inner(hidden)

    model[0].function = forward
    tool = debugger(**{**MIX, "level": "L0"})
    with tool.capture(model):
        hidden, last = model[0](torch.randn(2, 3))
        hidden.retain_grad()
        (hidden.square().sum() + last.sum()).backward()
    assert same(stored(dump_of(tool), "Module.0.Lambda.backward.0", "input"), [hidden.grad, torch.ones(2, 3)])


# -- calls that create no node


def test_a_call_that_returns_its_input_passes_the_gradient_through(debugger: Factory) -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.5).eval())
    tool = debugger(**MIX)
    x = torch.randn(3, requires_grad=True)
    with tool.capture(model):
        (model(x * 2) * torch.arange(3.0)).sum().backward()
    dump = dump_of(tool)
    for name in ("Module.0.Identity.backward.0", "Module.1.Dropout.backward.0", "Functional.dropout.0.backward"):
        assert same(stored(dump, name, "input"), [torch.arange(3.0)])
        assert same(stored(dump, name, "output")[:1], [torch.arange(3.0)])


def test_calls_that_no_gradient_reaches_have_no_backward_record(debugger: Factory) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tool = debugger(**MIX)
    with tool.capture(model):
        h = model[0](torch.ones(2, 3))
        model[1](h).exp()
        h.sum().backward()
    backward = [name for name in dump_of(tool).data if ".backward" in name]
    assert backward == ["Tensor.sum.0.backward", "Module.0.Linear.backward.0", "Functional.linear.0.backward"]


# -- checkpointing


def checkpointed_run(debugger: Factory, name: str) -> Dump:
    tool = debugger(**MIX)
    torch.manual_seed(1)
    model, step = SCENARIOS[name]()
    with tool.capture(model):
        step()
    return dump_of(tool)


def plain_run(debugger: Factory, monkeypatch: pytest.MonkeyPatch, name: str) -> Dump:
    """The same model without checkpointing."""
    import neutral_scenarios

    with monkeypatch.context() as patch:
        patch.setattr(neutral_scenarios, "checkpoint", lambda function, *args, **_: function(*args))
        return checkpointed_run(debugger, name)


KINDS = [
    "reentrant_checkpoint",
    "non_reentrant_checkpoint",
    "non_reentrant_checkpoint_that_stops_late",
    "nested_checkpoints",
    "selective_checkpoint",
]


@pytest.mark.parametrize("name", KINDS)
def test_checkpointing_shifts_no_name_changes_no_value_and_keeps_the_module_tree_with(
    debugger: Factory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plain = plain_run(debugger, monkeypatch, name)
    found = checkpointed_run(debugger, name)
    assert {record for record in found.data if "#" not in record} == set(plain.data)
    for record in plain.data:
        assert values_of(found.data[record]) == values_of(plain.data[record]), record
    assert {record: parent for record, parent in found.parents.items() if "#" not in record} == plain.parents
    recomputed = [parent for record, parent in found.parents.items() if record.endswith("#recompute")]
    assert recomputed
    assert None not in recomputed


def test_a_checkpoint_puts_no_frame_of_the_compiler_that_it_switches_off_into_stacks(debugger: Factory) -> None:
    stacks = checkpointed_run(debugger, "non_reentrant_checkpoint").stacks.values()
    assert any("in checkpoint," in frame for stack in stacks for frame in stack)
    assert not [frame for stack in stacks for frame in stack if "/torch/_dynamo/" in frame]


def values_of(record: Any) -> Any:
    """A record without what differs by design: whether a tensor needs a gradient, and names of files."""
    if isinstance(record, dict):
        return {k: values_of(v) for k, v in record.items() if k not in ("requires_grad", "data_name")}
    if isinstance(record, list):
        return [values_of(item) for item in record]
    return record


@pytest.mark.parametrize("name", KINDS)
def test_recomputed_calls_repeat_the_names_and_inputs_of_the_first_run_with(debugger: Factory, name: str) -> None:
    dump = checkpointed_run(debugger, name)
    repeated = [record for record in dump.data if record.endswith("#recompute")]
    names = {record.split(".", 1)[0] for record in repeated}
    assert {"Functional", "Module"} <= names
    assert any(record.startswith("Functional.linear.") for record in repeated)
    for record in repeated:
        first = dump.data[record.removesuffix("#recompute")]
        again = dump.data[record]
        assert values_of(again["input_args"]) == values_of(first["input_args"]), record
    assert dump.coverage is not None
    assert dump.coverage["recomputed_calls"] >= len(repeated)


def test_a_checkpoint_inside_a_function_that_is_no_module_is_recognised(debugger: Factory) -> None:
    tool = debugger(**TENSORS)
    weight = torch.randn(3, 3, requires_grad=True)
    with tool.capture():
        out = checkpoint(lambda x: F.relu(x @ weight).sin(), torch.ones(2, 3), use_reentrant=False)
        out.sum().backward()
        F.relu(torch.ones(2))
    names = list(dump_of(tool).data)
    assert "Functional.relu.0.forward#recompute" in names
    assert "Functional.relu.1.forward" in names
    assert "Functional.relu.2.forward" not in names
