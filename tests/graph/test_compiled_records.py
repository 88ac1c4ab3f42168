"""A compiled model has the records of the eager one: names, order, arguments, values, forward and backward."""

from __future__ import annotations

import pytest
from compiled_models import assert_same, eager_and_compiled, names


def assert_equal_records(eager, compiled, tolerance=1e-5):
    assert names(compiled.data) == names(eager.data)
    assert sorted(compiled.data) == sorted(eager.data)
    for name, record in eager.data.items():
        assert_same(record, compiled.data[name], name, tolerance)


@pytest.mark.parametrize("name", ["operators", "in-place", "convolutions", "graph breaks"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(("level", "risk"), [("L0", "FOCUS"), ("L1", "ALL"), ("mix", "ALL")])
def test_every_level_and_risk_class_is_recorded_alike(debugger, name, backend, level, risk):
    eager, compiled = eager_and_compiled(debugger, name, backend, level=level, risk_level=risk)
    assert_equal_records(eager, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["operators", "in-place", "graph breaks"])
def test_inductor_code_has_the_same_records(debugger, name):
    eager, compiled = eager_and_compiled(debugger, name, "inductor", level="mix")
    assert_equal_records(eager, compiled)
