"""Level L2 watches every kernel through torch's dispatcher; training is still, bit by bit, the training without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from debugger_traces import dump_of
from neutral_autograd_scenarios import AUTOGRAD_SCENARIOS
from neutral_error_scenarios import ERROR_SCENARIOS
from neutral_run import Scenario, differences, live_tensors, observe
from neutral_scenarios import SCENARIOS

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:.*torch.jit", "ignore:Full backward hook")

WORKING = {**SCENARIOS, **AUTOGRAD_SCENARIOS}
KERNELS = {"level": "L2", "risk_level": "ALL"}
EVERYTHING = ["Aten."]


@functools.cache
def plain_run(scenario: Scenario) -> dict[str, Any]:
    return observe(scenario)


def without_gradient_versions(seen: dict[str, Any]) -> dict[str, Any]:
    """What was observed, without the version counters of gradients: see docs/limitations.md."""
    return {
        key: (*value[:7], *value[8:]) if "gradient of" in key and isinstance(value, tuple) else value
        for key, value in seen.items()
    }


def check(tool: Any, scenario: Scenario) -> None:
    plain, probed = (without_gradient_versions(seen) for seen in (plain_run(scenario), observe(scenario, tool.capture)))
    assert differences(plain, probed) == []
    for step in (0, 1):
        dump = dump_of(tool, step)
        assert dump.complete
        assert dump.coverage is not None
        assert dump.coverage["failures"] == []


@pytest.mark.parametrize("name", WORKING)
def test_training_is_bitwise_the_same_while_every_kernel_is_recorded(debugger: Callable[..., Any], name: str) -> None:
    check(debugger(**KERNELS, statistics={"list": EVERYTHING}), WORKING[name])


@pytest.mark.parametrize("name", WORKING)
def test_training_is_bitwise_the_same_while_tensors_of_core_kernels_are_saved(
    debugger: Callable[..., Any], name: str
) -> None:
    check(debugger(task="tensor", level="L2", risk_level="CORE", tensor={"list": EVERYTHING}), WORKING[name])


@pytest.mark.parametrize("name", ERROR_SCENARIOS)
def test_errors_of_the_user_are_the_same_while_kernels_are_recorded(debugger: Callable[..., Any], name: str) -> None:
    check(debugger(**KERNELS, statistics={"list": EVERYTHING}), ERROR_SCENARIOS[name])


@pytest.mark.parametrize("name", [name for name in WORKING if name != "anomaly_detection"])
def test_the_same_kernels_run_and_no_tensor_lives_longer_while_kernels_are_recorded(
    debugger: Callable[..., Any], name: str
) -> None:
    tool = debugger(**KERNELS, statistics={"list": EVERYTHING})
    assert live_tensors(WORKING[name], tool.capture) == live_tensors(WORKING[name])
