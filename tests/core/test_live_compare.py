"""When a record of this run agrees with one of an earlier run."""

from __future__ import annotations

from typing import Any

from msprobe.core.live_compare import Values, differing


def tensor(md5: str | None, shape: tuple[int, ...] = (2,), dtype: str = "float32", **more: Any) -> dict[str, Any]:
    entry = {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": list(shape), "requires_grad": False, **more}
    return {**entry, "md5": md5}


def number(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, "value": value}


def test_paths_are_those_of_tensor_files() -> None:
    record = {
        "input_args": [tensor("a"), [tensor("b"), number(2)]],
        "input_kwargs": {"mask": tensor("c"), "nested": {"x": tensor("d")}},
        "parameters": {"weight": tensor("e")},
        "output": [{"logits": tensor("f")}],
    }
    values = Values.of(record)
    assert list(values.inputs) == [
        "input.0",
        "input.1.0",
        "input.1.1",
        "kwargs.mask",
        "kwargs.nested.x",
        "parameters.weight",
    ]
    assert list(values.outputs) == ["output.0.logits"]
    backward = Values.of({"input": [tensor("a"), None], "output": [None, tensor("b")]})
    assert (list(backward.inputs), list(backward.outputs)) == (["input.0"], ["output.1"])


def test_checksum_shape_and_dtype_count_and_nothing_else_of_a_tensor() -> None:
    base = Values.of({"output": [tensor("a", Max=1.0)]}).outputs
    for other, same in [
        (tensor("a", Max=2.0, requires_grad=True, data_name="x.pt"), True),
        (tensor("b"), False),
        (tensor("a", (1, 2)), False),
        (tensor("a", dtype="int32"), False),
    ]:
        assert (differing(base, Values.of({"output": [other]}).outputs) == []) is same


def test_numbers_count_and_other_objects_do_not() -> None:
    def inputs(*entries: Any) -> dict[str, str]:
        return Values.of({"input_args": [tensor("a"), *entries]}).inputs

    assert differing(inputs(number(1)), inputs(number(2))) == ["input.1"]
    assert differing(inputs(number(float("nan"))), inputs(number(float("nan")))) == []
    assert differing(inputs({"type": "torch.device", "value": "cpu"}), inputs({})) == []
    assert differing(inputs(tensor(None)), inputs(tensor(None))) == []


def test_a_value_on_one_side_only_differs_but_not_a_side_that_was_not_recorded() -> None:
    assert differing({"input.0": "a"}, {"input.0": "a", "input.1": "b"}) == ["input.1"]
    assert differing({}, {"input.0": "a"}) == differing({"input.0": "a"}, {}) == []
