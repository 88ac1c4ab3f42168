"""Models that call many operators in many ways: infix, in place, by keyword, through namespaces, in checkpoints."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class _Cube(torch.autograd.Function):
    """A user's autograd function, whose forward and backward call torch themselves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.mul(gradient, 3 * x**2)


class Infix(nn.Module):
    """Python operators, in every order of tensor and number."""

    def forward(self, x: Tensor) -> Tensor:
        scale = 2.0
        a, b = x + x.roll(1), 1 + x
        a, b = a - b, 3 - a
        c = a * 0.5 * scale + scale * b
        d = c / 2 + 2 / (x + 1) + c / (b * b + 1)
        e = x**2 + x**0.5 + 2**x
        f = -d + (+e)
        g = (x @ x.t()).sum() + torch.ones(8) @ f.t() @ torch.ones(4)
        h = (x.detach() // 0.3) + (x % 0.3) + abs(f)
        mask = (x == 1) | (x > 0.6) & (x <= 1.4) & (x != 2) & ~(x < 0)
        flags = (x.detach() * 8).long()
        bits = ((flags & 3) | (flags << 1)) ^ (flags >> 1)
        if (x > 100).any() or bits.sum() < 0:
            return x
        return d + e * g + h + f * mask + (1 > x) * x + (0.1 <= x) * x  # noqa: SIM300 - reflected on purpose


class InPlace(nn.Module):
    """Augmented assignments, item assignment and underscore methods."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.5
        y += x
        y -= 0.25
        y *= 2
        y /= 3
        y.add_(x, alpha=0.5).mul_(0.9)
        y[0] = x[1]
        y[:, 2:4] = 0.5
        y[y > 2] = 1.0
        y[..., -1] += 1
        z = torch.zeros_like(y)
        z.copy_(y)
        z.clamp_(min=0.1).masked_fill_(z > 3, 0.0)
        z.relu_()
        out = torch.zeros(4, 8)
        torch.add(y.detach(), 1, out=out)
        return z + y.exp() + out


class Shapes(nn.Module):
    """Views, joins, indexing; values that are no tensors."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.view(2, 2, 8).permute(1, 0, 2).reshape(4, 8).contiguous()
        parts = y.chunk(2, dim=-1)
        y = torch.cat(parts[::-1], dim=1) + torch.stack([x, x]).mean(0)
        first, second = torch.split(y, [3, 5], dim=1)
        y = F.pad(first, (0, 5)) + torch.nn.functional.pad(second, (3, 0), value=0.5)
        y = y.masked_fill(y > 2, 0) + y.unsqueeze(0).expand(2, 4, 8).sum(dim=0)
        index = y.argsort(dim=-1, descending=True)
        y = y.gather(1, index) + torch.where(y > 1, y, torch.zeros_like(y))
        y = y.scatter_add(1, index, torch.ones(4, 8)).index_select(0, torch.tensor([3, 2, 1, 0]))
        top = torch.topk(y, 3, dim=1)
        y = y + top.values.sum(1, keepdim=True) + y.to(torch.float64).to(dtype=torch.float32)
        y = y + torch.tril(torch.ones(4, 8, dtype=torch.float32)) + y.double().cumsum(0).float().type_as(x)
        return y.transpose(0, 1).flatten().unflatten(0, (8, 4)).t().squeeze()


class Reductions(nn.Module):
    """Sums, moments, extremes, comparisons; results that are tuples or 0-dim."""

    def forward(self, x: Tensor) -> Tensor:
        low, high = torch.aminmax(x, dim=1)
        best = x.max(dim=1)
        values = x.sum() + x.mean(-1) + x.std(1) + torch.var(x, dim=1, unbiased=False) + x.norm(dim=1)
        values = values + x.prod(1) + torch.logsumexp(x, 1) + best.values + low + high + torch.min(x)
        values = values + x.cumsum(1)[:, -1] + x.float().median(dim=1)[0] + torch.norm(x, p=2, dim=1)
        values = values * torch.maximum(x, x.roll(1, 0)).amax(1) - best.indices * 0.01
        if torch.isnan(values).any() or not torch.isfinite(values).all() or torch.equal(x, values):
            return values
        scaled = torch.einsum("ij,ik->jk", x, x).trace() + torch.dot(x[0], x[1]) + torch.outer(x[0], x[1]).sum()
        return values.unsqueeze(1) * x + scaled


class Algebra(nn.Module):
    """Namespaces of torch: linalg, fft, special; products of matrices; complex numbers; random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        square = x @ x.transpose(0, 1) + 4 * torch.eye(4)
        y = torch.linalg.solve(square, x) + torch.linalg.inv(square).sum() + torch.linalg.norm(x)
        y = y + torch.linalg.vector_norm(x, dim=1, keepdim=True) + torch.norm(x) + torch.linalg.cholesky(square).sum()
        wave = torch.fft.rfft(x, dim=1)
        y = y + torch.fft.irfft(wave * 0.5, n=8, dim=1) + wave.abs().sum() + torch.special.expit(x)
        y = y + torch.bmm(x.view(1, 4, 8), x.view(1, 8, 4)).sum() + torch.addmm(x, square, x, beta=0.5)
        y = y + torch.matmul(x, x.t()).mean() + torch.mm(square, x) + x.matmul(torch.ones(8, 8)).mul(0.1)
        y = y + torch.erf(x) + torch.sin(x).cos() + torch.tanh(x) + x.sigmoid() + torch.rsqrt(x + 1) + x.log1p()
        y = y + torch.lerp(x, y, 0.3) + torch.clamp(y, max=5.0) + torch.pow(x, 3) + x.square() + x.sqrt().reciprocal()
        noise = torch.rand_like(x) + torch.randn(4, 8) + torch.bernoulli(torch.full((4, 8), 0.5))
        return y + torch.empty(4, 8).uniform_(0, 0.1) + torch.zeros(4, 8).normal_() * noise


class Layers(nn.Module):
    """Layers of torch.nn and functions of torch.nn.functional, some with several results."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.gru = nn.GRU(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.rms = nn.RMSNorm(8)
        self.group = nn.GroupNorm(2, 8)
        self.embedding = nn.Embedding(10, 8)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.upward = nn.ConvTranspose1d(1, 1, 3, padding=1)
        self.prelu = nn.PReLU()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        sequence = x.unsqueeze(0)
        recurrent, (hidden, cell) = self.lstm(sequence)
        gated, _ = self.gru(sequence)
        attended, _ = self.attention(sequence, recurrent, gated)
        y = self.norm(recurrent + gated + attended)[0] + hidden.sum() + cell.sum()
        y = self.rms(y) + self.group(y) + self.embedding(torch.arange(4))
        y = self.upward(self.conv(y.unsqueeze(1))).squeeze(1)
        y = self.prelu(self.dropout(y)) + F.gelu(y) + F.silu(y) + F.softmax(y, dim=-1) + F.leaky_relu(y, 0.1)
        pooled, where = F.max_pool2d(y.view(1, 1, 4, 8), 2, return_indices=True)
        y = y + F.max_unpool2d(pooled, where, 2)[0, 0] + F.avg_pool2d(y.view(1, 1, 4, 8), 2).mean()
        y = y + F.interpolate(y.view(1, 1, 4, 8), scale_factor=2, mode="nearest").mean() + F.normalize(y, dim=1)
        heads = F.tanh(y.view(1, 1, 4, 8))
        return y + F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)[0, 0] + F.log_softmax(y, 1)


