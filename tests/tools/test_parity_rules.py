"""The comparison with the peer must find what differs, and excuse only what is documented."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

from parity_compare import Comparison, Context, compare_dumps  # noqa: E402
from parity_dump import Dump  # noqa: E402
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


def test_a_checksum_is_exact_but_for_the_transposes_of_the_peer() -> None:
    ours, peer = (json.loads(json.dumps(linear())) for _ in range(2))
    for dump, weight in ((ours, "11"), (peer, "22")):
        for index, value in enumerate(dump["Functional.linear.0.backward"]["output"]):
            value["md5"] = weight if index == 1 else f"0{index}"
    peer["Functional.linear.0.backward"]["output"][1]["shape"] = [3, 4]
    assert reasons(compared(ours, peer)) == {"argument-order"}
    ours["Functional.linear.0.backward"]["output"][2]["md5"] = "33"
    assert compared(ours, peer).of_kind("different")


def test_the_value_of_a_scalar_is_no_checksum_and_nothing_has_one() -> None:
    def dump(checksum: Any, shape: list[int]) -> dict[str, Any]:
        entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, "md5": checksum}
        return {"Torch.cos.0.forward": {"input_args": [entry], "input_kwargs": {}, "output": []}}

    assert reasons(compared(dump("0x0000000040000000", []), dump(2.0, []))) == {"scalar-checksum"}
    assert compared(dump("0x0000000040000000", [1]), dump(2.0, [1])).of_kind("different")
    assert reasons(compared(dump("0x0000000000000000", [0, 3]), dump(None, [0, 3]))) == {"empty-checksum"}


def test_tensor_files_are_compared_by_name_and_contents(tmp_path: Path) -> None:
    def dump(folder: str, suffix: str, value: float) -> Dump:
        place = tmp_path / folder / "dump_tensor_data"
        place.mkdir(parents=True)
        name = f"Torch.exp.0.forward.{suffix}.pt"
        torch.save(torch.full((2, 3), value), place / name)
        record = {"input_args": [tensor(data_name=name)], "input_kwargs": {}, "output": []}
        text = json.dumps({"data": {"Torch.exp.0.forward": record}})
        (tmp_path / folder / "dump.json").write_text(text)
        return Dump.read(tmp_path / folder)

    peer = dump("peer", "input.0", 1.0)
    assert compare_dumps(dump("same", "input.0", 1.0), peer).findings == []
    assert compare_dumps(dump("renamed", "input.1", 1.0), peer).of_kind("different")
    assert compare_dumps(dump("changed", "input.0", 2.0), peer).of_kind("different")
    (tmp_path / "same" / "dump_tensor_data" / "Torch.exp.0.forward.input.0.pt").unlink()
    assert compare_dumps(Dump.read(tmp_path / "same"), peer).of_kind("different")


def exponential(**changed: Any) -> dict[str, Any]:
    return {"Torch.exp.0.forward": {"input_args": [tensor(**changed)], "input_kwargs": {}, "output": [tensor(2.0)]}}


def test_nulls_of_high_precision_are_excused_only_there() -> None:
    peer = Dump(exponential(Mean=None), {}, {})
    assert reasons(compare_dumps(Dump(exponential(), {}, {}), peer, Context(setting="high"))) == {"high-precision"}
    assert compare_dumps(Dump(exponential(), {}, {}), peer).of_kind("different")
    wrong = Dump(exponential(Max=9.0), {}, {})
    assert compare_dumps(wrong, peer, Context(setting="high")).of_kind("different")


def test_only_half_a_record_may_be_absent_and_only_in_a_scope() -> None:
    half = {"Module.a.A.forward.0": {"output": [tensor()], "parameters": {}}}
    scope = Context(setting="scope of modules")
    assert reasons(compare_dumps(Dump({}, {}, {}), Dump(half, {}, {}), scope)) == {"cut-by-scope"}
    assert compare_dumps(Dump({}, {}, {}), Dump(exponential(), {}, {}), scope).of_kind("missing")
    assert compare_dumps(Dump({}, {}, {}), Dump(half, {}, {})).of_kind("missing")


def test_only_what_is_not_listed_may_be_absent_from_a_list() -> None:
    construct = {"Torch.exp.0.forward": "Module.act.Act.forward.0", "Module.act.Act.forward.0": None}
    complete = Dump(exponential(), construct, {})
    ours, peer = Dump({}, {}, {}), Dump(exponential(), {}, {})
    assert reasons(compare_dumps(ours, peer, Context(complete=complete, listed=("relu",)))) == {"open-range"}
    for part in ("exp", "act"):  # the call itself, or the module around it
        assert compare_dumps(ours, peer, Context(complete=complete, listed=(part,))).of_kind("missing")


def test_the_place_of_a_record_in_the_hierarchy_may_not_be_absent() -> None:
    construct = {"Torch.exp.0.forward": None, "Torch.abs.0.forward": None}
    comparison = compare_dumps(Dump(exponential(), {}, {}), Dump(exponential(), construct, {}))
    assert [found.record for found in comparison.of_kind("missing")] == ["Torch.exp.0.forward"]
    assert [found.reason for found in comparison.of_kind("documented")] == ["filtered-hierarchy"]
    structure = compare_dumps(Dump({}, {}, {}), Dump({}, construct, {}))
    assert len(structure.of_kind("missing")) == 2


def test_a_checksum_may_be_that_of_a_later_value_but_no_other() -> None:
    ours = {**exponential(md5="11"), "Tensor.add_.0.forward": {"input_args": [], "output": [tensor(md5="22")]}}
    assert reasons(compared(ours, exponential(md5="22"))) == {"late-checksum"}
    assert compared(ours, exponential(md5="33")).of_kind("different")


def test_a_stack_may_be_without_frames_of_the_compiler_but_without_no_other() -> None:
    def dump(*frames: str) -> Dump:
        stack = [f"File /env/site-packages/{frame}" for frame in frames]
        return Dump(exponential(), {}, {"Torch.exp.0.forward": stack})

    checkpoint = "torch/utils/checkpoint.py, line 519, in checkpoint, \n ret = function(*args, **kwargs)"
    compiler = "torch/_dynamo/eval_frame.py, line 1446, in _fn, \n return fn(*args, **kwargs)"
    peer = dump(checkpoint, compiler)
    assert reasons(compare_dumps(dump(checkpoint), peer)) == {"compiler-frames"}
    assert compare_dumps(dump(compiler), peer).of_kind("different")
    assert compare_dumps(peer, dump(checkpoint)).of_kind("different")
