"""Guarantee: what a training computes is bitwise the same with and without the tool, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import dynamic_scenarios as scenarios
import pytest

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore

CONFIGS: dict[str, dict[str, Any]] = {
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix, tensors and checksums": {"level": "mix", "task": "tensor", "tensor": {"summary_mode": "md5"}},
    "mix, asynchronous": {"level": "mix", "async_dump": True},
    "structure": {"task": "structure", "level": "mix"},
}


@pytest.mark.parametrize("model", ["convolutions", "transformer", "optimiser"])
def test_losses_gradients_and_parameters_are_those_of_the_run_without_the_tool(
    model: str, fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    found = fresh_mindspore.value(scenarios.trained, model, str(tmp_path), CONFIGS)
    for label in CONFIGS:
        assert found[label] == found["untouched"], label


def test_kernels_that_run_behind_the_program_change_nothing(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    configs = {"mix": CONFIGS["mix, asynchronous"] | {"async_dump": False}}
    found = fresh_mindspore.value(scenarios.trained, "transformer", str(tmp_path), configs, False)
    assert found["mix"] == found["untouched"]


def test_nothing_is_left_installed_after_stop(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    found = fresh_mindspore.value(scenarios.leftovers, str(tmp_path))
    assert found["during"] > 1000
    assert found["after"] == []
    assert (found["hooked"], found["hooks"]) == (6, 0)
    assert found["records"][0] == found["records"][1] == found["coverage"]["records"] > 50


def test_a_recorded_model_is_freed_when_the_user_drops_it(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    assert fresh_mindspore.value(scenarios.unreferenced, str(tmp_path)) == [True, True]


def test_exceptions_of_the_user_go_through_and_capture_goes_on(
    fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    found = fresh_mindspore.value(scenarios.caught, str(tmp_path))
    names = found["dump"]["data"]
    assert "ValueError" in names["Cell.block.SequentialCell.forward.0#error"]["error"]
    assert {"Cell.block.SequentialCell.forward.0", "Cell.block.SequentialCell.backward.0"} <= names.keys()
    assert found["construct"]["Cell.block.0.Dense.forward.0"] == "Cell.block.SequentialCell.forward.0"


def test_a_step_after_an_operator_has_raised_is_complete(fresh_mindspore: ForkedMindSpore, tmp_path: Path) -> None:
    found = fresh_mindspore.value(scenarios.raised, str(tmp_path))
    assert found["raised"] == "For 'Conv2D'"
    assert found["same"]
    assert "Cell.conv.Conv2d.forward.0#error" in found["failed"]
