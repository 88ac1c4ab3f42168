"""What the encoder launches on ``npu:0``, which kernel it counts, and that it waits for nothing before ``resolve``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import torch
from msprobe.kernels.npu import extension

from msprobe.measure.backends import counts
from msprobe.measure.device_streams import CAPTURING
from msprobe.measure.encode import ValueEncoder

if TYPE_CHECKING:
    from aten_emulation import Emulation
    from conftest import FakeCann

pytestmark = [pytest.mark.usefixtures("emulation"), pytest.mark.filterwarnings("ignore::UserWarning")]
MODES = ("statistics", "md5", "xor", "hash")


@pytest.fixture
def without_operators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A folder in which nobody has built the operators."""
    monkeypatch.setenv(extension.FOLDER_VARIABLE, str(tmp_path))
    extension.loaded.cache_clear()
    yield
    monkeypatch.undo()
    extension.loaded.cache_clear()


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    base = torch.randn(60, 70, generator=generator)
    strided = [base.t(), base[:, ::3], base.view(-1)[1:], base[0, 0], base[:1].expand(5, 70)]
    dtypes = [base.to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool)]
    return [base, *strided, *dtypes, torch.empty(0, 3), base[:, :37].bfloat16().contiguous()]


def read(entries: Any) -> list[dict[str, Any]]:
    return json.loads(orjson.dumps(entries))


@pytest.mark.parametrize("mode", MODES[1:])
def test_checksums_are_those_of_the_cpu(mode: str) -> None:
    encoder = ValueEncoder(summary_mode=mode)
    found = encoder.encode_sequence([tensor.npu() for tensor in tensors()])
    encoder.resolve()
    expected = read(ValueEncoder(summary_mode=mode).encode_sequence(tensors()))
    assert [entry["md5"] for entry in found] == [entry["md5"] for entry in expected]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_waits_before_resolve(mode: str, emulation: Emulation, fake_cann: FakeCann) -> None:
    def waits() -> tuple[int, int, int]:
        return emulation.waits.total(), fake_cann.calls("synchronise"), fake_cann.calls("copy_to_host")

    encoder = ValueEncoder(summary_mode=mode)
    inputs = [tensor.npu() for tensor in tensors()]
    before = waits()
    encoder.encode_sequence(inputs)
    assert waits() == before
    encoder.resolve()
    assert waits() > before


@pytest.mark.usefixtures("built_operators")
def test_xor_runs_by_the_compiled_operator_and_is_counted(emulation: Emulation) -> None:
    encoder = ValueEncoder(summary_mode="xor")
    tensor = torch.randint(-9, 9, (100_003,)).npu()
    before = counts().get("npu", {}).get("npu operator xor", 0)
    emulation.calls.clear()
    encoder.encode(tensor)
    assert sum(emulation.calls.values()) <= math.log2(100_003) + 8, emulation.calls
    assert counts()["npu"]["npu operator xor"] == before + 1


@pytest.mark.usefixtures("without_operators")
def test_without_the_operator_torch_operations_are_counted_with_the_reason(emulation: Emulation) -> None:
    encoder = ValueEncoder(summary_mode="xor")
    before = counts().get("npu", {}).get("torch xor", 0)
    emulation.calls.clear()
    entry = encoder.encode(torch.arange(100_003).npu())
    assert sum(emulation.calls.values()) <= math.log2(100_003) + 8, emulation.calls
    encoder.resolve()
    assert entry["md5"] == read([ValueEncoder(summary_mode="xor").encode(torch.arange(100_003))])[0]["md5"]
    assert counts()["npu"]["torch xor"] == before + 1
    assert any("python -m msprobe.kernels.npu.build" in reason for reason in counts()["fallbacks"]["npu"])


def test_the_reason_why_statistics_are_torch_operations_is_counted() -> None:
    encoder = ValueEncoder()
    encoder.encode(torch.ones(3).npu())
    assert counts()["npu"]["torch statistics"] > 0
    assert counts()["fallbacks"]["npu"]["the Triton kernels are for CUDA and ROCm devices"] > 0


def test_a_library_that_does_not_load_is_a_reason_and_no_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without_operators: None
) -> None:
    from msprobe.kernels.npu.availability import availability
    from msprobe.kernels.npu.build import library_name

    assert without_operators is None
    (tmp_path / library_name()).write_bytes(b"no library")
    encoder = ValueEncoder(summary_mode="xor")
    entry = encoder.encode(torch.arange(40).npu())
    encoder.resolve()
    assert entry["md5"] == read([ValueEncoder(summary_mode="xor").encode(torch.arange(40))])[0]["md5"]
    found = availability()
    assert found.operators is None
    assert "does not load" in found.reasons[0]
    monkeypatch.setenv("MSPROBE_NO_NATIVE", "1")
    assert "switched off by MSPROBE_NO_NATIVE=1" in str(extension.find()[1])


@pytest.mark.parametrize("mode", MODES)
def test_while_a_graph_is_captured_nothing_is_launched_and_the_entry_says_so(
    mode: str, emulation: Emulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[str] = []
    encoder = ValueEncoder(task="tensor", summary_mode=mode, write_tensor=lambda name, _: files.append(name))
    tensor = torch.ones(5, 6).npu()
    emulation.calls.clear()
    monkeypatch.setattr(torch.npu, "is_current_stream_capturing", lambda: True)
    found = encoder.encode_sequence([tensor, tensor.t()], "name")
    encoder.resolve()
    assert not emulation.calls
    assert not files
    assert [entry["reason"] for entry in found] == [CAPTURING] * 2
    assert encoder.null_reasons == {CAPTURING: 2}
    assert all(entry.get("Max") is None and entry.get("md5") is None for entry in found)
