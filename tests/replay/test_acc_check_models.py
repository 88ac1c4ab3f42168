"""acc_check on real training steps: nearly everything is replayed, and nothing that is right is called wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from replay_models import MODELS, MODES, training_step

from msprobe.replay.calls import calls_of
from msprobe.replay.records import CallResult
from msprobe.replay.replay_call import Bench, replay_call
from msprobe.store import read_dump


def replayed(folder: Path, seed: int = 0) -> list[CallResult]:
    """Replay a dump in this process: what a worker does, without the start of one."""
    dump = read_dump(folder)
    bench = Bench("cpu", seed, dump.tensor_folder, None)
    return [replay_call(call, bench) for call in calls_of(dump.data)]


def wrong(results: list[CallResult]) -> list[str]:
    return [
        f"{detail.api} {detail.direction} {detail.tensor}: {detail.rule}"
        for result in results
        for detail in result.details
        if detail.verdict != "pass"
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_nearly_every_call_of_a_training_step_is_replayed_and_passes(
    record: Callable[..., Path], name: str, mode: str
) -> None:
    folder = record(training_step(name, mode))
    results = replayed(folder)
    skipped = Counter(result.reason for result in results if result.forward == "skip")
    assert len(results) > 100
    assert sum(skipped.values()) <= 0.05 * len(results), skipped
    assert "" not in skipped
    assert wrong(results) == []
    with_backward = sum(name.endswith(".backward") for name in read_dump(folder).data)
    passed = sum(result.backward == "pass" for result in results)
    reasons = [result.backward_reason for result in results if result.backward_reason]
    assert passed >= 0.95 * with_backward > 0, reasons


@pytest.mark.parametrize(("name", "mode"), [("llama", "bf16"), ("conv", "fp16"), ("mixtral", "autocast")])
def test_no_seed_gives_a_false_alarm(record: Callable[..., Path], name: str, mode: str) -> None:
    folder = record(training_step(name, mode))
    for seed in range(1, 6):
        assert wrong(replayed(folder, seed)) == [], f"seed {seed}"


def test_saved_tensors_are_used_as_they_are(record: Callable[..., Path]) -> None:
    folder = record(training_step("llama", "bf16"), task="tensor")
    results = replayed(folder)
    assert wrong(results) == []
    assert not [result.notes for result in results if "statistics" in result.notes]


def test_kernels_of_level_l2_are_replayed_forward_and_backward(record: Callable[..., Path]) -> None:
    folder = record(training_step("conv", "fp32"), task="statistics", level="L2", statistics={"list": ["Aten"]})
    results = replayed(folder)
    assert wrong(results) == []
    names = {result.name for result in results if result.forward == "pass"}
    assert {"Aten.convolution.default.0", "Aten.convolution_backward.default.0.backward"} <= names
    assert sum(result.forward == "pass" for result in results) >= 0.9 * len(results), Counter(
        (result.name.rsplit(".", 2)[0], result.reason) for result in results if result.forward == "skip"
    )
