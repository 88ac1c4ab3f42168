"""Task acc_check while data is collected: which APIs, and what is stored of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from msprobe.pytorch import ConfigError


@pytest.fixture
def collected(debugger: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    """Records and coverage of a small program, under the given section."""

    def run(**section: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        made = debugger(task="acc_check", acc_check=section)
        made.start()
        x = torch.ones(2, 3, requires_grad=True)
        F.layer_norm(F.linear(x, torch.ones(4, 3)), (4,)).sum().backward()
        torch.linalg.norm(x)
        torch.norm(x)
        x + 1
        made.stop()
        made.step()
        (folder,) = tmp_path.glob("dump*/step0/*")
        texts = [(folder / name).read_text("utf-8") for name in ("dump.json", "coverage.json")]
        assert not (folder / "dump_tensor_data").exists(), "the replay makes inputs from statistics"
        return json.loads(texts[0])["data"], json.loads(texts[1])

    return run


def test_without_lists_every_api_is_collected_with_its_statistics(collected: Callable[..., Any]) -> None:
    records, _ = collected()
    assert {"Functional.linear.0.forward", "Functional.linear.0.backward", "Tensor.__add__.0.forward"} <= set(records)
    assert records["Functional.linear.0.forward"]["input_args"][1]["Max"] == 1.0


def test_white_list_names_whole_apis_and_brings_their_backward(collected: Callable[..., Any]) -> None:
    records, coverage = collected(white_list=["linear", "norm", "Tensor.__add__"])
    assert set(records) == {
        "Functional.linear.0.forward",
        "Functional.linear.0.backward",
        "Torch.norm.0.forward",
        "Tensor.__add__.0.forward",
    }
    assert coverage["not_recorded"]["filtered by white_list or black_list"] == 3


def test_black_list_leaves_out_what_it_names(collected: Callable[..., Any]) -> None:
    records, _ = collected(black_list=["linalg.norm", "Functional.layer_norm"])
    assert {name.split(".")[1] for name in records} == {"linear", "sum", "norm", "__add__"}


def test_both_lists_together(collected: Callable[..., Any]) -> None:
    records, _ = collected(white_list=["linear", "sum"], black_list=["Tensor.__add__"])
    assert {name.split(".")[1] for name in records} == {"linear", "sum"}


def test_a_name_in_both_lists_is_refused(debugger: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)acc_check\.black_list\[0\].*a name that is not in white_list too"):
        debugger(task="acc_check", acc_check={"white_list": ["linear"], "black_list": ["linear"]})


def test_a_name_that_no_api_has_gives_the_closest_one(
    debugger: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    debugger(task="acc_check", acc_check={"white_list": ["conv2", "softmax", "__add__", "linalg.norm"]})
    assert caplog.messages == [
        'msprobe: acc_check.white_list: no API of this PyTorch is called "conv2"; did you mean "conv2d"?'
    ]


def test_error_data_path_must_be_a_place_for_files(debugger: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path in ("file", "file/below"):
        with pytest.raises(ConfigError, match=r"(?s)acc_check\.error_data_path.*file is a file, not a folder"):
            debugger(task="acc_check", acc_check={"error_data_path": str(tmp_path / path)})
    debugger(task="acc_check", acc_check={"error_data_path": str(tmp_path / "made" / "later")})
    assert not (tmp_path / "made").exists()
    if os.geteuid() != 0:  # root may write everywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ConfigError, match="may not write to"):
            debugger(task="acc_check", acc_check={"error_data_path": str(tmp_path / "closed")})


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_another_level_is_refused(debugger: Callable[..., Any], level: str) -> None:
    with pytest.raises(ConfigError, match='for task "acc_check": PyTorch at level "L1"'):
        debugger(task="acc_check", level=level)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("overflow_check", 'on PyTorch use task "nan_check" at level "L1"'),
        ("exception_dump", 'on PyTorch use task "tensor"; what was recorded before a crash is kept'),
    ],
)
def test_tasks_of_mindspore_are_refused_with_what_works_instead(
    debugger: Callable[..., Any], task: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        debugger(task=task, level="L2")
    assert said in str(caught.value)