class OperatorZoo(nn.Module):
    """All of the above, a user's autograd function and several losses."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(8, 8)
        self.infix = Infix()
        self.in_place = InPlace()
        self.shapes = Shapes()
        self.reductions = Reductions()
        self.algebra = Algebra()
        self.layers = Layers()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.entry(x)) + 0.5
        branches = [self.infix, self.in_place, self.shapes, self.reductions, self.algebra, self.layers]
        total = torch.zeros(4, 8)
        for branch in branches:
            total = total + torch.tanh(branch(y) * 0.001)
        total = _Cube.apply(torch.tanh(total))
        target = torch.tensor([1, 3, 5, 7])
        loss = F.cross_entropy(total, target) + F.nll_loss(F.log_softmax(total, dim=1), target)
        loss = loss + F.mse_loss(total, torch.zeros(4, 8)) + F.l1_loss(total, torch.ones(4, 8))
        loss = loss + F.smooth_l1_loss(total, torch.ones(4, 8)) + nn.BCEWithLogitsLoss()(total, torch.ones(4, 8))
        return loss + F.kl_div(F.log_softmax(total, 1), torch.full((4, 8), 0.125), reduction="batchmean")


class Recomputed(nn.Module):
    """Both kinds of activation checkpoint between ordinary layers."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Dropout(0.1))
        self.reentrant = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.entry(x)
        y = y + checkpoint(self.block, y, use_reentrant=False)
        y = y + checkpoint(self.reentrant, y, use_reentrant=True)
        return F.mse_loss(torch.tanh(y), torch.ones(4, 8))


class TwoPasses(nn.Module):
    """For two backward passes over one graph: returns the loss that both start from."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).square().mean()


class NonFinite(nn.Module):
    """An infinity out of finite numbers, and what becomes of it: NaN in the loss and in every gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x) - 100)
        logarithm = torch.log(y)
        return self.second(logarithm).mean()
