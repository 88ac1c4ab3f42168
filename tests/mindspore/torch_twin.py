"""The PyTorch twin of `compare_scenarios.Mlp`, and the recording of it that MindSpore's is compared with.

The lane of MindSpore has no PyTorch. Where both are known, ``python tests/mindspore/torch_twin.py`` makes the folder
``torch_mlp`` anew; ``stack.json`` is left out, as it names files of the machine.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from torch import nn

from msprobe.pytorch import PrecisionDebugger

RECORDED = Path(__file__).with_name("torch_mlp")


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    """The numbers of `dynamic_models.floats`."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Mlp(nn.Module):
    """Normalisation, two layers and an activation between them, with the weights of the MindSpore model."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=1e-7)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)
        with torch.no_grad():
            self.up.weight.copy_(floats(16, 8))
            self.down.weight.copy_(floats(4, 16, seed=1))
            self.up.bias.zero_()
            self.down.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x)))).sum()


def main() -> None:
    shutil.rmtree(RECORDED, ignore_errors=True)
    debugger = PrecisionDebugger(task="statistics", level="mix", dump_path=str(RECORDED))
    model = Mlp()
    with debugger.capture(model):
        model(floats(3, 8, seed=2)).backward()
    (folder,) = (RECORDED / "step0").iterdir()
    folder.rename(folder.with_name("rank0"))
    (RECORDED / "step0" / "rank0" / "stack.json").unlink()


if __name__ == "__main__":
    main()
