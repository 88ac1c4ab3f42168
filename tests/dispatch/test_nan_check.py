"""Task nan_check where there is no NPU: outputs are scanned, forward and backward."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from msprobe.pytorch import ConfigError, NaNDetectedError

NAN, INF = float("nan"), float("inf")


def finish(debugger: Any, tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """End the step; its records and its coverage."""
    debugger.stop()
    debugger.step()
    (folder,) = tmp_path.glob("dump0/step0/*")
    data = json.loads((folder / "dump.json").read_text("utf-8"))["data"]
    return data, json.loads((folder / "coverage.json").read_text("utf-8"))


def verdicts(records: dict[str, Any]) -> dict[str, Any]:
    return {name: record["is_nan"] for name, record in records.items()}


def test_every_record_says_whether_its_outputs_hold_nan_or_inf(debugger: Callable[..., Any], tmp_path: Path) -> None:
    made = debugger(task="nan_check")
    made.start()
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    (torch.sqrt(x) * 2).sum().backward()
    torch.div(x, 0)
    made.stop()
    records, coverage = finish(made, tmp_path)
    assert verdicts(records) == {
        "Torch.sqrt.0.forward": 0,
        "Tensor.__mul__.0.forward": 0,
        "Tensor.sum.0.forward": 0,
        "Tensor.sum.0.backward": 0,
        "Tensor.__mul__.0.backward": 0,
        "Torch.sqrt.0.backward": 1,
        "Torch.div.0.forward": 1,
    }
    assert {record["is_nan_by"] for record in records.values()} == {"value scan"}
    assert coverage["notes"] == {"is_nan by": {"value scan": 7}}


def test_records_hold_no_statistics(debugger: Callable[..., Any], tmp_path: Path) -> None:
    made = debugger(task="nan_check")
    made.start()
    torch.exp(torch.ones(2, 3))
    (record,) = finish(made, tmp_path)[0].values()
    entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "requires_grad": False}
    assert record == {
        "input_args": [entry],
        "input_kwargs": {},
        "output": [entry],
        "is_nan": 0,
        "is_nan_by": "value scan",
    }


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: torch.cat((torch.ones(2), bad)),
        lambda bad: bad.chunk(2),
        lambda bad: torch.ones(2).mul_(bad),
        lambda bad: torch.ones(3).__setitem__(slice(0, 2), bad),
        torch.sort,
        lambda bad: torch.add(bad.to(torch.bfloat16), 1),
        lambda bad: torch.view_as_complex(bad.repeat(2, 1)) * 1,
        lambda bad: torch.add(bad[:1], 0),
    ],
)
def test_nan_and_inf_are_found_wherever_an_api_puts_them(
    debugger: Callable[..., Any], tmp_path: Path, call: Callable[[torch.Tensor], Any]
) -> None:
    for bad in (torch.tensor([NAN, 1.0]), torch.tensor([-INF, 1.0])):
        made = debugger(task="nan_check", risk_level="ALL", dump_path=str(tmp_path / "dump0"))
        made.start()
        call(bad)
        records = finish(made, tmp_path)[0]
        assert list(verdicts(records).values())[-1] == 1
        made._session.close()


def test_integers_and_extreme_floats_are_neither(debugger: Callable[..., Any], tmp_path: Path) -> None:
    made = debugger(task="nan_check")
    made.start()
    torch.add(torch.tensor([2**62]), 0)
    torch.add(torch.tensor([torch.finfo(torch.float32).max]), 0)
    torch.add(torch.empty(0), 0)
    torch.add(torch.empty(3, device="meta"), 0)
    assert set(verdicts(finish(made, tmp_path)[0]).values()) == {0}


def test_list_and_data_mode_limit_what_is_checked(debugger: Callable[..., Any], tmp_path: Path) -> None:
    made = debugger(task="nan_check", nan_check={"list": ["exp"], "data_mode": ["backward", "output"]})
    made.start()
    torch.exp(torch.sqrt(torch.ones(2, requires_grad=True))).sum().backward()
    records = finish(made, tmp_path)[0]
    assert list(records) == ["Torch.exp.0.backward"]
    assert set(records["Torch.exp.0.backward"]) == {"output", "is_nan", "is_nan_by"}


@pytest.fixture
def stopping(debugger: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A started debugger that raises at one API; the working directory is ``tmp_path``."""

    def start(name: str, **section: Any) -> Any:
        monkeypatch.chdir(tmp_path)
        made = debugger(task="nan_check", nan_check={"tensor_list": [name], **section})
        made.start()
        return made

    return start


def kept(error: NaNDetectedError) -> dict[str, Any]:
    return {file: torch.load(Path(error.folder) / file, weights_only=True).tolist() for file in error.files}


