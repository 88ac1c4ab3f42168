"""Training scenarios for ``peer_parity.py``: small models with random weights, nothing is downloaded.

Each scenario is a model and one training step. The file imports neither of the two tools, so both run the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from parity_ops import OperatorZoo, Recomputed, TwoPasses
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

VOCABULARY, WIDTH, BATCH, TOKENS = 64, 32, 2, 12


@dataclass(frozen=True, slots=True)
class Scenario:
    """A model and what one training step does with it.

    Attributes
    ----------
    model : nn.Module
        Passed to ``PrecisionDebugger.start``.
    train_step : callable
        Runs the step with the given number: forward, backward, optimiser.
    """

    model: nn.Module
    train_step: Callable[[int], None]


def _tokens(seed: int, length: int = TOKENS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=generator)


def _language_model(model: nn.Module) -> Scenario:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(number: int) -> None:
        tokens = _tokens(number)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Scenario(model.train(), train_step)


def llama() -> Scenario:
    """Rotary embedding, grouped-query attention, RMS norm, gated MLP."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return _language_model(LlamaForCausalLM(config))


def gpt2() -> Scenario:
    """Fused q-k-v projection (Conv1D), learned positions, dropout, tied output embedding."""
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32)
    return _language_model(GPT2LMHeadModel(config))


def bert() -> Scenario:
    """Bidirectional attention, post-norm, dropout."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
    )
    return _language_model(BertForMaskedLM(config))


def mixtral() -> Scenario:
    """Mixture of experts: routing, data-dependent indices, per-expert matrix products."""
    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        output_router_logits=True,
    )
    return _language_model(MixtralForCausalLM(config))


def t5() -> Scenario:
    """Encoder and decoder, cross-attention, relative position bias."""
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return _language_model(T5ForConditionalGeneration(config))


class _Residual(nn.Module):
    """Two convolutions with batch norm, in-place ReLU and an in-place addition, as in torchvision's ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


def resnet() -> Scenario:
    """Convolutions, batch norm, in-place activations, pooling, SGD with momentum."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        _Residual(8),
        _Residual(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        images = torch.randn(4, 3, 8, 8, generator=generator)
        loss = F.cross_entropy(model(images), torch.arange(4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Scenario(model.train(), train_step)


def _operators(model: nn.Module, passes: int = 1) -> Scenario:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_step(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        loss = model(torch.rand(4, 8, generator=generator) + 0.5)
        for left in reversed(range(passes)):
            loss.backward(retain_graph=left > 0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Scenario(model.train(), train_step)


def zoo() -> Scenario:
    """Many operators, each called a few times in different ways."""
    return _operators(OperatorZoo())


def recompute() -> Scenario:
    """Activation checkpointing."""
    return _operators(Recomputed())


def passes() -> Scenario:
    """Two backward passes over one graph."""
    return _operators(TwoPasses(), passes=2)


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    build.__name__: build for build in (llama, gpt2, bert, mixtral, t5, resnet, zoo, recompute, passes)
}
