"""NaN and Inf are found in every kind of tensor, at once on the CPU and later on an accelerator."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.measure.nonfinite import NonfiniteScan

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
BAD = [float("nan"), float("inf"), -float("inf")]


def deferred(*tensors: torch.Tensor) -> list[bool]:
    """The answers of the path for accelerators, on the CPU."""
    scan = NonfiniteScan(immediate=())
    answers: dict[int, bool] = {}
    for number, tensor in enumerate(tensors):
        known = scan.scan(tensor, lambda bad, number=number: answers.__setitem__(number, bad))
        if known is not None:
            answers[number] = known
    scan.resolve()
    return [answers[number] for number in range(len(tensors))]


def at_once(tensor: torch.Tensor) -> bool | None:
    return NonfiniteScan().scan(tensor, lambda _: None)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_both_paths_agree_with_isfinite_on_any_stride(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.lists(st.integers(1, 5), max_size=3))
    tensor = torch.zeros(shape, dtype=dtype)
    if data.draw(st.booleans()):
        place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
        tensor[place] = data.draw(st.sampled_from(BAD))
    tensor = tensor.permute(data.draw(st.permutations(range(tensor.dim()))))
    if tensor.dim() and data.draw(st.booleans()):
        tensor = tensor[:: data.draw(st.integers(1, 2))]
    if dtype.is_complex and data.draw(st.booleans()):
        tensor = tensor.conj()
    expected = not bool(tensor.isfinite().all())
    assert at_once(tensor) is expected
    assert deferred(tensor) == [expected]


def test_extreme_values_are_finite() -> None:
    for dtype in DTYPES[:4]:
        tensor = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype)
        assert at_once(tensor) is False
        assert deferred(tensor) == [False]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8(dtype: torch.dtype) -> None:
    bad = torch.tensor([1.0, float("nan")]).to(dtype)
    assert (at_once(bad), *deferred(bad, bad[:1])) == (True, True, False)


def test_wrapped_and_sparse_tensors_are_looked_into() -> None:
    bad = torch.tensor([[0.0, float("inf")]])
    assert at_once(bad.to_sparse()) is True
    assert at_once(torch.nn.Parameter(bad)) is True
    seen: list[bool | None] = []
    torch.func.vmap(lambda row: (seen.append(at_once(row)), row)[1])(bad)
    assert seen == [True]


def test_what_has_no_such_values_is_answered_without_looking() -> None:
    tensors = [torch.tensor([2**62]), torch.tensor([True]), torch.empty(0), torch.empty(2, device="meta")]
    assert [at_once(tensor) for tensor in tensors] == deferred(*tensors) == [False] * 4


def test_answers_of_many_dtypes_come_to_those_who_asked() -> None:
    tensors = [torch.tensor([value], dtype=dtype) for value in (1.0, float("nan")) for dtype in DTYPES]
    assert deferred(*tensors) == [False] * len(DTYPES) + [True] * len(DTYPES)
