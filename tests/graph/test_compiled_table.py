"""Eager and compiled runs of each model have the same records: names, order, arguments, values, gradients.

Whole models, and models whose parts are compiled one by one.
"""

from __future__ import annotations

import copy
import re

import pytest
from compiled_models import assert_same, names, recorded
from model_table import TABLE, compiled

FP32 = 1e-5
MODULE_BACKWARD = re.compile(r"Module\..*\.backward\.")
SMALL = ["conv", "operators", "in-place", "breaks", "blocks", "tied"]
LARGE = ["llama", "qwen2", "gpt2", "bert"]
CASES = [
    *[(name, "whole", "aot_eager", level) for name in SMALL for level in ("L0", "L1", "mix")],
    *[(name, "whole", "aot_eager", "mix") for name in LARGE],
    ("llama", "whole", "aot_eager", "L0"),
    ("gpt2", "whole", "aot_eager", "L1"),
    *[(name, "whole", "eager", "mix") for name in (*SMALL, "qwen2", "bert")],
    *[(name, "parts", "aot_eager", "mix") for name in TABLE if name != "operators"],  # see the last test
    *[(name, "parts", "eager", "mix") for name in SMALL],
]


def in_order(data, way):
    """Names of the records whose place is compared.

    The graph of a module that is compiled on its own hands its gradients over at its end, so that the backward records
    of modules around it can come later than in an eager run.
    """
    listed = names(data)
    return listed if way == "whole" else [name for name in listed if not MODULE_BACKWARD.match(name)]


def assert_equal_records(eager, found, way, tolerance=FP32):
    assert in_order(found.data, way) == in_order(eager.data, way)
    assert sorted(found.data) == sorted(eager.data)
    for name, record in eager.data.items():
        assert_same(record, found.data[name], name, tolerance)


def compare(debugger, name, way, backend, **config):
    model, x = TABLE[name].make()
    twin = copy.deepcopy(model)
    eager = recorded(debugger, model, model, x, **config)
    found = recorded(debugger, twin, compiled(name, twin, way, backend), x, **config)
    assert any("parameters_grad" in record for record in found.data) == (config["level"] != "L1")
    assert any("fx" in record for record in found.data.values())
    assert_equal_records(eager, found, way)


@pytest.mark.parametrize(("name", "way", "backend", "level"), CASES)
def test_records_of_a_compiled_model_are_those_of_the_eager_one(debugger, name, way, backend, level):
    compare(debugger, name, way, backend, level=level)


def test_a_result_that_a_part_also_uses_inside_has_the_gradient_of_its_uses_outside(debugger):
    model, x = TABLE["operators"].make()
    twin = copy.deepcopy(model)
    eager = recorded(debugger, model, model, x, level="mix")
    found = recorded(debugger, twin, compiled("operators", twin, "parts", "aot_eager"), x, level="mix")
    assert sorted(found.data) == sorted(eager.data)
    assert in_order(found.data, "parts") == in_order(eager.data, "parts")
    name = "Module.blocks.0.Residual.backward.0"  # its result "hidden" is used inside only
    assert eager.data[name]["input"][1] is not None
    assert found.data[name]["input"][1] is None
