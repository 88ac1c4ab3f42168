"""The comparison with the peer must find what differs, and excuse only what is documented."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

from parity_compare import Comparison, Dump, compare_dumps  # noqa: E402
from parity_rules import DOCUMENTED  # noqa: E402


def tensor(
    value: float = 1.0, shape: tuple[int, ...] = (2, 3), dtype: str = "float32", **changed: Any
) -> dict[str, Any]:
    entry = {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": list(shape), "requires_grad": False}
    return {**entry, "Max": value, "Min": -value, "Mean": value / 3, "Norm": 2 * value, **changed}


def linear() -> dict[str, Any]:
    """A forward and a backward record as both tools write them."""
    weight, bias, x, y = tensor(0.5, (4, 3)), tensor(0.1, (4,)), tensor(2.0), tensor(3.0, (2, 4))
    return {
        "Functional.linear.0.forward": {"input_args": [x, weight, bias], "input_kwargs": {}, "output": [y]},
        "Functional.linear.0.backward": {"input": [y], "output": [x, weight, bias]},
    }


def compared(ours: dict[str, Any], peer: dict[str, Any]) -> Comparison:
    return compare_dumps(Dump(ours, {}, {}), Dump(peer, {}, {}))


def reasons(comparison: Comparison) -> set[str]:
    assert not comparison.of_kind("missing")
    assert not comparison.of_kind("different")
    return {finding.reason for finding in comparison.of_kind("documented")}


def test_every_documented_difference_is_explained_to_users() -> None:
    text = (ROOT / "docs" / "limitations.md").read_text("utf-8")
    assert [key for key in DOCUMENTED if f"| `{key}` |" not in text] == []


def test_equal_dumps_have_no_difference_and_more_of_ours_is_extra() -> None:
    ours = {**linear(), "Torch.fft.rfft.0.forward": {"input_args": [], "input_kwargs": {}, "output": []}}
    comparison = compared(ours, linear())
    assert comparison.findings == []
    assert comparison.extra == {"Torch.fft.rfft forward": 1}


def test_a_record_that_we_lack_is_missing() -> None:
    ours = linear()
    del ours["Functional.linear.0.backward"]
    assert [found.record for found in compared(ours, linear()).of_kind("missing")] == ["Functional.linear.0.backward"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Max", 2.001),
        ("Norm", float("nan")),
        ("Mean", None),
        ("dtype", "torch.float16"),
        ("shape", [3, 2]),
        ("requires_grad", True),
    ],
)
def test_a_changed_field_is_different(key: str, value: Any) -> None:
    ours = linear()
    ours["Functional.linear.0.forward"]["input_args"][0][key] = value
    assert compared(ours, linear()).of_kind("different")


def test_a_wrong_gradient_is_different_wherever_it_stands() -> None:
    ours, peer = linear(), linear()
    peer["Functional.linear.0.backward"]["output"].reverse()
    assert reasons(compared(ours, peer)) == {"argument-order"}
    ours["Functional.linear.0.backward"]["output"][1]["Max"] = 0.7
    assert compared(ours, peer).of_kind("different")


def test_what_leaves_the_last_operation_is_documented_only_in_another_shape() -> None:
    ours, peer = linear(), linear()
    peer["Functional.linear.0.backward"]["output"] = [tensor(7.0, (6, 4))]
    assert reasons(compared(ours, peer)) == {"last-node"}
    peer["Functional.linear.0.backward"]["output"] = [tensor(7.0, (4, 3))]
    assert compared(ours, peer).of_kind("different")


def test_namespaces_share_the_counter_of_the_peer() -> None:
    first, second = ({"input_args": [tensor(v)], "input_kwargs": {}, "output": [tensor(v)]} for v in (1.0, 2.0))
    ours = {"Torch.linalg.norm.0.forward": first, "Torch.norm.0.forward": second}
    assert reasons(compared(ours, {"Torch.norm.0.forward": first, "Torch.norm.1.forward": second})) == {"namespace"}
    assert compared(ours, {"Torch.norm.0.forward": second, "Torch.norm.1.forward": first}).of_kind("different")


def test_a_recomputed_call_is_the_next_call_of_the_peer() -> None:
    record = linear()["Functional.linear.0.forward"]
    ours = {"Functional.linear.0.forward": record, "Functional.linear.0.forward#recompute": record}
    peer = {"Functional.linear.0.forward": record, "Functional.linear.1.forward": record}
    assert reasons(compared(ours, peer)) == {"recompute"}


def test_statistics_that_the_peer_cannot_hold_are_documented() -> None:
    def dump(**statistics: Any) -> dict[str, Any]:
        entry = tensor(**statistics)
        return {"Torch.exp.0.forward": {"input_args": [entry], "input_kwargs": {}, "output": []}}

    double = {"dtype": "float64"}
    assert reasons(compared(dump(**double), dump(**double, Mean=None, Norm=None))) == {"null-statistics"}
    scalar = {"shape": (), "Norm": 1.0}
    assert reasons(compared(dump(**scalar), dump(**scalar | {"Norm": -1.0}))) == {"signed-norm"}
    huge = {"value": 3e38, "shape": (100,)}
    assert reasons(compared(dump(**huge), dump(**huge, Mean=float("inf")))) == {"accumulation"}
    assert compared(dump(), dump(Mean=float("inf"))).of_kind("different")
