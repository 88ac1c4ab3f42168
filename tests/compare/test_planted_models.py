"""Faults planted into models of the transformers library are named with the module that has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import Summary

Plant = Callable[[nn.Module], Any]


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 64, shape or (2, 6))


def make(kind: str) -> tuple[nn.Module, dict[str, Any]]:
    """A small model of one kind with random weights, and what it is called with."""
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
        return transformers.GPT2LMHeadModel(config), {"input_ids": tokens(), "labels": tokens(), "use_cache": False}
    if kind == "bert":
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        bert = transformers.BertConfig(vocab_size=64, max_position_embeddings=16, **sizes)
        return transformers.BertForMaskedLM(bert), {"input_ids": tokens(), "labels": tokens()}
    if kind == "vit":
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        vit = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=5, **sizes)
        return transformers.ViTForImageClassification(vit), {
            "pixel_values": torch.randn(2, 3, 8, 8),
            "labels": torch.tensor([1, 3]),
        }
    if kind == "t5":
        t5 = transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
        t5.decoder_start_token_id = 0
        return transformers.T5ForConditionalGeneration(t5), {"input_ids": tokens(), "labels": tokens()}
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    if kind == "mixtral":
        mixtral = transformers.MixtralConfig(**sizes, **heads, num_local_experts=4, use_cache=False)
        return transformers.MixtralForCausalLM(mixtral), {"input_ids": tokens(), "labels": tokens()}
    llama = transformers.LlamaConfig(**sizes, **heads, use_cache=False)
    return transformers.LlamaForCausalLM(llama), {"input_ids": tokens(), "labels": tokens()}


def record(debugger: Callable[..., Any], folder: Path, kind: str, plant: Plant | None = None, **config: Any) -> Path:
    """One training step of a model, with a fault planted into it."""
    torch.manual_seed(3)
    model, arguments = make(kind)
    model.train()
    if plant is not None:
        plant(model)
    tool = debugger(dump_path=str(folder), **{"task": "statistics", "level": "mix", **config})
    torch.manual_seed(4)
    tool.start(model)
    model(**arguments).loss.backward()
    tool.stop()
    tool.step()
    return folder


def compare(target: Path, golden: Path, out: Path) -> Summary:
    return compare_dumps(Request(target, golden, out)).summary


def one_weight(path: str) -> Plant:
    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(path).view(-1)[-1] += 0.5

    return plant


def attribute(path: str, name: str, value: Any) -> Plant:
    return lambda model: setattr(model.get_submodule(path), name, value)


def without(path: str) -> Plant:
    return lambda model: model.set_submodule(path, nn.Identity())


def half(path: str) -> Plant:
    """Compute a module in bfloat16, as a wrong cast would."""

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(path)
        inner = module.forward
        module.to(torch.bfloat16)
        module.forward = lambda x: inner(x.to(torch.bfloat16)).to(x.dtype)

    return plant


def reseeded(path: str) -> Plant:
    def plant(model: nn.Module) -> None:
        model.get_submodule(path).register_forward_pre_hook(lambda *_: torch.manual_seed(99) and None)

    return plant


def poisoned(path: str) -> Plant:
    """The output of a module is divided by zero."""

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(path)
        inner = module.forward
        module.forward = lambda *given, **named: inner(*given, **named) / torch.zeros(1)

    return plant


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, and what has to be said about it."""

    kind: str
    plant: Plant
    record: str
    cause: str
    module: str
    says: str = ""


