"""Training under the tool is, bit by bit, the training without it."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from debugger_traces import dump_of
from neutral_autograd_scenarios import AUTOGRAD_SCENARIOS
from neutral_error_scenarios import ERROR_SCENARIOS
from neutral_run import Scenario, differences, live_tensors, observe
from neutral_scenarios import SCENARIOS

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:.*torch.jit", "ignore:Full backward hook")

WORKING = {**SCENARIOS, **AUTOGRAD_SCENARIOS}
ALL = {**WORKING, **ERROR_SCENARIOS}
LEVELS = ("L0", "L1", "mix")
CONFIGS: dict[str, dict[str, Any]] = {
    f"{level}-{task}": {"task": task, "level": level, "risk_level": "ALL"}
    for level in LEVELS
    for task in ("statistics", "tensor")
} | {"mix-structure": {"task": "structure", "level": "mix"}}
RARE: dict[str, dict[str, Any]] = {
    "default risk level": {"level": "mix"},
    "md5": {"level": "mix", "statistics": {"summary_mode": "md5"}},
    "xor": {"level": "mix", "statistics": {"summary_mode": "xor"}},
    "hash": {"level": "L0", "statistics": {"summary_mode": "hash"}},
    "high precision": {"level": "L1", "precision": "high"},
    "no extra info": {"level": "mix", "extra_info": False},
    "forward only": {"level": "mix", "statistics": {"data_mode": ["forward"]}},
    "output only": {"level": "mix", "statistics": {"data_mode": ["output"]}},
    "list": {"level": "mix", "statistics": {"list": ["linear", "relu"]}},
    "async": {"level": "mix", "async_dump": True},
    "async tensor": {"level": "mix", "task": "tensor", "async_dump": True, "tensor": {"list": ["."]}},
    "tensor_list": {"level": "L1", "statistics": {"tensor_list": ["linear", "add"]}},
    "nan_check": {"task": "nan_check", "level": "L1", "risk_level": "ALL"},
    "nan_check with tensor_list": {"task": "nan_check", "level": "L1", "nan_check": {"tensor_list": ["linear", "add"]}},
    "acc_check": {"task": "acc_check", "level": "L1", "acc_check": {"black_list": ["relu"]}},
}
FRAGILE = [
    "batch_norm_with_a_shared_input",
    "in_place_on_views_and_slices",
    "attention",
    "recurrent_networks",
    "adamw_with_clipped_gradients",
    "reentrant_checkpoint",
    "selective_checkpoint",
    "hooks_of_the_user",
    "double_backward_of_a_gradient_penalty",
    "function_transforms",
]


@functools.cache
def plain_run(scenario: Scenario) -> dict[str, Any]:
    return observe(scenario)


@functools.cache
def plain_kernels(scenario: Scenario) -> list[tuple[str, int]]:
    return live_tensors(scenario)


def check(tool: Any, name: str) -> None:
    assert differences(plain_run(ALL[name]), observe(ALL[name], tool.capture)) == []
    dump = dump_of(tool, 1)
    assert dump.complete
    assert dump.coverage is not None
    assert dump.coverage["failures"] == []


@pytest.mark.parametrize("name", ALL)
def test_scenarios_are_repeatable_and_raise_nothing_unexpected(name: str) -> None:
    assert differences(plain_run(ALL[name]), observe(ALL[name])) == []
    assert not [key for key in plain_run(ALL[name]) if "error" in key]


@pytest.mark.parametrize("name", WORKING)
def test_training_is_bitwise_the_same_at_every_level_and_mix_records_what_l0_and_l1_record(
    debugger: Callable[..., Any], name: str
) -> None:
    dumps = []
    for level in LEVELS:
        tool = debugger(**CONFIGS[f"{level}-statistics"])
        check(tool, name)
        dumps.append(dump_of(tool).data)
    modules, apis, mix = dumps
    wanted = {**apis, **modules}
    assert [record for record in dict.fromkeys((*wanted, *mix)) if wanted.get(record) != mix.get(record)] == []


@pytest.mark.parametrize("name", WORKING)
def test_training_is_bitwise_the_same_while_every_tensor_is_saved(debugger: Callable[..., Any], name: str) -> None:
    check(debugger(**CONFIGS["mix-tensor"]), name)


@pytest.mark.parametrize("config", ["L0-tensor", "L1-tensor", "mix-structure"])
@pytest.mark.parametrize("name", FRAGILE)
def test_no_task_changes_a_bit(debugger: Callable[..., Any], name: str, config: str) -> None:
    check(debugger(**CONFIGS[config]), name)


@pytest.mark.parametrize("config", ["L0-statistics", "L1-statistics", "mix-statistics"])
@pytest.mark.parametrize("name", ERROR_SCENARIOS)
def test_errors_of_the_user_are_the_same_and_training_goes_on_after(
    debugger: Callable[..., Any], name: str, config: str
) -> None:
    check(debugger(**CONFIGS[config]), name)


@pytest.mark.parametrize("config", RARE)
@pytest.mark.parametrize("name", FRAGILE[::2])
def test_no_option_changes_a_bit(debugger: Callable[..., Any], name: str, config: str) -> None:
    check(debugger(**{"task": "statistics", **RARE[config]}), name)


LIVE = [
    *((name, "mix-statistics") for name in WORKING if name != "anomaly_detection"),
    *((name, f"{level}-tensor") for name in FRAGILE for level in ("L0", "mix")),
]  # anomaly detection keeps graphs alive by itself


@pytest.mark.parametrize(("name", "config"), LIVE)
def test_the_same_kernels_run_and_no_tensor_lives_longer_with(
    debugger: Callable[..., Any], name: str, config: str
) -> None:
    plain = plain_kernels(WORKING[name])
    tool = debugger(**CONFIGS[config])
    assert live_tensors(WORKING[name], tool.capture) == plain


SCRIPT = """
import sys, hashlib, torch, torch.distributed as dist
from torch import nn

def main(tool):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(8, 9), nn.BatchNorm1d(9), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(9, 2))
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.01)
    digest = hashlib.sha256()
    for _ in range(3):
        if tool: tool.start(parallel)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(torch.randn(6, 8)), torch.randint(0, 2, (6,)))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        if tool: tool.stop(); tool.step()
        for tensor in (loss, norm, *parallel.state_dict().values(), *(p.grad for p in parallel.parameters())):
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    dist.destroy_process_group()
    print(digest.hexdigest())

tool = None
if len(sys.argv) > 3:
    from msprobe.pytorch import PrecisionDebugger
    tool = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level=sys.argv[3])
main(tool)
"""


@pytest.mark.slow
def test_a_distributed_script_trains_to_the_same_bits_in_a_process_of_its_own(tmp_path: Path) -> None:
    digests = []
    for number, extra in enumerate(([], ["mix"])):
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
        command += [str(tmp_path / f"dump{number}"), str(tmp_path / f"store{number}"), *extra]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        digests.append(done.stdout.split()[-1])
    assert len(set(digests)) == 1
    assert (tmp_path / "dump1" / "step2" / "rank0" / "dump.json").is_file()
