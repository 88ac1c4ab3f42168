"""Imported by a process that replays: operators that are right in float64 and wrong in the dtype of a model.

So a device looks whose kernels are wrong. What breaks is chosen by the environment variable ``BROKEN``.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F

RIGHT = {name: getattr(F, name) for name in ("linear", "conv2d", "layer_norm")}
RIGHT |= {name: getattr(torch, name) for name in ("matmul", "tanh", "exp", "cat")}


def noise(x, w, b=None):
    y = RIGHT["linear"](x, w, b)
    return y if y.dtype is torch.float64 else y * (1 + 1e-2 * torch.randn_like(y))


def one_wrong_channel(x, w, *args, **kwargs):
    y = RIGHT["conv2d"](x, w, *args, **kwargs)
    if y.dtype is torch.float64:
        return y
    scale = torch.ones(1, y.shape[1], 1, 1, dtype=y.dtype)
    scale[:, -1] = 1.05
    return y * scale


def narrow_accumulator(a, b):
    return RIGHT["matmul"](a.bfloat16(), b.bfloat16()).float() if a.dtype is torch.float32 else RIGHT["matmul"](a, b)


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient if gradient.dtype is torch.float64 else gradient * 1.1


def wrong_backward(x, *args, **kwargs):
    return RIGHT["layer_norm"](_WrongGradient.apply(x), *args, **kwargs)


def swapped(tensors, dim=0):
    tensors = list(tensors)
    return RIGHT["cat"](tensors if tensors[0].dtype is torch.float64 else tensors[::-1], dim)


def dies(a, b):
    os.kill(os.getpid(), signal.SIGSEGV)


def dies_once(x):
    mark = Path(os.environ["MARK"])
    if not mark.exists():
        mark.write_text("")
        os._exit(7)
    return RIGHT["exp"](x)


def hangs(x):
    time.sleep(60)


CHANGES = {
    "noise": (F, "linear", noise),
    "channel": (F, "conv2d", one_wrong_channel),
    "accumulator": (torch, "matmul", narrow_accumulator),
    "backward": (F, "layer_norm", wrong_backward),
    "swapped": (torch, "cat", swapped),
    "dies": (torch, "matmul", dies),
    "dies_once": (torch, "exp", dies_once),
    "hangs": (torch, "tanh", hangs),
}
for what in os.environ.get("BROKEN", "").split():
    setattr(*CHANGES[what])