CASES = {
    "GPT-2, one weight": Case(
        "gpt2",
        one_weight("transformer.h.1.mlp.c_fc.weight"),
        "Torch.addmm.6.forward",
        "a parameter differs",
        "transformer.h.1.mlp.c_fc",
        "transformer.h.1.mlp.c_fc.weight",
    ),
    "GPT-2, another activation": Case(
        "gpt2",
        attribute("transformer.h.1.mlp", "act", nn.ReLU()),
        "Functional.relu.0.forward",
        "operation differs",
        "transformer.h.1.mlp.act",
    ),
    "BERT, epsilon": Case(
        "bert",
        attribute("bert.encoder.layer.1.output.LayerNorm", "eps", 0.3),
        "Functional.layer_norm.4.forward",
        "an argument differs",
        "bert.encoder.layer.1.output.LayerNorm",
        "0.3, golden 1e-12",
    ),
    "BERT, dropout": Case(
        "bert",
        attribute("bert.encoder.layer.0.output.dropout", "p", 0.4),
        "Functional.dropout.2.forward",
        "an argument differs",
        "bert.encoder.layer.0.output.dropout",
        "0.4, golden 0.1",
    ),
    "ViT, no norm": Case(
        "vit",
        without("vit.layers.1.layernorm_before"),
        "Module.vit.layers.1.layernorm_before.Identity.forward.0",
        "operation differs",
        "vit.layers.1.layernorm_before",
        "is a Identity where golden has a LayerNorm",
    ),
    "ViT, one bias": Case(
        "vit", one_weight("classifier.bias"), "Functional.linear.12.forward", "a parameter differs", "classifier"
    ),
    "T5, seed": Case(
        "t5",
        reseeded("encoder.block.1.layer.1"),
        "Functional.dropout.5.forward",
        "outputs differ from equal inputs",
        "encoder.block.1.layer.1.DenseReluDense.dropout",
        "seed both runs alike",
    ),
    "T5, one weight": Case(
        "t5",
        one_weight("decoder.block.0.layer.1.EncDecAttention.k.weight"),
        "Functional.linear.17.forward",
        "a parameter differs",
        "decoder.block.0.layer.1.EncDecAttention.k",
    ),
    "Llama, half precision": Case(
        "llama",
        half("model.layers.1.mlp"),
        "Functional.linear.11.forward",
        "a parameter differs",
        "model.layers.1.mlp.gate_proj",
        "dtype bfloat16, golden float32",
    ),
    "Llama, NaN": Case(
        "llama",
        poisoned("model.layers.0.mlp"),
        "Tensor.__truediv__.0.forward",
        "an extra call with a non-finite output",
        "model.layers.0.mlp",
    ),
    "Mixtral, router": Case(
        "mixtral",
        one_weight("model.layers.1.mlp.gate.weight"),
        "Functional.linear.9.forward",
        "a parameter differs",
        "model.layers.1.mlp.gate",
        "model.layers.1.mlp.gate.weight",
    ),
}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Runs without a fault, one of each kind of model."""
    known: dict[str, Path] = {}

    def get(debugger: Callable[..., Any], kind: str) -> Path:
        if kind not in known:
            known[kind] = record(debugger, tmp_path_factory.mktemp(kind), kind)
        return known[kind]

    return get


@pytest.mark.parametrize("case", CASES)
def test_fault_in_a_library_model_is_named_with_its_module(
    debugger: Callable[..., Any], golden: Callable[..., Path], tmp_path: Path, case: str
) -> None:
    expected = CASES[case]
    target = record(debugger, tmp_path / "target", expected.kind, expected.plant)
    first = compare(target, golden(debugger, expected.kind), tmp_path / "out").first_divergence
    assert first is not None
    assert (first.record, first.cause, first.module) == (expected.record, expected.cause, expected.module)
    assert expected.says in first.explanation


@pytest.mark.parametrize("kind", ["gpt2", "bert", "vit", "t5", "llama", "mixtral"])
def test_equal_runs_of_a_library_model_have_no_divergence(
    debugger: Callable[..., Any], golden: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    target = record(debugger, tmp_path / "target", kind)
    summary = compare_dumps(Request(target, golden(debugger, kind), tmp_path / "out", exact=True)).summary
    assert (summary.first_divergence, summary.exit_code) == (None, 0)
    assert summary.records["pass"] > 50
