"""The training scenarios of ``peer_parity.py`` by name. Imports neither of the two tools: both run the same code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from parity_models import language_model
from parity_networks import SequenceTagger, VisionTransformer, residual_network
from parity_ops import NonFinite, OperatorZoo, Recomputed, TwoPasses
from torch import Tensor, nn

VOCABULARY, WIDTH = 16, 8


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


def _language(name: str) -> Scenario:
    """Next-token or denoising loss, clipped gradients, AdamW."""
    model, batch = language_model(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(number: int) -> None:
        tokens = batch(number)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Scenario(model.train(), train_step)


def _images(model: nn.Module) -> Scenario:
    """Classification of small images, SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(number: int) -> None:
        images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(number))
        loss = nn.functional.cross_entropy(model(images), torch.arange(4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Scenario(model.train(), train_step)


def _operators(model: nn.Module, passes: int = 1) -> Scenario:
    """A model that returns its loss; ``passes`` backward passes over its graph."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_step(number: int) -> None:
        loss = model(_rows(number))
        for left in reversed(range(passes)):
            loss.backward(retain_graph=left > 0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Scenario(model.train(), train_step)


def _autocast() -> Scenario:
    """Matrix products in bfloat16, norms and loss in float32, gradients accumulated over two batches."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8), nn.Softmax(dim=-1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train_step(number: int) -> None:
        for part in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(_rows(2 * number + part))
                loss = nn.functional.mse_loss(out.float(), torch.full((4, 8), 0.125))
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Scenario(model.train(), train_step)


def _tagger() -> Scenario:
    """LSTM over sequences of different length."""
    model = SequenceTagger(VOCABULARY, WIDTH)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)

    def train_step(number: int) -> None:
        tokens = torch.randint(0, VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(number))
        scores = model(tokens, torch.tensor([6, 4, 3]))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    return Scenario(model.train(), train_step)


def _rows(seed: int) -> Tensor:
    return torch.rand(4, WIDTH, generator=torch.Generator().manual_seed(seed)) + 0.5


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "llama": lambda: _language("llama"),
    "gpt2": lambda: _language("gpt2"),
    "bert": lambda: _language("bert"),
    "mixtral": lambda: _language("mixtral"),
    "t5": lambda: _language("t5"),
    "resnet": lambda: _images(residual_network()),
    "vit": lambda: _images(VisionTransformer()),
    "lstm": _tagger,
    "autocast": _autocast,
    "zoo": lambda: _operators(OperatorZoo()),
    "recompute": lambda: _operators(Recomputed()),
    "passes": lambda: _operators(TwoPasses(), passes=2),
    "nonfinite": lambda: _operators(NonFinite()),
}