def test_a_named_api_raises_after_its_tensors_were_written(stopping: Callable[..., Any], tmp_path: Path) -> None:
    made = stopping("TRUEDIV")
    x = torch.tensor([1.0, 0.0])
    torch.log(torch.tensor([-1.0]))  # not named: goes on
    assert (x / 1).tolist() == [1.0, 0.0]
    with pytest.raises(NaNDetectedError) as caught:
        x / 0
    error = caught.value
    assert kept(error)["Tensor.__truediv__.1.forward.input.0.pt"] == [1.0, 0.0]
    assert str(kept(error)["Tensor.__truediv__.1.forward.output.0.pt"]) == "[inf, nan]"
    assert Path(error.folder).relative_to(tmp_path).parts[:2] == ("extra-info", "step0")
    assert str(error).startswith("Tensor.__truediv__.1.forward: NaN or Inf in its outputs; its inputs and outputs are")
    assert isinstance(error, FloatingPointError)
    (file,) = tmp_path.glob("dump0/step0/*/dump.json")
    assert json.loads(file.read_text("utf-8"))["data"]["Tensor.__truediv__.1.forward"]["is_nan"] == 1, "at once"
    torch.exp(x)
    assert "Torch.exp.0.forward" in finish(made, tmp_path)[0], "whoever catches it goes on with a working capture"


def test_inputs_are_kept_as_they_were_before_an_in_place_call(stopping: Callable[..., Any], tmp_path: Path) -> None:
    made = stopping("div_")
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(NaNDetectedError) as caught:
        x.div_(other=torch.zeros(2))
    assert kept(caught.value) == {
        "Tensor.div_.0.forward.input.0.pt": [1.0, 2.0],
        "Tensor.div_.0.forward.kwargs.other.pt": [0.0, 0.0],
        "Tensor.div_.0.forward.output.0.pt": [INF, INF],
    }
    finish(made, tmp_path)


def test_a_backward_pass_raises_out_of_backward(stopping: Callable[..., Any], tmp_path: Path) -> None:
    made = stopping("sqrt")
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    loss = torch.sqrt(x).sum()
    with pytest.raises(NaNDetectedError, match=r"Torch\.sqrt\.0\.backward") as caught:
        loss.backward()
    assert kept(caught.value) == {
        "Torch.sqrt.0.backward.input.0.pt": [1.0, 1.0],
        "Torch.sqrt.0.backward.output.0.pt": [INF, 0.25],
    }
    torch.ones(2, requires_grad=True).exp().sum().backward()
    records = finish(made, tmp_path)[0]
    assert records["Torch.sqrt.0.backward"]["is_nan"] == 1
    assert records["Tensor.exp.0.backward"]["is_nan"] == 0


def test_a_backward_pass_of_several_nodes_raises_once(stopping: Callable[..., Any], tmp_path: Path) -> None:
    made = stopping("cross_entropy")
    logits = torch.tensor([[1.0, 2.0]], requires_grad=True)
    loss = F.cross_entropy(logits, torch.tensor([1]))
    with pytest.raises(NaNDetectedError, match=r"Functional\.cross_entropy\.0\.backward") as caught:
        (loss * INF).backward()
    assert set(kept(caught.value)) == {
        "Functional.cross_entropy.0.backward.input.0.pt",
        "Functional.cross_entropy.0.backward.output.0.pt",
    }
    finish(made, tmp_path)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_call_raises_out_of_backward(
    stopping: Callable[..., Any], tmp_path: Path, reentrant: bool
) -> None:
    made = stopping("log.0.forward#recompute")
    x = torch.ones(2, requires_grad=True)
    loss = checkpoint(lambda value: torch.log(value * -1).exp(), x, use_reentrant=reentrant).sum()
    with pytest.raises(NaNDetectedError, match=r"Torch\.log\.0\.forward#recompute"):
        loss.backward()
    finish(made, tmp_path)


def test_what_was_written_before_is_named_when_the_disk_refuses(stopping: Callable[..., Any], tmp_path: Path) -> None:
    made = stopping("log")
    (tmp_path / "extra-info").write_text("in the way", encoding="utf-8")
    with pytest.raises(NaNDetectedError, match=r"could not be written to .*extra-info") as caught:
        torch.log(torch.tensor([-1.0]))
    assert caught.value.files == ()
    assert any("extra-info of Torch.log.0.forward" in text for text in finish(made, tmp_path)[1]["failures"])


def test_the_exception_leaves_no_reference_cycle(stopping: Callable[..., Any], tmp_path: Path) -> None:
    made = stopping("log")
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(2):
            with contextlib.suppress(NaNDetectedError):
                torch.log(torch.tensor([-1.0], requires_grad=True))
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, (torch.Tensor, NaNDetectedError))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    finish(made, tmp_path)


def test_results_and_gradients_are_those_of_the_run_without_the_tool(debugger: Callable[..., Any]) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        x = torch.randn(3, 4, requires_grad=True)
        loss = model(x).square().mean()
        loss.backward()
        return [loss.detach(), x.grad, *(parameter.grad for parameter in model.parameters()), torch.rand(1)]

    alone = train()
    made = debugger(task="nan_check", nan_check={"tensor_list": ["linear"]})
    made.start()
    watched = train()
    made.stop()
    assert all(torch.equal(first, second) for first, second in zip(alone, watched, strict=True))


@pytest.mark.parametrize("level", ["L0", "L2", "mix", "debug"])
def test_another_level_is_refused_with_what_works(debugger: Callable[..., Any], level: str) -> None:
    with pytest.raises(ConfigError, match='for task "nan_check": PyTorch at level "L1"'):
        debugger(task="nan_check", level=level)


def test_data_mode_without_outputs_is_refused(debugger: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"nan_check\.data_mode"):
        debugger(task="nan_check", nan_check={"data_mode": ["forward", "input"]})
