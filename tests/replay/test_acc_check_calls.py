"""Calls that are no plain functions of their inputs: in-place, views, random, optimiser, recurrent, custom ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.replay.calls import calls_of
from msprobe.replay.records import CallResult
from msprobe.replay.replay_call import Bench, replay_call
from msprobe.store import read_dump

Replayed = Callable[[Callable[[], object]], dict[str, CallResult]]


@pytest.fixture
def replayed(record: Callable[..., Path]) -> Replayed:
    """Record a function at once, and replay its calls in this process."""

    def run(body: Callable[[], object]) -> dict[str, CallResult]:
        dump = read_dump(record(body))
        return {call.name: replay_call(call, Bench("cpu", 0, None, None)) for call in calls_of(dump.data)}

    return run


@pytest.fixture
def custom_operator() -> Iterator[None]:
    library = torch.library.Library("acc_check_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    yield
    library._destroy()


def test_in_place_operations_are_judged_by_what_they_wrote(replayed: Replayed) -> None:
    def body() -> None:
        y = torch.randn(6, 5)
        y.add_(1.5)
        y *= 0.3
        y[0] = 7.0
        y[1:3, 2] = torch.tensor([1.0, 2.0])
        y.masked_fill_(y > 1, 0.5)
        torch._foreach_mul_([y, y.clone()], 0.7)
        x = torch.randn(3, requires_grad=True)
        (F.relu(x * 2, inplace=True) + x).sum().backward()

    found = replayed(body)
    written = {detail.api for result in found.values() for detail in result.details if "written" in detail.tensor}
    assert {"Tensor.__setitem__.0", "Tensor.__setitem__.1"} <= written
    assert len(found["Torch._foreach_mul_.0"].details) == 2
    assert {result.forward for name, result in found.items() if "randn" not in name} == {"pass"}, found
    assert found["Functional.relu.0"].backward == "pass"


def test_an_index_that_was_a_list_and_one_that_was_a_tuple(replayed: Replayed) -> None:
    def body() -> None:
        y = torch.arange(12.0).reshape(3, 4)
        assert y[[0, 1]].shape == (2, 4)
        assert y[0, 1].shape == ()
        assert y[..., None, 1:].shape == (3, 1, 3)
        assert y[y > 5].shape == (6,)
        y.view(torch.int32)

    found = replayed(body)
    assert {result.forward for result in found.values() if "view" not in result.name} == {"pass"}
    assert not [result.notes for name, result in found.items() if "getitem" in name and result.notes]
    assert found["Tensor.view.0"].reason == "no float64 reference: the call reads the bits of its input"


def test_random_calls_run_without_their_randomness_or_are_left_out(replayed: Replayed) -> None:
    def body() -> None:
        x = torch.randn(2, 2, 8, 4, requires_grad=True)
        y = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        F.dropout(y, 0.5).sum().backward()
        torch.bernoulli(torch.full((3,), 0.5))
        torch.empty(3)

    found = replayed(body)
    for name in ("Functional.dropout.0", "Functional.scaled_dot_product_attention.0"):
        assert found[name].forward == "pass", found[name]
        assert "random: replayed with probability 0" in found[name].notes
    assert found["Torch.bernoulli.0"].reason == "random: two runs differ"
    assert found["Torch.empty.0"].reason == "result is uninitialised memory"


def test_optimisers_recurrent_networks_and_namespaces(replayed: Replayed) -> None:
    torch.manual_seed(0)
    recurrent, x = nn.LSTM(4, 6), torch.randn(5, 2, 4)
    fused = torch.optim.AdamW(recurrent.parameters(), fused=True)

    def body() -> None:
        recurrent(x)[0].square().mean().backward()
        fused.step()
        torch.linalg.norm(torch.special.erf(x))
        torch.fft.rfft(x).abs()
        torch.topk(x, 2).values.sort()
        1 - x
        2 / (x.abs() + 1)
        x**2 @ x.mT

    found = replayed(body)
    bad = {name: result for name, result in found.items() if result.forward != "pass"}
    assert bad == {}
    assert found["VF.lstm.0"].backward == "pass"
    (optimiser,) = (result for name, result in found.items() if "_fused_adamw_" in name)
    assert len(optimiser.details) >= 4 * len(list(recurrent.parameters()))


@pytest.mark.usefixtures("custom_operator")
def test_a_custom_operator_is_replayed_where_it_is_registered(replayed: Replayed) -> None:
    found = replayed(lambda: torch.ops.acc_check_test.twice(torch.ones(3)))
    assert found["Torch.ops.acc_check_test.twice.0"].forward == "pass"


def test_zero_gradients_are_told(replayed: Replayed) -> None:
    x = torch.randn(4, requires_grad=True)
    found = replayed(lambda: (torch.tanh(x) * 0).sum().backward())
    assert "the recorded gradients are zero" in found["Torch.tanh.0"].notes
