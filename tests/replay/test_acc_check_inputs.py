"""Inputs made from statistics: same range, legal indices; and names that lead back to functions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.measure.encode import ValueEncoder
from msprobe.replay.api_kinds import Kind, kind_of, skip_reason
from msprobe.replay.arguments import Rebuilder, UnreplayableError
from msprobe.replay.calls import ApiCall, calls_of
from msprobe.replay.resolve import resolve
from msprobe.store.json_bytes import dumps_json, loads_json

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool)


def encoded(value: Any) -> Any:
    return loads_json(dumps_json(ValueEncoder().encode(value)))


def rebuilt(value: Any, seed: int = 0, base: str = "Torch.f", **kwargs: Any) -> Any:
    call = ApiCall("f.0", base, [encoded(value)], {key: encoded(item) for key, item in kwargs.items()}, None, None)
    arguments = Rebuilder(call, None, seed).arguments()
    return arguments.tensors[-1] if arguments.tensors else arguments.args[0]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 5))
def test_dtype_shape_and_range_are_the_recorded_ones(dtype: torch.dtype, shape: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = (torch.randn(shape, generator=generator) * 20 + seed).to(dtype)
    made = rebuilt(value, seed)
    assert made.dtype is dtype
    assert list(made.shape) == shape
    if value.numel():
        assert value.min() <= made.min()
        assert made.max() <= value.max()
        if value.numel() > 1:
            assert made.min() == value.min()
            assert made.max() == value.max()


def test_the_same_seed_makes_the_same_values_and_another_one_others() -> None:
    value = torch.randn(50)
    assert torch.equal(rebuilt(value, 1), rebuilt(value, 1))
    assert not torch.equal(rebuilt(value, 1), rebuilt(value, 2))


def test_mean_and_norm_are_met() -> None:
    value = torch.randn(20000) * 3 + 1
    made = rebuilt(value)
    assert float(made.mean()) == pytest.approx(float(value.mean()), abs=0.1)
    assert float(made.norm()) == pytest.approx(float(value.norm()), rel=0.02)


def test_integers_stay_legal() -> None:
    permutation = torch.randperm(40)
    assert sorted(rebuilt(permutation).tolist()) == list(range(40))
    labels = torch.tensor([3, -100, 7, -100, 1, 5])
    made = rebuilt(labels)
    assert set(made.tolist()) <= {-100, *range(8)}
    assert F.cross_entropy(torch.randn(6, 8), made).isfinite()
    ends = torch.tensor([4, 9, 9, 16], dtype=torch.int32)
    offsets = rebuilt(torch.ones(16, 2), base="Torch._grouped_mm", offs=ends)
    assert offsets.tolist() == sorted(offsets.tolist())
    assert offsets[-1] == 16


def test_masks_keep_their_share_and_leave_no_row_empty() -> None:
    mask = torch.rand(6, 30) < 0.3
    mask[0, 0] = True
    made = rebuilt(mask)
    assert int(made.sum()) == int(mask.sum())
    additive = torch.zeros(8, 16).masked_fill(torch.rand(8, 16) < 0.7, -math.inf)
    added = rebuilt(torch.ones(2), attn_mask=additive)
    assert set(added.unique().tolist()) == {-math.inf, 0.0}
    assert added.isfinite().any(-1).all()


def test_nan_and_infinity_keep_their_share() -> None:
    value = torch.tensor([1.0, math.inf, 2.0, 3.0, 1.5, 2.5])
    assert int(rebuilt(value).isinf().sum()) >= 1


@pytest.mark.parametrize(
    "value", [3, 2.5, math.inf, True, None, ..., slice(1, None, 2), 2 + 3j, "mean", torch.float16, torch.Size([2, 3])]
)
def test_plain_arguments_are_what_they_were(value: Any) -> None:
    assert rebuilt(value) == value


def test_what_cannot_be_rebuilt_says_why() -> None:
    with pytest.raises(UnreplayableError, match=r"argument 0 has the layout torch\.sparse_coo"):
        rebuilt(torch.eye(2).to_sparse())
    entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": "0x0", "requires_grad": False}
    with pytest.raises(UnreplayableError, match="no statistics in the dump"):
        Rebuilder(ApiCall("f.0", "Torch.f", [entry], {}, None, None), None, 0).arguments()


@pytest.mark.parametrize(
    ("prefix", "path", "function"),
    [
        ("Functional", "linear", F.linear),
        ("Torch", "linalg.norm", torch.linalg.norm),
        ("Torch", "fft.rfft", torch.fft.rfft),
        ("Torch", "special.erf", torch.special.erf),
        ("Torch", "_foreach_mul_", torch._foreach_mul_),
        ("Tensor", "__iadd__", torch.Tensor.__iadd__),
        ("Tensor", "__getitem__", torch.Tensor.__getitem__),
        ("Tensor", "add_", torch.Tensor.add_),
        ("VF", "lstm", torch.lstm),
        ("Aten", "mm.default", torch.ops.aten.mm.default),
        ("Aten", "mm", torch.ops.aten.mm),
    ],
)
def test_names_of_every_prefix_lead_to_their_function(prefix: str, path: str, function: Any) -> None:
    found = resolve(prefix, path)
    assert found.function == function
    assert callable(eval(found.source, {"torch": torch}))


def test_unknown_and_custom_names_are_told_apart() -> None:
    with pytest.raises(UnreplayableError, match=r"unknown API: torch .* has no Functional\.conv9d"):
        resolve("Functional", "conv9d")
    with pytest.raises(UnreplayableError, match="--import"):
        resolve("mylib", "fused")
    with pytest.raises(UnreplayableError, match="--import"):
        resolve("Torch", "ops.mylib.fused")


def test_api_classes() -> None:
    assert kind_of("Tensor", "transpose") is Kind.EXACT
    assert kind_of("Aten", "view.default") is Kind.EXACT
    assert kind_of("Functional", "linear") is Kind.FLOAT
    assert skip_reason("Distributed", "all_reduce").startswith("communication")
    assert skip_reason("Triton", "kernel").startswith("a Triton kernel")
    assert skip_reason("Torch", "randn").startswith("random")
    assert skip_reason("Torch", "empty_like") == "result is uninitialised memory"
    assert skip_reason("Functional", "dropout") == ""


def test_forward_and_backward_of_a_call_belong_together_and_repetitions_are_left_out() -> None:
    forward, backward = {"input_args": [], "input_kwargs": {}, "output": []}, {"input": [None], "output": []}
    data = {
        "Functional.linear.0.forward": forward,
        "Module.fc.Linear.forward.0": forward,
        "Functional.linear.0.forward#recompute": forward,
        "Functional.linear.0.backward": backward,
        "Functional.linear.0.backward#2": backward,
        "Torch.sum.1.backward": backward,
        "Aten.mm.default.0.forward": forward,
        "Aten.mm.default.0.backward": backward,
    }
    calls = {call.name: call for call in calls_of(data)}
    assert list(calls) == [*("Functional.linear.0", "Torch.sum.1", "Aten.mm.default.0", "Aten.mm.default.0.backward")]
    assert calls["Functional.linear.0"].gradients == [None]
    assert calls["Torch.sum.1"].missing == "no forward record"
    assert calls["Aten.mm.default.0.backward"].args == [None]
