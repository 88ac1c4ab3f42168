"""Attention implementations of a transformers model against each other, from real dumps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import Summary


def record(debugger: Callable[..., Any], folder: Path, attention: str, **options: Any) -> Path:
    """One training step of a small Llama."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, attn_implementation=attention, use_cache=False))
    if options.pop("fault", False):
        with torch.no_grad():
            model.model.layers[1].self_attn.o_proj.weight[3, 5] += 0.5
    for layer in model.model.layers if options.pop("checkpointed", False) else ():
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    tool = debugger(**{"dump_path": str(folder), "task": "tensor", "level": "mix", **options})
    tokens = torch.randint(0, 64, (2, 8))
    tool.start(model)
    model(input_ids=tokens, labels=tokens).loss.backward()
    tool.stop()
    tool.step()
    return folder


def compare(target: Path, golden: Path, out: Path) -> Summary:
    return compare_dumps(Request(target, golden, out)).summary


@pytest.mark.parametrize("how", [{}, {"checkpointed": True}, {"level": "L1"}, {"task": "statistics"}], ids=str)
def test_sdpa_against_eager_attention_is_no_divergence(
    debugger: Callable[..., Any], tmp_path: Path, how: dict[str, Any]
) -> None:
    plain = {key: value for key, value in how.items() if key in {"level", "task"}}
    golden = record(debugger, tmp_path / "g", "eager", **plain)
    target = record(debugger, tmp_path / "t", "sdpa", **how)
    summary = compare(target, golden, tmp_path / "out")
    assert summary.first_divergence is None, summary.first_divergence
    assert summary.only_target == 0
    assert set(summary.records) <= {"pass", "uncompared", "unmatched"}
    assert summary.records["pass"] > 150


@pytest.mark.parametrize("how", [{}, {"task": "statistics"}], ids=str)
def test_fault_is_named_across_attention_implementations(
    debugger: Callable[..., Any], tmp_path: Path, how: dict[str, Any]
) -> None:
    plain = {key: value for key, value in how.items() if key in {"level", "task"}}
    golden = record(debugger, tmp_path / "g", "eager", **plain)
    target = record(debugger, tmp_path / "t", "sdpa", fault=True, **how)
    first = compare(target, golden, tmp_path / "out").first_divergence
    assert first is not None
    assert first.cause == "a parameter differs"
    assert "model.layers.1.self_attn.o_proj.weight" in first.explanation
