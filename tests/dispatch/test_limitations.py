"""Each limitation of docs/limitations.md as a test: if one goes away, its row has to go too."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.store import read_dump


def dump_of(tool):
    return read_dump(next(Path(tool._session.config.dump_path, "step0").iterdir()))


def test_a_thread_is_seen_only_while_it_runs_a_module(debugger):
    model = nn.Sequential(nn.Linear(2, 2))

    def work():
        torch.tanh(torch.ones(2))
        model(torch.ones(1, 2))

    tool = debugger(level="L1")
    with tool.capture(model):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert set(dump_of(tool).data) == {"Functional.linear.0.forward"}


def test_only_the_outermost_api_is_a_record(debugger):
    tool = debugger(level="L1", risk_level="ALL")
    with tool.capture():
        F.normalize(torch.ones(2, 2))
    names = [name for name in dump_of(tool).data if not name.startswith("Torch.ones")]
    assert names == ["Functional.normalize.0.forward"]


def test_a_fused_attention_kernel_stays_fused_and_its_inside_unseen(debugger):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 1).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        plain = model(x)
        tool = debugger(level="mix")
        with tool.capture(model):
            recorded = model(x)
    assert torch.equal(plain, recorded)
    dump = dump_of(tool)
    assert "Module.layers.0.TransformerEncoderLayer.forward.0" in dump.data
    assert not any(name.startswith("Functional") for name in dump.data)
    assert any("fused inference module" in reason for reason in dump.coverage["not_recorded"])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_modules_are_named_in_coverage(debugger):
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.ReLU())
    tool = debugger(level="L0")
    with tool.capture(model):
        model(torch.ones(1, 2))
    dump = dump_of(tool)
    assert set(dump.data) == {"Module.1.ReLU.forward.0"}
    assert any("TorchScript" in reason for reason in dump.coverage["not_recorded"])


class Attend(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.transpose(0, 1)) @ v


class Wrap(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x, x) if isinstance(self.inner, Attend) else self.inner(x) + x


def test_one_tensor_as_three_arguments_has_its_sum_at_the_first(debugger):
    model = Wrap(Attend())
    x = torch.randn(3, 3, requires_grad=True)
    tool = debugger(level="L0", precision="high")
    with tool.capture(model):
        model(x * 1.0).sum().backward()
    first, second, third = dump_of(tool).data["Module.inner.Attend.backward.0"]["output"]
    assert second is None
    assert third is None
    assert first["Norm"] == pytest.approx(x.grad.norm().item(), rel=1e-5)


def test_a_module_that_returns_its_input_has_the_gradient_of_all_uses(debugger):
    model = Wrap(nn.Identity())
    x = torch.ones(2, requires_grad=True)
    tool = debugger(level="L0")
    with tool.capture(model):
        model(x * 1.0).sum().backward()
    record = dump_of(tool).data["Module.inner.Identity.backward.0"]
    assert record["input"][0]["Max"] == record["output"][0]["Max"] == 2.0  # 1 through the identity, 1 beside it


def test_a_backward_pass_after_stop_lacks_parameter_gradients_only(debugger):
    model = nn.Sequential(nn.Linear(2, 2))
    tool = debugger(level="mix")
    tool.start(model)
    loss = model(torch.ones(1, 2)).sum()
    tool.stop()
    loss.backward()
    tool.step()
    data = dump_of(tool).data
    assert {"Functional.linear.0.backward", "Module.0.Linear.backward.0"} <= set(data)
    assert not any("parameters_grad" in name for name in data)


def test_operators_applied_by_c_code_have_their_plain_name(debugger):
    tool = debugger(level="L1")
    with tool.capture():
        sum([torch.ones(2), torch.ones(2)])
    assert all(name.startswith("Tensor.add.") for name in dump_of(tool).data)


def test_initialisers_are_recorded_as_themselves(debugger):
    tool = debugger(level="L1")
    parameter = torch.empty(2, 2)
    with tool.capture():
        nn.init.normal_(parameter)
    assert set(dump_of(tool).data) == {"Torch.nn.init.normal_.0.forward"}


def test_the_place_of_a_warning_from_inside_a_torch_function_is_ours_and_its_text_the_same(debugger):
    def place():
        with pytest.warns(UserWarning, match="Implicit dimension choice") as caught:
            F.softmax(torch.ones(2))
        return Path(caught[0].filename).name

    assert place() == "test_limitations.py"
    tool = debugger(level="L1")
    with tool.capture():
        assert place() == "api_mode.py"
    assert place() == "test_limitations.py"


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_that_was_pickled_while_recorded_cannot_be_scripted(debugger):
    model = nn.Sequential(nn.Linear(2, 2))
    tool = debugger(level="L0")
    with tool.capture(model):
        during = pickle.dumps(model)
    loaded = pickle.loads(during)
    assert loaded(torch.ones(1, 2)).shape == (1, 2)
    with pytest.raises(Exception, match="__exit__"):
        torch.jit.script(loaded)
    torch.jit.script(pickle.loads(pickle.dumps(model)))
