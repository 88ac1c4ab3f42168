"""Hooks that stand in torch's own tables: as torch would have registered them, and gone after stop()."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from debugger_traces import assert_nothing_left, dump_of, leftovers
from lifecycle_models import MIX, Factory, small_model
from torch import nn
from torch.utils.hooks import RemovableHandle

from msprobe.dispatch.hook_ids import HookIds, next_id
from msprobe.dispatch.inert import ModuleHook, VanishingHook
from msprobe.dispatch.named_modules import NamedModules
from msprobe.dispatch.sharded_modules import class_name
from msprobe.dispatch.token_hook import BeforeForward

TABLES = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")


def nothing(*_: Any) -> None:
    """Hook of the user."""


# -- ids


def test_an_id_of_ours_is_given_to_nobody_else() -> None:
    table: OrderedDict[int, Any] = OrderedDict()
    ids = HookIds()
    taken = [RemovableHandle(table).id, next_id(), ids.number(1), ids.number(0), RemovableHandle(table).id, next_id()]
    assert len(set(taken)) == len(taken)
    assert ids.number(0) < ids.number(1)


def test_a_hook_that_comes_before_all_others_does_so_at_each_start() -> None:
    model = small_model()
    model.register_forward_pre_hook(nothing)
    ids = HookIds()
    numbers = set()
    for _ in range(3):
        hook = BeforeForward(model, lambda: None)
        (handle,) = ids.register((lambda hook=hook: model.register_forward_pre_hook(hook, prepend=True),))
        assert list(model._forward_pre_hooks.values()) == [hook, nothing]
        numbers.add(handle.id)
        handle.remove()
    assert numbers == {ids.number(0)}


# -- names


class Shared(nn.Module):
    """One part under two names, and a name without a part."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.b = nn.ModuleList([self.a[0], nn.Sequential(nn.Tanh())])
        self.register_module("c", None)


