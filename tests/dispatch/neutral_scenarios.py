"""Training scenarios that a capture tool can disturb. Each builds a small model and one step of its training.

Names say what could go wrong. The step returns its loss and whatever else must not change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from neutral_run import Scenario, Step
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

SCENARIOS: dict[str, Scenario] = {}
Built = tuple[nn.Module, Step]


def scenario(build: Scenario) -> Scenario:
    """Add a scenario to :data:`SCENARIOS`."""
    SCENARIOS[build.__name__] = build
    return build


class Lambda(nn.Module):
    """A module around submodules and a function of them: ``forward(*args)`` is ``function(self, *args)``."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def sgd(model: nn.Module, loss_of: Callable[[], torch.Tensor], rate: float = 0.1) -> Step:
    """A step of plain SGD on ``loss_of()``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return optimised(optimizer, loss_of)


def optimised(optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor]) -> Step:
    """A step of ``optimizer`` on ``loss_of()``."""

    def step() -> Sequence[Any]:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return [loss]

    return step


# -- modules


@scenario
def batch_norm_with_a_shared_input() -> Built:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.stem(x)
        return m.head(m.left(h) + m.right(h) * h + h.mean())

    model = nn.Sequential(
        Lambda(
            forward,
            stem=nn.Conv2d(3, 8, 3, padding=1),
            left=nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)),
            right=nn.Sequential(nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1)),
            head=nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)),
        )
    )
    return model, sgd(model, lambda: model(torch.randn(4, 3, 9, 9)).pow(2).sum())


@scenario
def in_place_relu_after_convolution_and_norm() -> Built:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 1),
        nn.Hardtanh(inplace=True),
        nn.Conv2d(6, 6, 1),
        nn.Dropout2d(0.3, inplace=True),
    )
    return model, sgd(model, lambda: model(torch.randn(2, 3, 8, 8)).sum())


@scenario
def in_place_on_a_modules_output() -> Built:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.first(x)
        h += x
        h.mul_(2)
        g = m.second(h)
        g[:, 1:3] = 0.5
        g[:, 0].add_(h[:, 1])
        parts = m.third(g).chunk(2, dim=1)
        return F.relu_(parts[0] * parts[1])

    model = nn.Sequential(Lambda(forward, first=nn.Linear(6, 6), second=nn.Linear(6, 6), third=nn.Linear(6, 6)))
    return model, sgd(model, lambda: model(torch.randn(5, 6)).square().mean())


@scenario
def in_place_on_views_and_slices() -> Built:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.linear(x)
        h.narrow(1, 1, 2).mul_(x[:, :2])
        h.t()[0].copy_(x[:, 1])
        h.masked_fill_(x > 1, 0.25)
        h.index_add_(0, torch.tensor([0, 1]), x[:2])
        h.view(-1, 2, 3)[:, 0].relu_()
        out = torch.zeros(4, 6)
        out[:, ::2] = h[:, :3]
        out.add_(h.detach()).transpose_(0, 1)
        return out

    model = nn.Sequential(Lambda(forward, linear=nn.Linear(6, 6)))
    return model, sgd(model, lambda: model(torch.randn(4, 6)).square().sum())


@scenario
def dropout_and_random_draws() -> Built:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.RReLU(), nn.AlphaDropout(0.2), nn.Linear(8, 2))

    def loss_of() -> torch.Tensor:
        noise = torch.randn(3, 8) + float(np.random.rand()) + random.random()
        out = model(noise) + torch.rand(3, 2).bernoulli_(0.5)
        return out.sum() + F.gumbel_softmax(out).square().sum() + torch.multinomial(out.softmax(1), 1).sum()

    return model, sgd(model, loss_of)


@scenario
def recurrent_networks() -> Built:
    parts = {
        "lstm": nn.LSTM(5, 4, num_layers=2, dropout=0.2, bidirectional=True),
        "gru": nn.GRU(8, 4, batch_first=True),
        "rnn": nn.RNN(4, 3),
        "cell": nn.LSTMCell(3, 3),
    }

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h, (hidden, _) = m.lstm(x)
        h, _ = m.gru(h)
        packed = nn.utils.rnn.pack_padded_sequence(h, torch.tensor([6, 4, 3]))
        h, _ = nn.utils.rnn.pad_packed_sequence(m.rnn(packed)[0])
        state = m.cell(h[0])
        state = m.cell(h[1], state)
        return state[0].sum() + hidden.square().sum()

    model = nn.Sequential(Lambda(forward, **parts))
    return model, sgd(model, lambda: model(torch.randn(6, 3, 5)))


@scenario
def attention() -> Built:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = m.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.0)
        same = F.scaled_dot_product_attention(q, q, q)
        z, weights = m.mha(x, x, x)
        h = (y + same).transpose(1, 2).reshape(2, 5, 8) + m.layer(z)
        return h.square().mean() + weights.square().sum()

    model = nn.Sequential(
        Lambda(
            forward,
            qkv=nn.Linear(8, 24),
            mha=nn.MultiheadAttention(8, 2, batch_first=True),
            layer=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        )
    )
    return model, sgd(model, lambda: model(torch.randn(2, 5, 8)))


@scenario
def fused_inference_path_of_a_transformer_encoder() -> Built:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2)).eval()

    def step() -> Sequence[Any]:
        with torch.no_grad():
            return [model(torch.randn(2, 5, 8))]

    return model, step


@scenario
def tied_weights() -> Built:
    def forward(m: Any, tokens: torch.Tensor) -> torch.Tensor:
        h = m.block(m.block(m.embedding(tokens)))
        return F.cross_entropy(m.head(h).flatten(0, 1), tokens.flatten(), label_smoothing=0.1)

    parts = {"embedding": nn.Embedding(7, 6), "block": nn.Linear(6, 6), "head": nn.Linear(6, 7, bias=False)}
    parts["head"].weight = parts["embedding"].weight
    model = nn.Sequential(Lambda(forward, **parts))
    return model, sgd(model, lambda: model(torch.randint(0, 7, (3, 4))))


@scenario
def reparametrised_weights_and_updated_buffers() -> Built:
    from torch.nn.utils import parametrizations

    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(5, 5)),
        nn.BatchNorm1d(5),
        parametrizations.weight_norm(nn.Linear(5, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
    )
    return model, sgd(model, lambda: model(torch.randn(6, 5)).square().sum())


@scenario
def sparse_embedding_gradients() -> Built:
    parts = {"bag": nn.EmbeddingBag(9, 4, mode="sum", sparse=True), "embedding": nn.Embedding(9, 4, sparse=True)}
    model = nn.Sequential(Lambda(lambda m, i: (m.bag(i) * m.embedding(i).sum(1)).sum(), **parts))
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    return model, optimised(optimizer, lambda: model(torch.randint(0, 9, (3, 2))))


# -- optimisers and precision


@scenario
def adamw_with_clipped_gradients() -> Built:
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)

    def step() -> Sequence[Any]:
        optimizer.zero_grad(set_to_none=False)
        loss = F.mse_loss(model(torch.randn(5, 6)), torch.randn(5, 1))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        return [loss, norm, *(s["exp_avg_sq"] for s in optimizer.state.values()), schedule.get_last_lr()]

    return model, step


@scenario
def fused_and_multi_tensor_optimisers() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    first, second = model[0].parameters(), model[2].parameters()
    optimizers = [torch.optim.Adam(first, fused=True), torch.optim.SGD(second, lr=0.1, momentum=0.9, foreach=True)]

    def step() -> Sequence[Any]:
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return [loss]

    return model, step


@scenario
def closure_of_an_optimiser() -> Built:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step() -> Sequence[Any]:
        x = torch.randn(4, 3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return [optimizer.step(closure)]

    return model, step


@scenario
def autocast_to_bfloat16() -> Built:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Conv1d(4, 4, 3), nn.Linear(6, 3))

    def loss_of() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(torch.randn(2, 4, 8))
            return F.cross_entropy(out.flatten(0, 1), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))

    return model, sgd(model, loss_of)


@scenario
def half_precision_model_with_a_gradient_scaler() -> Built:
    model = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.SiLU(), nn.Linear(8, 2)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)

    def step() -> Sequence[Any]:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, dtype=torch.bfloat16)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return [loss, scaler.get_scale()]

    return model, step


@scenario
def gradient_accumulation_over_micro_batches() -> Built:
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Sequence[Any]:
        losses = []
        for _ in range(3):
            losses.append(model(torch.randn(6, 5)).square().mean() / 3)
            losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        return losses

    return model, step


@scenario
def main_gradients_kept_by_the_user() -> Built:
    """Gradients are moved to ``main_grad`` by a hook of the user, as tensor-parallel frameworks do."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def keep(parameter: torch.Tensor) -> None:
        kept = getattr(parameter, "main_grad", None)
        parameter.main_grad = parameter.grad.double() + (0 if kept is None else kept)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(keep)

    def step() -> Sequence[Any]:
        loss = model(torch.randn(3, 4)).sum()
        loss.backward()
        return [loss]

    return model, step


