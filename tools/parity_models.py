"""Language models with random weights for ``peer_parity.py``; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
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


def language_model(name: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """A model by the name of its function here, and its batch of tokens (2, 12) for a seed."""
    return MODELS[name](), _tokens


def _tokens(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (BATCH, TOKENS), generator=generator)


def _llama() -> nn.Module:
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
    return LlamaForCausalLM(config)


def _gpt2() -> nn.Module:
    """Fused q-k-v projection (Conv1D), learned positions, dropout, tied output embedding."""
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32)
    return GPT2LMHeadModel(config)


def _bert() -> nn.Module:
    """Bidirectional attention, post-norm, dropout, tied output embedding."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
    )
    return BertForMaskedLM(config)


def _mixtral() -> nn.Module:
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
    return MixtralForCausalLM(config)


def _t5() -> nn.Module:
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
    return T5ForConditionalGeneration(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "bert": _bert,
    "mixtral": _mixtral,
    "t5": _t5,
}
