"""``seed_all``: the same run twice, and no dropout where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import LifecycleError, seed_all


@pytest.fixture(autouse=True)
def _modes_as_before() -> Iterator[None]:
    before = len(torch.overrides._get_current_function_mode_stack())
    yield
    while len(torch.overrides._get_current_function_mode_stack()) > before:
        torch.overrides._pop_mode()
    torch.use_deterministic_algorithms(False)


X = torch.ones(2, 3, 4, 4, 4) + 1


def attention(**options: bool) -> torch.Tensor:
    layer = nn.MultiheadAttention(8, 2, dropout=0.9, batch_first=True)
    x = torch.ones(2, 3, 8)
    return layer(x, x, x, **options)[0] - layer.eval()(x, x, x, **options)[0]


def recurrent(kind: type[nn.RNNBase], packed: bool) -> torch.Tensor:
    layer = kind(4, 4, num_layers=2, dropout=0.9)
    x = torch.ones(3, 2, 4)
    inputs = nn.utils.rnn.pack_padded_sequence(x, [3, 2]) if packed else x
    results = [layer(inputs)[0], layer.eval()(inputs)[0]]
    first, second = (result.data if packed else result for result in results)
    return first - second


def same(dropped: torch.Tensor) -> torch.Tensor:
    return dropped - X


DROPOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "module": lambda: same(nn.Dropout(0.9)(X)),
    "module in place": lambda: same(nn.Dropout(0.9, inplace=True)(X.clone())),
    "alpha module": lambda: same(nn.AlphaDropout(0.9)(X)),
    "feature alpha module": lambda: same(nn.FeatureAlphaDropout(0.9)(X)),
    "F.dropout": lambda: same(F.dropout(X, 0.9)),
    "F.dropout keyword": lambda: same(F.dropout(X, p=0.9, training=True)),
    "F.dropout default": lambda: same(F.dropout(X)),
    "F.dropout1d": lambda: same(F.dropout1d(X[0, 0], 0.9)[None, None]),
    "F.dropout2d": lambda: same(F.dropout2d(X[0], 0.9)[None]),
    "F.dropout3d": lambda: same(F.dropout3d(X, 0.9)),
    "F.alpha_dropout": lambda: same(F.alpha_dropout(X, 0.9, True)),
    "F.feature_alpha_dropout": lambda: same(F.feature_alpha_dropout(X, 0.9, True)),
    "torch.dropout": lambda: same(torch.dropout(X, 0.9, True)),
    "torch.dropout_": lambda: same(torch.dropout_(X.clone(), 0.9, True)),
    "torch.native_dropout": lambda: same(torch.native_dropout(X, 0.9, True)[0]),
    "torch.feature_dropout": lambda: same(torch.feature_dropout(X, 0.9, True)),
    "torch.alpha_dropout": lambda: same(torch.alpha_dropout(X, 0.9, True)),
    "sdpa": lambda: F.scaled_dot_product_attention(X[0], X[0], X[0], dropout_p=0.9) - X[0],
    "attention": attention,
    "attention without weights": lambda: attention(need_weights=False),
    **{
        f"{kind.__name__} {'packed' if packed else 'padded'}": lambda kind=kind, packed=packed: recurrent(kind, packed)
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for packed in (True, False)
    },
}


@pytest.mark.parametrize("kind", DROPOUTS)
def test_every_kind_of_dropout_is_off(kind: str) -> None:
    torch.manual_seed(1)
    assert DROPOUTS[kind]().abs().max() > 1e-3
    seed_all(1, rm_dropout=True)
    assert DROPOUTS[kind]().abs().max() < 1e-5


def test_the_same_seed_gives_the_same_numbers() -> None:
    seed_all(7)
    first = torch.rand(3), F.dropout(torch.ones(20))
    seed_all(7)
    assert all(torch.equal(a, b) for a, b in zip(first, (torch.rand(3), F.dropout(torch.ones(20))), strict=True))


@pytest.mark.parametrize("arguments", [(-1,), (2**32,), (True,), (1.5,), (1, 1), (1, False, "yes")])
def test_wrong_arguments_are_named(arguments: tuple[object, ...]) -> None:
    with pytest.raises(LifecycleError, match="seed_all: "):
        seed_all(*arguments)
