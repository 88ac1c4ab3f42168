"""Activation checkpointing inside compiled code: the records of the eager run, the results of the compiled one."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from compiled_models import assert_same, names, recorded, train_step
from debugger_traces import dump_of
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        first, second = self.linear(self.norm(x)).chunk(2, dim=-1)
        return x + (F.gelu(first) * 2 + F.tanh(second)).repeat(1, 2)


class Checkpointed(nn.Module):
    """Two blocks under a checkpoint each, and one without."""

    def __init__(self, **options):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.options = options

    def forward(self, x):
        for block in self.blocks[:2]:
            x = checkpoint(block, x, use_reentrant=False, **self.options)
        return self.blocks[2](x).exp().sum()


class Nested(nn.Module):
    """A checkpoint inside another one, around a function with tensors from outside."""

    def __init__(self):
        super().__init__()
        self.inner = Block()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        def region(h):
            h = checkpoint(self.inner, h * self.scale, use_reentrant=False)
            return torch.sin(h), h.relu()

        first, second = checkpoint(region, x, use_reentrant=False)
        return (first + second).sum()


class Mixed(nn.Module):
    """A plain region around a selective one."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        def region(h):
            h = checkpoint(self.linear, h.sin(), use_reentrant=False, context_fn=SELECTIVE)
            return h * h

        return checkpoint(region, x, use_reentrant=False).sum()


def _keep_products(_context, operator, *_args, **_kwargs):
    keep = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, _keep_products)
MODELS = {
    "whole blocks": Checkpointed,
    "nested": Nested,
    "selective": lambda: Checkpointed(context_fn=SELECTIVE),
}


@pytest.mark.parametrize(
    ("name", "level", "backend"),
    [
        ("whole blocks", "L0", "aot_eager"),
        ("whole blocks", "mix", "aot_eager"),
        ("whole blocks", "mix", "eager"),
        ("nested", "mix", "aot_eager"),
        ("nested", "mix", "eager"),
        ("selective", "mix", "aot_eager"),
    ],
)
def test_a_checkpointed_region_has_the_records_of_the_eager_run(debugger, name, level, backend):
    model, x = MODELS[name](), torch.randn(2, 4, requires_grad=True)
    eager = recorded(debugger, model, model, x, level=level, risk_level="ALL")
    twin = copy.deepcopy(model)
    compiled = recorded(debugger, twin, torch.compile(twin, backend=backend), x, level=level, risk_level="ALL")
    first_runs = [record for record in names(eager.data) if "#" not in record]
    assert names(compiled.data) == first_runs
    for record in first_runs:
        assert_same(eager.data[record], compiled.data[record], record)
    reasons = compiled.coverage["not_recorded"]
    assert not any("higher-order" in reason for reason in reasons)
    assert reasons["calls that a checkpoint of a compiled graph may compute again"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_results_are_bitwise_those_of_the_unprobed_compiled_run(debugger, name):
    model, x = MODELS[name](), torch.randn(2, 4)
    run = torch.compile(model, backend="aot_eager")
    expected = train_step(model, run, x)
    tool = debugger(level="mix")
    with tool.capture(model):
        found = train_step(model, run, x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


@pytest.mark.slow
def test_inductor_code_has_the_same_records_and_results(debugger):
    model, x = Mixed(), torch.randn(2, 4)
    eager = recorded(debugger, model, model, x, level="mix")
    run = torch.compile(model)
    expected = train_step(model, run, x)
    tool = debugger(level="mix")
    with tool.capture(model):
        found = train_step(model, run, x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    compiled = dump_of(tool)
    assert names(compiled.data) == [record for record in names(eager.data) if "#" not in record]
    for record in names(compiled.data):
        assert_same(eager.data[record], compiled.data[record], record)
