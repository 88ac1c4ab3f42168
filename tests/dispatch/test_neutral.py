"""Training under the tool is, bit by bit, the training without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from debugger_traces import dump_of
from neutral_autograd_scenarios import AUTOGRAD_SCENARIOS
from neutral_error_scenarios import ERROR_SCENARIOS
from neutral_run import Scenario, differences, observe
from neutral_scenarios import SCENARIOS

ALL = {**SCENARIOS, **AUTOGRAD_SCENARIOS, **ERROR_SCENARIOS}
CONFIGS: dict[str, dict[str, Any]] = {
    f"{level}-{task}": {"task": task, "level": level, "risk_level": "ALL"}
    for level in ("L0", "L1", "mix")
    for task in ("statistics", "tensor")
} | {"mix-structure": {"task": "structure", "level": "mix"}}


@functools.cache
def plain_run(scenario: Scenario) -> dict[str, Any]:
    return observe(scenario)


@pytest.mark.parametrize("name", ALL)
def test_scenarios_are_repeatable_and_do_what_they_say(name: str) -> None:
    assert differences(plain_run(ALL[name]), observe(ALL[name])) == []
    assert not [key for key in plain_run(ALL[name]) if "error" in key]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ALL)
def test_results_gradients_parameters_and_random_state_are_bitwise_those_of_the_plain_run(
    debugger: Callable[..., Any], name: str, config: str
) -> None:
    tool = debugger(**CONFIGS[config])
    probed = observe(ALL[name], tool.capture)
    assert differences(plain_run(ALL[name]), probed) == []
    assert dump_of(tool, 1).complete
    assert not dump_of(tool, 1).coverage["failures"]
