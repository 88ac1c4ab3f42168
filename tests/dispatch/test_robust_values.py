"""Whatever a user passes through torch: the call works as without the tool, is recorded, and later calls are too."""

from __future__ import annotations

import dataclasses
import json
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.store import read_dump


def dump_of(debugger, step=0):
    folder = next(Path(debugger._session.config.dump_path, f"step{step}").iterdir())
    for name in ("dump.json", "construct.json", "stack.json"):
        json.loads((folder / name).read_text())  # every file is complete JSON
    return read_dump(folder)


def quantised():
    return torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)


class Subclass(torch.Tensor):
    pass


def jagged():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


VALUES = {
    "sparse_coo": lambda: torch.mul(torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,)), 2.0),
    "sparse_csr": lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0]).matmul(torch.ones(2, 1)),
    "quantised": lambda: torch.dequantize(quantised()),
    "nested_jagged": lambda: jagged() * 2,
    "nested_strided": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2,
    "uint16": lambda: torch.eq(torch.arange(4).to(torch.uint16), torch.ones(4, dtype=torch.uint16)),
    "float8": lambda: torch.abs(torch.arange(6.0)).to(torch.float8_e4m3fn),
    "meta": lambda: torch.add(torch.empty(3, device="meta"), 1),
    "complex": lambda: torch.exp(torch.tensor([1 + 2j, 3j])),
    "complex_zero_dim": lambda: torch.sin(torch.tensor(3 + 4j)),
    "conjugate_view": lambda: torch.exp(torch.tensor([1 + 2j]).conj()),
    "empty": lambda: torch.exp(torch.empty(0, 3)),
    "zero_dim": lambda: torch.exp(torch.tensor(-1.0)),
    "vmap": lambda: torch.func.vmap(torch.exp)(torch.ones(3, 2)),
    "functorch_grad": lambda: torch.func.grad(lambda x: torch.exp(x).sum())(torch.ones(3)),
    "vmap_of_grad": lambda: torch.func.vmap(torch.func.grad(lambda x: torch.exp(x).sum()))(torch.ones(3, 2)),
    "jvp": lambda: torch.func.jvp(torch.exp, (torch.ones(3),), (torch.ones(3),)),
    "huge_int": lambda: torch.add(torch.ones(2), 2**31),
    "complex_scalar": lambda: torch.mul(torch.ones(2), 1 + 2j),
    "infinity_scalar": lambda: torch.clamp_max(torch.ones(2), float("inf")),
    "nan": lambda: torch.exp(torch.tensor([float("nan"), 1.0])),
    "subclass": lambda: torch.exp(torch.ones(2).as_subclass(Subclass)),
    "expanded": lambda: torch.exp(torch.ones(1, 3).expand(4, 3)),
}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("kind", VALUES)
def test_unusual_tensors_are_recorded_and_do_not_disturb_what_follows(debugger, kind, task):
    plain = VALUES[kind]()
    tool = debugger(level="L1", task=task, risk_level="ALL")
    tool.start()
    recorded = VALUES[kind]()
    torch.tanh(torch.ones(2))
    tool.stop()
    tool.step()
    dump = dump_of(tool)
    assert type(recorded) is type(plain)
    assert dump.coverage["failures"] == []
    assert "Torch.tanh.0.forward" in dump.data
    assert len(dump.data) > 1


def test_float8_storage_of_the_user_is_not_touched(debugger):
    tool = debugger(level="L1", task="tensor", risk_level="ALL")
    tool.start()
    value = torch.arange(6.0).to(torch.float8_e4m3fn)
    tool.stop()
    assert value.untyped_storage().nbytes() == 6
    assert value.float().tolist() == [0, 1, 2, 3, 4, 5]


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Output:
    first: torch.Tensor
    label: str


