"""What a graph does besides computing results is known before it is run twice: what it writes to, what forbids it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def effects(function, *inputs):
    """Of the graph of ``function``, and the names of its inputs that may be written to."""
    from msprobe.graph.effects import effects_of

    found = []

    def keep(graph, _inputs):
        found.append(graph)
        return graph.forward

    torch.compile(function, backend=keep, fullgraph=True)(*inputs)
    known = effects_of(found[0])
    names = [node.name for node in found[0].graph.nodes if node.op == "placeholder"]
    return known, {names[at].strip("_").rpartition("l_")[2] for at in known.written}


X = torch.ones(4, 4)


def in_view(x, y):
    x[1:].add_(1)
    return x + y


def by_data(x, y):
    y.data.mul_(2)
    return x + y


def by_flag(x, y):
    return F.relu(x, True) + F.dropout(y, 0.0, False)


def by_out(x, y):
    torch.add(x, 1, out=y)
    return x + y


def by_operator(x, y):
    y &= x
    return x | y


def of_a_copy(x, y):
    x = x * 2
    x += y
    return x.relu_()


def under_checkpointing(x, y):
    return checkpoint(lambda one: one.exp_(), x * 1, use_reentrant=False) + y


def looked_up(x, y):
    return F.embedding(y.to(torch.int64), x)


def looked_up_and_renormalised(x, y):
    return F.embedding(y.to(torch.int64), x, max_norm=2.0)


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (in_view, {"x"}),
        (by_data, {"y"}),
        (by_flag, {"x"}),
        (of_a_copy, set()),
        (under_checkpointing, set()),
        (looked_up, set()),
        (looked_up_and_renormalised, {"x"}),
    ],
)
def test_inputs_that_are_written_to_are_found(function, written):
    known, found = effects(function, X.clone(), X.clone())
    assert found == written
    assert known.hindrance == ""


def test_operators_and_out_write_too():
    assert "y" in effects(by_out, X.clone(), X.clone())[1]
    assert effects(by_operator, X.bool(), X.bool())[1] == {"y"}


def test_running_statistics_are_written_to():
    norm = nn.BatchNorm1d(4)
    written = effects(norm, X.clone())[1]
    assert {name.rpartition("buffers_")[2] for name in written} >= {
        "num_batches_tracked",
        "running_mean",
        "running_var",
    }


def test_memory_that_two_inputs_share_must_not_be_written_to():
    both = torch.zeros(2, 4)
    known, _ = effects(lambda x, y: x.add_(1) + y, both[0], both[1])
    assert "share" in known.hindrance
    known, _ = effects(lambda x, y: x + y, both[0], both[1])
    assert known.hindrance == ""


def test_attention_and_masks_write_to_nothing():
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    known, written = effects(lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.0, True), x)
    assert (known.hindrance, written, known.differentiable) == ("", set(), True)
    known, written = effects(lambda x, y: (x & y) | x, X.bool(), X.bool())
    assert (known.hindrance, written, known.differentiable) == ("", set(), False)