class Showing(nn.Module):
    """Shows its parts in a way of its own, with itself again as one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 2)

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[Any]:
        yield prefix, self
        yield prefix + ".shown", self.inside


@pytest.mark.parametrize("first", [0, 2])
def test_the_walk_finds_what_torchs_own_finds(first: int) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    roots = [Shared(), nn.Sequential(Shared(), Showing(), nn.Sequential(Showing())), Showing(), scripted]
    found = NamedModules(roots, first)
    expected = [
        (f"Module.{index}.{path}.{type(module).__name__}", module)
        for index, root in enumerate(roots, start=first)
        for path, module in root.named_modules()
        if module is not root
    ]
    got = [(name.replace("..", "."), module) for name, module in found.calls]
    assert got == [(name.replace("..", "."), module) for name, module in expected]
    assert set(found.classes) == {type(module) for _, module in expected}


def test_a_single_root_needs_no_index() -> None:
    names = [name for name, _ in NamedModules([small_model()]).calls]
    assert names == ["Module.0.Linear", "Module.1.ReLU", "Module.2.Linear"]
    assert NamedModules([]).calls == []


def test_a_class_made_by_fully_shard_has_the_name_that_the_user_gave() -> None:
    class FSDPModule:
        __module__ = "torch.distributed.fsdp"

    sharded = type("FSDPLinear", (FSDPModule, nn.Linear), {"__module__": "torch.distributed.fsdp"})
    assert [class_name(kind) for kind in (nn.Linear, sharded)] == ["Linear", "Linear"]


def test_a_model_that_changes_between_steps_is_recorded_as_it_is(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    model = small_model()
    for step in range(4):
        if step == 1:
            model[1] = nn.Sequential(nn.GELU())
        if step == 2:
            model.append(nn.Tanh())
        if step == 3:
            del model[0]
        with tool.capture(model):
            model(torch.ones(2, 4)).sum().backward()
        assert leftovers([model]) == []
    names = [[name for name in dump_of(tool, step).data if name.endswith("forward.0")] for step in range(4)]
    assert "Module.1.ReLU.forward.0" in names[0]
    assert {"Module.1.Sequential.forward.0", "Module.1.0.GELU.forward.0"} <= set(names[1])
    assert "Module.3.Tanh.forward.0" in names[2]
    assert names[3] == [f"Module.{name}.forward.0" for name in ("0.0.GELU", "0.Sequential", "1.Linear", "2.Tanh")]


# -- order, and what the user does with the tables


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_hooks_stand_in_the_order_in_which_torch_would_have_registered_them(debugger: Factory, level: str) -> None:
    tool = debugger(task="statistics", level=level)
    module = (model := small_model())[0]
    for _ in range(2):
        early = module.register_forward_pre_hook(nothing), module.register_forward_hook(nothing)
        tool.start(model)
        late = module.register_forward_pre_hook(nothing), module.register_forward_hook(nothing)
        front = module.register_forward_pre_hook(nothing, prepend=True)
        pre, post = list(module._forward_pre_hooks), list(module._forward_hooks)
        assert [pre[0], pre[1], pre[3], len(pre)] == [front.id, early[0].id, late[0].id, 4]
        assert [post[0], post[2], len(post)] == [early[1].id, late[1].id, 3]
        assert list(module._forward_pre_hooks_with_kwargs) == [pre[2]]
        assert list(module._forward_hooks_always_called) == [post[1]]
        tool.stop()
        assert list(module._forward_pre_hooks) == [front.id, early[0].id, late[0].id]
        for handle in (*early, *late, front):
            handle.remove()
        assert [len(getattr(module, name)) for name in TABLES] == [0] * 4


@pytest.mark.parametrize("what", ["cleared", "replaced", "put back"])
def test_stop_works_whatever_the_user_has_done_with_the_tables(debugger: Factory, what: str) -> None:
    tool = debugger(**MIX)
    model = small_model()
    model(torch.ones(2, 4)).sum().backward()
    for _ in range(2):
        tool.start(model)
        shallow = copy.copy(model[0])  # has the same tables
        before = [(module, name, getattr(module, name)) for module in model for name in TABLES]
        for module, name, table in before:
            if what == "cleared":
                table.clear()
            else:
                setattr(module, name, OrderedDict())
        for parameter in model.parameters():
            if what == "cleared":
                parameter._post_accumulate_grad_hooks.clear()
        model(torch.ones(2, 4)).sum().backward()
        tool.stop()
        if what == "put back":
            for module, name, table in before:
                setattr(module, name, table)
        assert_nothing_left([model, shallow])
        assert not any(table for _, _, table in before)
        tool.step()
    assert "Functional.linear.1.backward" in dump_of(tool, 1).data


def test_a_part_that_is_replaced_while_it_is_recorded_is_freed_with_what_its_hooks_hold(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    model = small_model()
    for _ in range(2):  # a parameter has its table of hooks from the first start on
        model[0], held = nn.Linear(4, 4), nn.Linear(1, 1)
        with tool.capture(model):
            pass
        model[0].register_forward_hook(lambda *_, held=held: None)
        model[0].weight.register_post_accumulate_grad_hook(lambda _, held=held: None)
        gone = weakref.ref(held), weakref.ref(model[0]), weakref.ref(model[0].weight)
        tool.start(model)
        del held
        gc.collect()
        gc.disable()
        try:
            model[0] = nn.ReLU()
            assert [reference() for reference in gone] == [None] * 3
        finally:
            gc.enable()
        tool.stop()
        tool.step()


# -- classes with ways of their own


class Forwarding(nn.Module):
    """Registers hooks with its part."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        object.__setattr__(self, "part", nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)

    def register_forward_hook(self, hook: Any, **options: Any) -> Any:
        self.asked.append("after")
        return self.part.register_forward_hook(lambda _, *given: hook(self, *given), **options)

    def register_forward_pre_hook(self, hook: Any, **options: Any) -> Any:
        self.asked.append("before")
        return self.part.register_forward_pre_hook(lambda _, *given: hook(self, *given), **options)