class Returning(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


def cyclic(x):
    box = [x]
    box.append(box)
    return box


OUTPUTS = {
    "tuple_keys": lambda x: {(1, 2): x, 3: x, None: x},
    "cyclic_list": cyclic,
    "dataclass": lambda x: Output(x, "text"),
    "namedtuple": lambda x: Pair(x, x + 1),
    "none": lambda x: None,
    "nested": lambda x: {"a": [x, (x, {"b": x})]},
    "generator": lambda x: (part for part in (x,)),
    "object": lambda x: object(),
    "set": lambda x: {1, 2},
    "deep": lambda x: [[[[[[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]]]]]],
    "surrogate_key": lambda x: {"bad \ud800 key": x},
    "path_key": lambda x: {"../../escape": x},
}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_unusual_module_results_are_recorded(debugger, kind, task):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd = Returning(OUTPUTS[kind])
            self.last = nn.Linear(2, 2)

        def forward(self, x):
            self.odd(x)
            return self.last(x)

    model = Net()
    tool = debugger(level="mix", task=task)
    with tool.capture(model):
        model(torch.ones(1, 2)).sum().backward()
    dump = dump_of(tool)
    assert dump.coverage["failures"] == []
    assert {"Module.odd.Returning.forward.0", "Module.last.Linear.forward.0"} <= set(dump.data)
    assert not list(Path(tool._session.config.dump_path).parent.glob("escape*"))


def test_a_caught_error_in_an_api_keeps_its_name_for_the_next_call(debugger):
    tool = debugger(level="L1")
    tool.start()
    torch.tanh(torch.ones(2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.matmul(torch.ones(2, 3), torch.ones(7, 7))
    torch.matmul(torch.ones(2, 3), torch.ones(3, 2))
    torch.exp(torch.ones(2))
    tool.stop()
    tool.step()
    data = dump_of(tool).data
    assert list(data) == [
        "Torch.tanh.0.forward",
        "Torch.matmul.0.forward#error",
        "Torch.matmul.0.forward",
        "Torch.exp.0.forward",
    ]
    assert "shapes cannot be multiplied" in data["Torch.matmul.0.forward#error"]["error"]
    assert "output" in data["Torch.matmul.0.forward"]


def test_a_caught_error_in_a_module_leaves_the_hierarchy_right(debugger):
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            raise ValueError(f"refused after {self.inner(x).shape}")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.failing = Failing()
            self.after = nn.Linear(2, 2)

        def forward(self, x):
            try:
                self.failing(x)
            except ValueError:
                return self.after(x)

    model = Net()
    tool = debugger(level="mix")
    with tool.capture(model):
        model(torch.ones(1, 2))
    dump = dump_of(tool)
    assert "Module.failing.Failing.forward.0#error" in dump.data
    assert dump.data["Module.failing.Failing.forward.0#error"]["error"].startswith("ValueError: refused after")
    assert dump.parents["Module.after.Linear.forward.0"] is None
    assert dump.parents["Functional.linear.1.forward"] == "Module.after.Linear.forward.0"


def test_an_interrupt_inside_a_module_does_not_leave_it_open(debugger):
    class Interrupted(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Sequential(Interrupted()), nn.Linear(2, 2))
    tool = debugger(level="mix")
    with tool.capture(model):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 2))
        model[1](torch.ones(1, 2))
    dump = dump_of(tool)
    assert dump.parents["Module.1.Linear.forward.0"] is None


def test_names_imported_before_the_debugger_are_seen(debugger):
    early_tanh, early_relu = torch.tanh, F.relu
    tool = debugger(level="L1")
    tool.start()
    early_tanh(torch.ones(2))
    early_relu(torch.ones(2))
    torch.fft.rfft(torch.ones(4))
    torch.linalg.norm(torch.ones(4))
    torch.special.erf(torch.ones(4))
    nn.LSTM(2, 3)(torch.ones(1, 1, 2))
    tool.stop()
    tool.step()
    assert set(dump_of(tool).data) >= {
        "Torch.tanh.0.forward",
        "Functional.relu.0.forward",
        "Torch.fft.rfft.0.forward",
        "Torch.linalg.norm.0.forward",
        "Torch.special.erf.0.forward",
        "VF.lstm.0.forward",
    }


def test_device_context_and_default_device_are_respected(debugger):
    tool = debugger(level="L1", risk_level="ALL")
    tool.start()
    with torch.device("meta"):
        assert torch.empty(3).device.type == "meta"
        assert (torch.ones(3) + 1).device.type == "meta"
    tool.stop()
    tool.step()
    assert "Tensor.__add__.0.forward" in dump_of(tool).data


def test_values_are_those_before_an_in_place_call_and_after_it(debugger):
    tool = debugger(level="L1")
    tool.start()
    x = torch.ones(3)
    x.add_(10)
    tool.stop()
    tool.step()
    record = dump_of(tool).data["Tensor.add_.0.forward"]
    assert record["input_args"][0]["Max"] == 1.0
    assert record["output"][0]["Max"] == 11.0
