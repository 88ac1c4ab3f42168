"""Runs at level L2, each for a process of its own: drive a small network and say what was computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

INPUT = np.linspace(-1.0, 1.0, 8, dtype=np.float32).reshape(2, 4)


class Net(nn.Cell):
    """Three kernels that can be told apart by scope and by type."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 3, weight_init=Tensor(np.arange(12).reshape(3, 4) / 10, ms.float32), bias_init="ones")
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.relu(self.fc(x))


def session_of(folder: str, **config: Any) -> Any:
    """A session for a configuration whose dump goes to ``folder/dump``."""
    from msprobe.core.config_load import load_config
    from msprobe.core.session import Session
    from msprobe.ms_static.adapter import framework_word, static_adapter

    file = Path(folder) / "config.json"
    file.write_text(json.dumps({"dump_path": str(Path(folder) / "dump"), "level": "L2", **config}))
    loaded = load_config(file, framework=framework_word())
    return Session(loaded, static_adapter(loaded))


def run_steps(folder: str, config: dict[str, Any], steps: int = 1, jit_level: str = "O0") -> list[Any]:
    """Two launches of the graph in every step, one more after stop(); the last result."""
    ms.set_context(mode=ms.GRAPH_MODE, jit_level=jit_level)
    session = session_of(folder, **config)
    net, x = Net(), Tensor(INPUT)
    for _ in range(steps):
        session.start(net)
        net(x)
        result = net(x)
        session.stop()
        net(x)
        session.step()
    session.close()
    return result.asnumpy().tolist()


def run_without(mode: str) -> dict[str, list[Any]]:
    """The same without the tool: the intermediate results."""
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    net, x = Net(), Tensor(INPUT)
    hidden = net.fc(x)
    return {
        "MatMul": ops.matmul(x, net.fc.weight.T).asnumpy().tolist(),
        "BiasAdd": hidden.asnumpy().tolist(),
        "ReLU": net(x).asnumpy().tolist(),
    }


def train(folder: str, config: dict[str, Any] | None) -> dict[str, Any]:
    """A training step in graph mode, with or without the tool: loss and parameters."""
    ms.set_context(mode=ms.GRAPH_MODE)
    session = session_of(folder, **config) if config else None
    net, x = Net(), Tensor(INPUT)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    losses = []
    for _ in range(2):
        if session is not None:
            session.start(net)
        losses.append(float(cell(x, Tensor(np.ones((2, 3), np.float32)))))
        if session is not None:
            session.stop()
            session.step()
    if session is not None:
        session.close()
    return {"losses": losses, "weight": net.fc.weight.asnumpy().tolist()}


def run_jit(folder: str, config: dict[str, Any]) -> list[Any]:
    """A dynamic graph with one jit part."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    session = session_of(folder, **config)
    part: Callable[..., Any] = ms.jit(activation)
    x = Tensor(INPUT)
    for _ in range(2):
        session.start()
        doubled = ops.add(x, x)  # eager: no kernel dump
        result = part(doubled)
        session.stop()
        session.step()
    session.close()
    return result.asnumpy().tolist()


def activation(x: Tensor) -> Tensor:
    """What the jit part computes (MindSpore compiles it from its source)."""
    return ops.relu(x)


def run_twice(folder: str, config: dict[str, Any]) -> None:
    """A second run into the same folder, in a process that finds what an earlier one has left."""
    old = Path(folder) / "dump" / "rank_0" / "Net" / "0" / "0"
    old.mkdir(parents=True)
    (old / "old.npy").write_bytes(b"")
    import os

    for place in (old, Path(folder) / "dump" / "rank_0"):
        os.utime(place, (1, 1))
    run_steps(folder, config)


def graph_before(folder: str, config: dict[str, Any]) -> str:
    """A dynamic-graph script whose jit part has run before the first start(): what the log says at the end."""
    import logging

    ms.set_context(mode=ms.PYNATIVE_MODE)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("msprobe").addHandler(handler)
    session = session_of(folder, **config)
    part: Callable[..., Any] = ms.jit(activation)
    part(Tensor(INPUT)).asnumpy()
    session.start()
    part(Tensor(INPUT)).asnumpy()
    session.stop()
    session.step()
    session.close()
    return "\n".join(said)


def context_changed(folder: str) -> str:
    """The context is set after the debugger was made: what start() raises."""
    ms.set_context(mode=ms.GRAPH_MODE, jit_level="O0")
    session = session_of(folder, task="tensor")
    ms.set_context(jit_level="O2")
    try:
        session.start(Net())
    except ValueError as error:
        return str(error)
    return ""


def refused(folder: str, config: dict[str, Any], jit_level: str) -> str:
    """What making the adapter raises."""
    ms.set_context(mode=ms.GRAPH_MODE, jit_level=jit_level)
    try:
        session_of(folder, **config)
    except ValueError as error:
        return str(error)
    return ""


def other_calls(folder: str) -> list[str]:
    """Calls of the life cycle that level L2 does not have: what they raise or log."""
    import logging

    ms.set_context(mode=ms.GRAPH_MODE)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("msprobe").addHandler(handler)
    session = session_of(folder, task="tensor")
    session.start(Net(), token_range=[0, 1])
    session.stop()
    session.step()
    return said


def switch_of_other_targets(folder: str) -> None:
    """The calls that an Ascend target gets, here on the CPU: iterations are steps there, too."""
    from msprobe.core.config_load import load_config
    from msprobe.core.support import Mode
    from msprobe.ms_static.dump_switch import DumpSwitch
    from msprobe.ms_static.kernel_dump import plan_kernel_dump

    ms.set_context(mode=ms.GRAPH_MODE)
    file = Path(folder) / "config.json"
    content = {"dump_path": f"{folder}/dump", "level": "L2", "task": "tensor", "tensor": {"list": ["relu"]}}
    file.write_text(json.dumps(content))
    switch = DumpSwitch(
        plan_kernel_dump(load_config(file, framework="mindspore"), Mode.STATIC_O0), stepwise=True, switchable=True
    )
    switch.arm()
    net, x = Net(), Tensor(INPUT)
    for step in (0, 3, 4, 1):
        switch.on(step)
        net(x)
        switch.off()
