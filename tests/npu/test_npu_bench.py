"""bench_path on an NPU: checksums that are still on the device are waited for before they are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("emulation", "debugger")


def test_checksums_of_device_tensors_are_compared(debugger: Callable[..., Any], tmp_path: Path) -> None:
    def counts(name: str, factor: float, **section: Any) -> dict[str, int]:
        made = debugger(task="tensor", dump_path=str(tmp_path / name), tensor={"summary_mode": "md5", **section})
        x, y = torch.tensor([1.0, 2.0]).to("npu:0"), torch.tensor([factor]).to("npu:0")
        made.start()
        torch.exp(x)
        torch.mul(x, y)
        made.stop()
        made.step()
        made._session.close()
        files = list((tmp_path / name / "step0").glob("*/bench_differences.json"))
        return json.loads(files[0].read_text("utf-8"))["counts"] if files else {}

    assert counts("bench", 2.0) == {}
    options = {"bench_path": str(tmp_path / "bench"), "diff_nums": -1}
    assert counts("same", 2.0, **options) == {"equal": 2}
    assert counts("other", 3.0, **options) == {"equal": 1, "inputs differ": 1}


def test_an_output_that_differs_on_the_device_is_stored(debugger: Callable[..., Any], tmp_path: Path) -> None:
    def run(name: str, seed: int, **section: Any) -> Path:
        made = debugger(task="tensor", dump_path=str(tmp_path / name), tensor={"summary_mode": "md5", **section})
        torch.manual_seed(seed)
        x = torch.full((16,), 0.5).to("npu:0")
        made.start()
        torch.bernoulli(x)
        made.stop()
        made.step()
        made._session.close()
        return next((tmp_path / name / "step0").iterdir())

    run("bench", 0)
    folder = run("now", 1, bench_path=str(tmp_path / "bench"))
    (difference,) = json.loads((folder / "bench_differences.json").read_text("utf-8"))["differences"]
    stored = [torch.load(folder / "dump_tensor_data" / file, map_location="cpu") for file in difference["files"]]
    assert stored[0].tolist() == [0.5] * 16
    assert set(stored[1].tolist()) == {0.0, 1.0}
