"""The float status register: stream-ordered clears and reads, fetched together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch_npu  # noqa: F401 - registers the device
from msprobe.kernels.npu import extension
from msprobe.kernels.npu.register_probe import RegisterError, RegisterProbe

if TYPE_CHECKING:
    from aten_emulation import Emulation
    from conftest import FakeCann

pytestmark = pytest.mark.usefixtures("emulation", "built_operators")
DEVICE = torch.device("npu:0")


@pytest.fixture(params=["compiled", "runtime"])
def probe(request: pytest.FixtureRequest) -> RegisterProbe:
    return RegisterProbe(DEVICE, rows=4, backend=request.param)


def on_device(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(DEVICE)


def test_a_clean_forward_leaves_the_register_clear(probe: RegisterProbe) -> None:
    layer, batch = torch.nn.Linear(4, 4).to(DEVICE), torch.randn(2, 4).to(DEVICE)
    probe.clear()
    torch.nn.functional.gelu(layer(batch)).sum().backward()
    probe.read_into_next_slot()
    assert probe.fetch() == [False]


def test_nan_and_overflow_set_the_register_until_it_is_cleared(probe: RegisterProbe) -> None:
    negative, large, fine = on_device(-1.0), on_device(60000.0, dtype=torch.float16), on_device(2.0)
    calls = [fine.log, negative.log, fine.exp, lambda: large * 3]
    for index, call in enumerate(calls):
        probe.clear()
        call()
        assert probe.read_into_next_slot() == index
    assert probe.fetch() == [False, True, False, True]
    negative.log()
    fine.log()
    probe.read_into_next_slot()
    assert probe.fetch() == [True], "the register keeps what happened until it is cleared"


def test_an_overflow_in_backward_is_read_in_backward(probe: RegisterProbe) -> None:
    leaf = on_device(0.0).requires_grad_()
    result = leaf.sqrt()
    read = []
    result.grad_fn.register_prehook(lambda _: probe.clear())
    result.grad_fn.register_hook(lambda *_: read.append(probe.read_into_next_slot()))
    result.backward()
    assert read == [0]
    assert probe.fetch() == [True], "the gradient of sqrt(0) is infinite"


def test_readings_copy_nothing_and_one_fetch_copies_once(
    probe: RegisterProbe, emulation: Emulation, fake_cann: FakeCann
) -> None:
    fine, negative = on_device(2.0), on_device(-1.0)

    def traffic() -> tuple[int, ...]:
        counters = ("synchronise", "copy_to_host", "copy_to_device")
        return (emulation.calls["to_host"], emulation.calls["to_device"], *(fake_cann.calls(name) for name in counters))

    before = traffic()
    reads = fake_cann.calls("status_read")
    for value in (fine, negative, negative):
        probe.clear()
        value.log()
        probe.read_into_next_slot()
    assert traffic() == before
    assert fake_cann.calls("status_read") == reads + 3
    assert probe.fetch() == [False, True, True]
    assert traffic() == (before[0] + 1, *before[1:])


def test_more_readings_than_a_buffer_holds_come_back_in_order(probe: RegisterProbe) -> None:
    fine, negative = on_device(2.0), on_device(-1.0)
    expected = [index % 3 == 0 for index in range(11)]
    for _ in range(2):  # the second time in buffers that exist already
        for index, wanted in enumerate(expected):
            probe.clear()
            (negative if wanted else fine).log()
            assert probe.read_into_next_slot() == index
        assert probe.fetch() == expected
    assert probe.fetch() == []


def test_a_probe_made_in_inference_mode_works_outside_it() -> None:
    with torch.inference_mode():
        probe = RegisterProbe(DEVICE)
    probe.clear()
    on_device(-1.0).log()
    probe.read_into_next_slot()
    assert probe.fetch() == [True]


def test_the_compiled_operators_come_first_and_the_runtime_serves_without_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert RegisterProbe(DEVICE).backend == "compiled"
    monkeypatch.setattr(extension, "operators", lambda: None)
    assert RegisterProbe(DEVICE).backend == "runtime"
    monkeypatch.setenv(extension.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(
        RegisterError, match=r"npu:0: NPU operators: not built .*python -m msprobe\.kernels\.npu\.build"
    ):
        RegisterProbe(DEVICE, backend="compiled")


def test_the_compiled_operator_checks_its_arguments() -> None:
    operators = extension.operators()
    assert operators is not None
    table = torch.zeros(4, dtype=torch.int64).to(DEVICE)
    for index in (-1, 4):
        with pytest.raises(IndexError, match=rf"index {index} of a table of 4 addresses"):
            operators.read_float_status(table, index)
    with pytest.raises(RuntimeError, match="expected a contiguous int64 table"):
        operators.read_float_status(table.int(), 0)


def test_readings_wait_in_the_task_queue_like_any_operator(fake_cann: FakeCann) -> None:
    script = Path(__file__).parent / "queued_readings.py"
    done = subprocess.run(
        [sys.executable, script, fake_cann.folder],
        env=fake_cann.environment(TASK_QUEUE_ENABLE="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str([0] * 50 + [1])