# -- checkpointing


def _block(last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.3), nn.Linear(6, 6), last)


def _checkpointed(run: Callable[[nn.Module, torch.Tensor], torch.Tensor], *, in_place: bool = True) -> Built:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.stem(x)
        for name in ("a", "b"):
            h = h + run(getattr(m, name), h)
        return m.head(h).square().mean()

    a, b = (_block(nn.ReLU(inplace=in_place)) for _ in range(2))
    model = nn.Sequential(Lambda(forward, stem=nn.Linear(6, 6), a=a, b=b, head=nn.Linear(6, 2)))
    return model, sgd(model, lambda: model(torch.randn(4, 6)))


@scenario
def reentrant_checkpoint() -> Built:
    return _checkpointed(lambda block, h: checkpoint(block, h, use_reentrant=True))


@scenario
def non_reentrant_checkpoint() -> Built:
    return _checkpointed(lambda block, h: checkpoint(block, h, use_reentrant=False))


@scenario
def non_reentrant_checkpoint_that_stops_late() -> Built:
    from torch.utils.checkpoint import set_checkpoint_early_stop

    def run(block: nn.Module, h: torch.Tensor) -> torch.Tensor:
        with set_checkpoint_early_stop(False):
            return checkpoint(block, h, use_reentrant=False)

    return _checkpointed(run)


@scenario
def nested_checkpoints() -> Built:
    def run(block: nn.Module, h: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(block[2:], block[:2](x), use_reentrant=False)

        return checkpoint(inner, h, use_reentrant=False)

    return _checkpointed(run)


@scenario
def selective_checkpoint() -> Built:
    def policy(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        keep = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default, torch.ops.aten.native_dropout.default)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(policy)

    return _checkpointed(
        lambda block, h: checkpoint(block, h, use_reentrant=False, context_fn=contexts), in_place=False
    )


@scenario
def checkpoint_under_autocast() -> Built:
    def run(block: nn.Module, h: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return checkpoint(block, h, use_reentrant=False).float()

    return _checkpointed(run)


@scenario
def saved_tensors_packed_by_the_user() -> Built:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True), nn.LayerNorm(5), nn.Linear(5, 2))
    packed: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(("pack", tuple(tensor.shape)))
        return tensor.double() if tensor.is_floating_point() else tensor

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(("unpack", tuple(tensor.shape)))
        return tensor.float() if tensor.is_floating_point() else tensor

    def step() -> Sequence[Any]:
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = model(torch.randn(3, 5)).square().sum()
        model.zero_grad()
        loss.backward()
        return [loss, list(packed)]

    return model, step
