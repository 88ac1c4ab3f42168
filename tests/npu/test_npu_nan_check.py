"""Task nan_check on an NPU: the float status register decides, forward and backward."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch_npu
from msprobe.kernels.npu.register_probe import RegisterProbe

from msprobe.pytorch import ConfigError, NaNDetectedError, PrecisionDebugger

if TYPE_CHECKING:
    from aten_emulation import Emulation
    from conftest import FakeCann

pytestmark = pytest.mark.usefixtures("emulation", "built_operators", "debugger")
DEVICE = torch.device("npu:0")


@pytest.fixture(autouse=True)
def new_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake has no version file; a machine of today has this one."""
    monkeypatch.setattr(torch_npu.npu.utils, "get_cann_version", lambda module="CANN": "8.5.0")


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values).to(DEVICE).requires_grad_()


def records(tmp_path: Path) -> dict[str, Any]:
    (file,) = tmp_path.glob("dump0/step0/*/dump.json")
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))["data"]
    return content


def is_nan(tmp_path: Path) -> dict[str, Any]:
    return {name: record["is_nan"] for name, record in records(tmp_path).items()}


def test_each_call_and_each_backward_pass_has_its_own_reading(debugger: Callable[..., Any], tmp_path: Path) -> None:
    made = debugger(task="nan_check")
    made.start()
    good, zero = leaf(1.0, 2.0), leaf(0.0, 4.0)
    torch.exp(good)
    torch.log(leaf(-1.0))
    torch.exp(good)
    (torch.sqrt(zero) * 2).sum().backward()  # the gradient of sqrt(0) is infinite, the values are not
    made.stop()
    made.step()
    found = is_nan(tmp_path)
    assert found == {
        "Torch.exp.0.forward": 0,
        "Torch.log.0.forward": 1,
        "Torch.exp.1.forward": 0,
        "Torch.sqrt.0.forward": 0,
        "Tensor.__mul__.0.forward": 0,
        "Tensor.sum.0.forward": 0,
        "Tensor.sum.0.backward": 0,
        "Tensor.__mul__.0.backward": 0,
        "Torch.sqrt.0.backward": 1,
    }
    assert "is_nan_by" not in records(tmp_path)["Torch.log.0.forward"], "only a value scan is marked"


def test_a_call_of_several_nodes_is_read_as_one(debugger: Callable[..., Any], tmp_path: Path) -> None:
    made = debugger(task="nan_check")
    made.start()
    torch.nn.functional.cross_entropy(leaf(1.0, 2.0).view(1, 2), torch.tensor([1]).to(DEVICE)).backward()
    made.stop()
    made.step()
    found = is_nan(tmp_path)
    assert found["Functional.cross_entropy.0.forward"] == found["Functional.cross_entropy.0.backward"] == 0


def test_inside_the_step_nothing_is_copied_or_waited_for(
    debugger: Callable[..., Any], emulation: Emulation, fake_cann: FakeCann
) -> None:
    made = debugger(task="nan_check")
    made.start()
    x = leaf(1.0, 2.0)
    torch.exp(x).sum().backward()  # the buffer is made
    here = threading.get_native_id()
    before = fake_cann.calls("synchronise", here), emulation.waits[here]
    reads = fake_cann.calls("status_read")
    for _ in range(5):
        torch.exp(x).sum().backward()
    assert (fake_cann.calls("synchronise", here), emulation.waits[here]) == before
    assert fake_cann.calls("status_read") == reads + 5 * 4
    made.stop()


def test_a_call_on_the_host_is_scanned_and_marked(debugger: Callable[..., Any], tmp_path: Path) -> None:
    made = debugger(task="nan_check")
    made.start()
    torch.log(torch.tensor([-1.0]))
    torch.log(leaf(1.0))
    made.stop()
    made.step()
    first, second = records(tmp_path).values()
    assert (first["is_nan"], first["is_nan_by"]) == (1, "value scan")
    assert second["is_nan"] == 0
    assert "is_nan_by" not in second


def test_a_named_api_raises_in_forward_and_in_backward(
    debugger: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = debugger(task="nan_check", nan_check={"tensor_list": ["SQRT"]})
    made.start()
    torch.log(leaf(-1.0))
    root = torch.sqrt(leaf(0.0, 4.0))
    with pytest.raises(NaNDetectedError, match=r"Torch\.sqrt\.0\.backward: the float status register was set"):
        root.sum().backward()
    with pytest.raises(NaNDetectedError, match=r"Torch\.sqrt\.1\.forward") as caught:
        torch.sqrt(leaf(-1.0))
    made.stop()
    kept = {file: torch.load(Path(caught.value.folder) / file, weights_only=True) for file in caught.value.files}
    assert next(iter(kept.values())).tolist() == [-1.0]
    made.step()
    assert is_nan(tmp_path)["Torch.log.0.forward"] == 1, "an API that is not named goes on"


def test_readings_go_on_while_earlier_ones_are_fetched() -> None:
    probe = RegisterProbe(DEVICE, rows=2)
    negative, fine = leaf(-1.0).detach(), leaf(1.0).detach()
    for value in (negative, fine, negative):
        probe.clear()
        value.log()
        probe.read_into_next_slot()
    taken = probe.take()
    probe.clear()
    fine.log()
    assert probe.read_into_next_slot() == 0
    assert taken.fetch() == [True, False, True]
    assert probe.fetch() == [False]


def test_each_missing_condition_has_its_own_message(
    debugger: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INF_NAN_MODE_FORCE_DISABLE")
    monkeypatch.setattr(torch_npu.npu.utils, "get_cann_version", lambda module="CANN": "8.3.RC1")
    with pytest.raises(ConfigError) as caught:
        debugger(task="nan_check")
    first, second = (problem.hint for problem in caught.value.problems)
    assert "start the process with INF_NAN_MODE_FORCE_DISABLE=1" in first
    assert "CANN 8.3.RC1 is too old" in second
    with pytest.raises(ConfigError, match='for task "nan_check": PyTorch at level "L1"'):
        debugger(task="nan_check", level="L0")
    assert PrecisionDebugger._instance is None