class Refusing(nn.Linear):
    """No attribute of it can be set any more."""

    def __setattr__(self, name: str, value: Any) -> None:
        if vars(self).get("closed"):
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_class_that_registers_hooks_in_its_own_way_is_asked(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    model = nn.Sequential(Forwarding(), nn.ReLU(), Refusing(4, 4))
    model[2].closed = True
    for _ in range(2):
        with tool.capture(model):
            numbers = list(model[0].part._forward_pre_hooks)
            model(torch.ones(2, 4)).sum().backward()
        assert not model[0].part._forward_hooks
        assert not model[0].part._forward_pre_hooks
        assert leftovers([model]) == []
    assert model[0].asked == ["before", "after"] * 2
    assert len(numbers) == 1
    for step in range(2):
        names = [name for name in dump_of(tool, step).data if name.endswith("forward.0")]
        assert names == [f"Module.{name}.forward.0" for name in ("0.Forwarding", "1.ReLU", "2.Refusing")]


def test_a_module_whose_registration_was_replaced_is_asked(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    model = small_model()
    asked = []
    original = model[0].register_forward_hook

    def register(hook: Any, **options: Any) -> RemovableHandle:
        asked.append(hook)
        return original(hook, **options)

    model[0].register_forward_hook = register
    for _ in range(2):
        with tool.capture(model):
            model(torch.ones(2, 4)).sum().backward()
        assert leftovers([model]) == []
    assert len(asked) == 2
    assert "Module.0.Linear.forward.0" in dump_of(tool, 1).data


class Marked(nn.Parameter):
    """A kind of parameter of the user's."""


def test_shared_parameters_and_those_of_other_kinds_are_recorded_at_each_start(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[2].weight = Marked(torch.ones(4, 4))
    model[3].weight.main_grad = torch.zeros(4, 4)
    model[3].bias.requires_grad_(False)
    for step in range(3):
        with tool.capture(model):
            model(torch.ones(2, 4)).sum().backward()
        assert leftovers([model]) == []
        data = dump_of(tool, step).data
        found = {name: " ".join(sorted(data[name])) for name in data if "parameters_grad" in name}
        both = [f"Module.{place}.Linear.parameters_grad.0" for place in range(3)]
        assert found == {**dict.fromkeys(both, "bias weight"), "Module.3.Linear.parameters_grad.0": "weight"}
        assert not any("parameter" in reason for reason in dump_of(tool, step).coverage.get("not_recorded", ()))


def test_parameters_that_come_after_start_are_counted_once_each(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L0")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    for step in range(2):
        with tool.capture(model):
            model[0].weight = nn.Parameter(torch.ones(4, 4))
            model[1].weight = model[0].bias  # is listened to, under the name of the other module
        reasons = dump_of(tool, step).coverage["not_recorded"]
        assert reasons == {"parameter was made, replaced or unfrozen after start()": 1}
        model[1].weight = nn.Parameter(torch.ones(4, 4))
        assert leftovers([model]) == []


# -- copies


def test_a_copy_of_a_hook_does_nothing_with_or_without_a_module() -> None:
    for hook in (VanishingHook(), ModuleHook(small_model())):
        assert copy.deepcopy(hook)(1, 2, 3) is None
        assert copy.copy(hook)(1, 2, 3) is None


def test_a_module_that_begins_further_in_and_does_not_tell_its_end_ends_with_the_one_around(debugger: Factory) -> None:
    class Swallowing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                self.part(x)
            except KeyboardInterrupt:
                return x * 2

    tool = debugger(task="statistics", level="L0")
    model = nn.Sequential(Swallowing(), nn.ReLU())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = model[0].part[0].register_forward_hook(interrupt)
    with tool.capture(model):
        model(torch.ones(2, 4))
    handle.remove()
    dump = dump_of(tool)
    assert [name for name in dump.data if "error" not in name] == [
        "Module.0.Swallowing.forward.0",
        "Module.1.ReLU.forward.0",
    ]
    assert dump.parents["Module.1.ReLU.forward.0"] is None
