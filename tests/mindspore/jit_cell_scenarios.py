"""Runs of a dynamic graph whose model has compiled Cells, each for a process of its own."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn


def dense() -> nn.Dense:
    rng = np.random.default_rng(7)
    weight = Tensor(rng.standard_normal((4, 4)).astype(np.float32))
    return nn.Dense(4, 4, weight_init=weight, bias_init="ones")


class Block(nn.Cell):
    """A Cell that is called twice, and a container."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dense()
        self.inner = nn.SequentialCell(dense(), nn.ReLU())

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x)) + self.first(x * 2)


class Compiled(Block):
    """The same, compiled."""

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x)) + self.first(x * 2)


class Net(nn.Cell):
    """A dynamic part and a block that runs twice."""

    def __init__(self, block: nn.Cell) -> None:
        super().__init__()
        self.head = dense()
        self.block = block

    def construct(self, x: Tensor) -> Tensor:
        hidden = mint.add(self.head(x), x)
        return (self.block(hidden) + hidden * self.block(hidden * 0.5)).sum()


class Nested(nn.Cell):
    """A compiled Cell in a compiled Cell."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dense()
        self.inner = Compiled()

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x)) + self.first(x * 2)


class Whole(Net):
    """A model that is compiled as a whole."""

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        hidden = mint.add(self.head(x), x)
        return (self.block(hidden) + hidden * self.block(hidden * 0.5)).sum()


def block_of(kind: str) -> nn.Cell:
    block: nn.Cell = {"decorated": Compiled, "nested": Nested}.get(kind, Block)()
    if kind in {"assigned", "bytecode"}:
        block.construct = ms.jit(block.construct, capture_mode="ast" if kind == "assigned" else "bytecode")
    return block


def train(folder: str, config: dict[str, Any] | None, kind: str = "decorated", before: bool = False) -> dict[str, Any]:
    """Three steps, with or without the tool; results as hexadecimal, what was logged, Cells with own ``construct``."""
    from msprobe.mindspore import PrecisionDebugger

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("msprobe").addHandler(handler)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    debugger = None
    if config is not None:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps({"dump_path": str(Path(folder) / "dump"), **config}))
        debugger = PrecisionDebugger(config_path=file)
    net = (Whole if kind == "whole" else Net)(block_of(kind))
    x = Tensor(np.linspace(-1, 1, 8).reshape(2, 4), ms.float32)
    gradient = ms.value_and_grad(net, 0, net.trainable_params())
    if before:
        gradient(x)
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    seen = []
    for _ in range(3):
        if debugger is not None:
            debugger.start(net)
        value, (of_input, of_parameters) = gradient(x)
        optimizer(of_parameters)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        seen.append([item.asnumpy().tobytes().hex() for item in (value, of_input, *of_parameters)])
    net.block.first(x)  # the same Cell, called from Python
    if debugger is not None:
        debugger._session.close()
        if debugger._compiled is not None:
            debugger._compiled.close()
    own = sorted(path for path, cell in net.cells_and_names() if "construct" in vars(cell))
    return {"seen": seen, "said": said, "own": own}


class Identity(nn.Cell):
    """What a tap of a gradient is, without the tap."""

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> Any:
        return (dout,)


class Through(nn.Cell):
    """The input of a Cell goes through it."""

    def __init__(self, tap: nn.Cell | None) -> None:
        super().__init__()
        self.dense = dense()
        self.tap = tap

    def construct(self, x: Tensor) -> Tensor:
        if self.tap is not None:
            x = self.tap(x)
        return self.dense(x)


class Twice(nn.Cell):
    """Compiled; uses a Cell twice."""

    def __init__(self, tap: nn.Cell | None) -> None:
        super().__init__()
        self.through = Through(tap)

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.through(x) + self.through(x * 2)


def gradient_with_identity_bprop() -> list[str]:
    """Gradient of a weight without and with Cells in the graph that pass value and gradient on."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    found = []
    for tap in (None, Identity()):
        block = Twice(tap)
        weights = block.trainable_params()
        gradient = ms.grad(lambda x, block=block: (block(x) + x * block(x * 0.5)).sum(), None, weights)
        result = gradient(Tensor(np.linspace(-1, 1, 8).reshape(2, 4), ms.float32))
        found.append(result[0].asnumpy().tobytes().hex())
    return found


def cells_with_taps() -> dict[str, int]:
    """How many Cells count as compiled, or as inside a compiled one."""
    from msprobe.ms_static.compiled_cells import CompiledCells

    kinds = ("decorated", "assigned", "bytecode", "eager")
    return {kind: len(CompiledCells.of([Net(block_of(kind))]).cells) for kind in kinds}
