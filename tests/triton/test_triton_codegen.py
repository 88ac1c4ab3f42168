"""The kernels compile for NVIDIA and AMD devices and read 16 bytes per thread where they can; availability is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

ROOT = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python without the interpreter mode of this process."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture
def cuda(compiled: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return compiled("cuda")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_cuda_statistics_load_vectors(cuda: dict[str, Any], dtype: str) -> None:
    assert cuda[f"statistics {dtype}"]["loads"]["ld.global.v4.b32"] >= 8


@pytest.mark.parametrize(
    ("case", "load"),
    [
        ("table bfloat16", "ld.global.v4.b32"),
        ("statistics bfloat16 PITCHED=True VECTOR=8", "ld.global.v4.b32"),
        ("nonfinite bfloat16", "ld.global.v4.b32"),
        ("crc32", "ld.global.v4.b32"),
        ("statistics float64", "ld.global.v2.b64"),
        ("statistics int64", "ld.global.v2.b64"),
        ("xor64 ALIGN=16", "ld.global.v2.b64"),
        ("hash64 ALIGN=16", "ld.global.v2.b64"),
    ],
)
def test_cuda_kernels_load_vectors(cuda: dict[str, Any], case: str, load: str) -> None:
    assert cuda[case]["loads"].get(load, 0) >= 4


def test_cuda_does_not_load_vectors_from_odd_addresses(cuda: dict[str, Any]) -> None:
    for case in ("statistics bfloat16 ALIGN=2", "xor64 ALIGN=1", "hash64 ALIGN=1"):
        assert not any(".v" in name for name in cuda[case]["loads"]), case


def test_amd_kernels_load_vectors_and_keep_everything_in_registers(
    compiled: Callable[[str], dict[str, Any]],
) -> None:
    hip = compiled("hip")
    assert hip["statistics float32"]["loads"]["global_load_dwordx4"] >= 8
    assert hip["statistics bfloat16"]["loads"]["global_load_dwordx2"] >= 8
    assert hip["hash64 ALIGN=16"]["loads"]["global_load_dwordx4"] >= 8
    assert {case: item["spilled"] for case, item in hip.items() if item["spilled"]} == {}


def test_without_a_device_the_reason_is_known() -> None:
    program = (
        "import sys; from msprobe.kernels.triton.availability import triton_availability as available\n"
        "assert 'triton' not in sys.modules\n"
        "found = available(); print(found.usable, found.serves('cuda'), found.version, found.reason)"
    )
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
    usable, serves, version, reason = done.stdout.split(maxsplit=3)
    assert (usable, serves) == ("False", "False")
    assert version[0].isdigit()
    assert "no usable GPU driver" in reason


def test_without_triton_the_reason_is_known() -> None:
    program = (
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest)\n"
        "from msprobe.kernels.triton.availability import triton_availability\n"
        "print(triton_availability())"
    )
    assert "triton is not installed" in run("-c", program).stdout


def test_the_interpreter_serves_cpu_tensors() -> None:
    from msprobe.kernels.triton.availability import triton_availability

    found = triton_availability()
    assert (found.target, found.reason, found.usable) == ("interpreter", None, True)
    assert found.serves("cpu")
    assert not found.serves("cuda")


def test_the_check_of_a_gpu_refuses_to_run_without_one(tmp_path: Path) -> None:
    done = run("benchmarks/gpu_check.py", "--json", str(tmp_path / "result.json"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "needs a CUDA or ROCm device" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "result.json").exists()


def test_the_check_of_values_passes_and_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from msprobe.kernels.triton import tensor_statistics

    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu_check

    assert gpu_check.check_values(list(gpu_check.value_cases(torch.device("cpu"), (120,)))[::8]) == []
    monkeypatch.setattr(tensor_statistics, "reference_statistics", lambda tensor: (9.0, 9.0, 0.0, 1.0, 0, 0, 0))
    assert gpu_check.check_values([("ones", torch.ones(3))])


def test_the_check_of_a_debugged_model_passes_and_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu_end_to_end

    from msprobe.measure import triton_rows

    assert gpu_end_to_end.check_encoder(torch.device("cpu"), ["statistics", "xor"], rows=5) == []
    monkeypatch.setattr(triton_rows, "mean_and_norm", lambda reduction, numel: (reduction[2] / numel, 9.0))
    assert gpu_end_to_end.check_encoder(torch.device("cpu"), ["statistics"], rows=5)


def test_the_check_of_a_debugged_model_reads_what_a_debugger_wrote() -> None:
    program = (
        "import sys, torch; sys.path.insert(0, 'benchmarks'); import gpu_end_to_end as check\n"
        "wrong, seconds = check.check_debugger(torch.device('cpu'), steps=1); print(wrong, sorted(seconds))"
    )
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[] ['step', 'step with every tensor written']"
