"""One training step of small models, for dumps to replay. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

WIDTH, WORDS = 32, 64
MODELS = ("llama", "bert", "t5", "mixtral", "conv")
MODES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "autocast": torch.float32,
}


class ConvNet(nn.Module):
    """Normalisations, in-place activation, grouped and transposed convolution, pooling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.groups = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2), nn.GroupNorm(2, 8)
        self.up, self.drop, self.head = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Dropout(0.1), nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)), inplace=True)
        x = x + self.up(self.groups(self.second(x)))
        x = F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 4)
        return self.head(self.drop(F.silu(x).flatten(1)))


def model(name: str) -> nn.Module:
    """A model of one or two layers by its name in :data:`MODELS`."""
    if name == "conv":
        return ConvNet()
    shape = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 4}
    positions = {"intermediate_size": 48, "max_position_embeddings": 32}
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape, **positions, num_key_value_heads=2))
    if name == "bert":
        return BertForMaskedLM(BertConfig(**shape, **positions))
    if name == "mixtral":
        return MixtralForCausalLM(
            MixtralConfig(**shape, **positions, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
        )
    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))


def training_step(name: str, mode: str) -> Callable[[], None]:
    """Build a model; return its step: forward, backward, clipping and the optimiser."""
    torch.manual_seed(0)
    dtype = MODES[mode]
    made = model(name).to(dtype)
    optimiser = torch.optim.AdamW(made.parameters(), foreach=False)
    images, words = torch.randn(4, 3, 16, 16, dtype=dtype), torch.randint(3, WORDS, (2, 12))
    labels = torch.arange(4)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            conv = name == "conv"
            loss = F.cross_entropy(made(images), labels) if conv else made(input_ids=words, labels=words).loss
        loss.backward()
        nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimiser.step()

    return step
