"""Runs at level L0 in graph mode, each for a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


class Scale(nn.Cell):
    """Keyword arguments, a value that is no tensor, two results."""

    def construct(self, x: Tensor, y: Any = None, factor: int = 2) -> Any:
        return x * factor, y + 1


class Add(nn.Cell):
    """A tuple as an argument."""

    def construct(self, pair: Any) -> Tensor:
        return pair[0] + pair[1]


class Halved(nn.Cell):
    """bfloat16 or float16 inside the graph."""

    def construct(self, x: Tensor) -> Tensor:
        return x * 0.5


class Net(nn.Cell):
    """Nested Cells, one that is called twice, integers, keywords, tuples, bfloat16 and float16."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)

        def dense(inputs: int, outputs: int) -> nn.Dense:
            weight = Tensor(rng.standard_normal((outputs, inputs)).astype(np.float32))
            return nn.Dense(inputs, outputs, weight_init=weight, bias_init="ones")

        self.embedding = nn.Embedding(10, 4, embedding_table=Tensor(rng.standard_normal((10, 4)).astype(np.float32)))
        self.first = dense(4, 4)
        self.scale = Scale()
        self.add = Add()
        self.block = nn.SequentialCell(dense(4, 4), nn.ReLU())
        self.layers = nn.CellList([dense(4, 4) for _ in range(2)])
        self.norm = nn.LayerNorm((4,))
        self.halved = Halved()
        self.short = Halved()
        self.weights = Tensor(rng.standard_normal((2, 4)).astype(np.float32))

    def construct(self, index: Tensor, x: Tensor) -> Tensor:
        hidden = self.first(x) + self.embedding(index)
        pair = self.scale(hidden, y=hidden * 2, factor=3)
        hidden = self.block(self.add(pair))
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.norm(self.first(hidden))
        halved = ops.cast(self.halved(ops.cast(hidden, ms.bfloat16)), ms.float32)
        halved = halved + ops.cast(self.short(ops.cast(hidden / 3, ms.float16)), ms.float32)
        return (halved * self.weights).sum()


def inputs() -> tuple[Tensor, Tensor]:
    return Tensor([1, 2], ms.int32), Tensor(np.linspace(-1, 1, 8).reshape(2, 4), ms.float32)


def session_of(folder: str, **config: Any) -> Any:
    from msprobe.core.config_load import load_config
    from msprobe.core.session import Session
    from msprobe.ms_static.adapter import framework_word, static_adapter

    file = Path(folder) / "config.json"
    file.write_text(json.dumps({"dump_path": str(Path(folder) / "dump"), "level": "L0", **config}))
    loaded = load_config(file, framework=framework_word())
    return Session(loaded, static_adapter(loaded))


def train(folder: str, config: dict[str, Any] | None, steps: int = 2) -> dict[str, Any]:
    """Training steps in graph mode, with or without the tool: losses, gradients and parameters as hexadecimal."""
    ms.set_context(mode=ms.GRAPH_MODE)
    session = session_of(folder, **config) if config is not None else None
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.05)
    gradient = ms.value_and_grad(net, 1, net.trainable_params())
    seen = []
    for _ in range(steps):
        if session is not None:
            session.start(net)
        value, (of_input, of_parameters) = gradient(*inputs())
        optimizer(of_parameters)
        if session is not None:
            session.stop()
            session.step()
        seen.append([value.asnumpy().tobytes().hex(), of_input.asnumpy().tobytes().hex()])
    if session is not None:
        session.close()
    return {"seen": seen, "parameters": [p.asnumpy().tobytes().hex() for p in net.trainable_params()]}


def eager_records(precision: str = "low") -> dict[str, Any]:
    """The same step as a dynamic graph, seen by MindSpore's own hooks: records by name, tensors only."""
    from msprobe.measure.kernel_statistics import tensor_entry

    ms.set_context(mode=ms.PYNATIVE_MODE)
    net, records, counts = Net(), {}, {}

    def entry(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [entry(item) for item in value]
        if isinstance(value, int):
            return {"type": "int", "value": value}
        return tensor_entry(value.asnumpy(), str(value.dtype), low=precision == "low")

    def before(base: str, parameters: Any, index: list[int]) -> Any:
        def hook(cell: Any, args: Any, kwargs: Any) -> None:
            index.append(counts.setdefault(base, 0))
            counts[base] += 1
            record = records[f"{base}.forward.{index[-1]}"] = {"input_args": entry(args)}
            record["input_kwargs"] = {key: entry(value) for key, value in kwargs.items()}
            record["parameters"] = {name: entry(getattr(cell, name)) for name in parameters}

        return hook

    def after(base: str, index: list[int]) -> Any:
        def hook(cell: Any, args: Any, kwargs: Any, output: Any) -> None:
            records[f"{base}.forward.{index[-1]}"]["output"] = entry(output if isinstance(output, tuple) else (output,))

        return hook

    def of_parameter(base: str, name: str) -> Any:
        def hook(gradient: Any) -> None:
            records.setdefault(f"{base}.parameters_grad.0", {})[name] = [entry(gradient)]

        return hook

    for path, cell in net.cells_and_names():
        if path and not isinstance(cell, nn.CellList):
            base, index = f"Cell.{path}.{type(cell).__name__}", []
            cell.register_forward_pre_hook(before(base, tuple(cell._params), index), with_kwargs=True)
            cell.register_forward_hook(after(base, index), with_kwargs=True)
            for name in cell._params:
                getattr(cell, name).register_hook(of_parameter(base, name))
    ms.value_and_grad(net, 1, net.trainable_params())(*inputs())
    return records


class Shared(nn.Cell):
    """One Cell called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.first(self.first(x))


def accumulate(folder: str, config: dict[str, Any]) -> None:
    """Two launches of the graph in one step, the second one with other data."""
    ms.set_context(mode=ms.GRAPH_MODE)
    session = session_of(folder, **config)
    net = Shared()
    gradient = ms.value_and_grad(net, 0, net.trainable_params())
    x = inputs()[1]
    session.start(net)
    gradient(x)
    gradient(x * 2)
    session.stop()
    session.step()
    session.close()


def only_some_steps(folder: str) -> list[bool]:
    """Steps 1 and 3 of five, a call outside start() and stop() in each; whether Cells are as before at the end."""
    ms.set_context(mode=ms.GRAPH_MODE)
    session = session_of(folder, task="statistics", step=[1, 3])
    net, x = Shared(), inputs()[1]
    for _ in range(5):
        session.start(net)
        net(x)
        session.stop()
        net(x)
        session.step()
    tapped = ["construct" in vars(cell) for path, cell in net.cells_and_names() if path]
    session.close()
    return [any(tapped), any("construct" in vars(cell) for _, cell in net.cells_and_names())]


class Shapes(nn.Cell):
    """Tensors without dimensions and without elements."""

    def construct(self, x: Tensor) -> Any:
        return x.sum(), x[:0], x > 0


class Odd(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.shapes = Shapes()

    def construct(self, x: Tensor) -> Tensor:
        total, nothing, positive = self.shapes(x)
        return total + nothing.sum() + positive.sum()


def odd_shapes(folder: str, dynamic: bool) -> float:
    ms.set_context(mode=ms.GRAPH_MODE)
    session = session_of(folder, task="tensor")
    net = Odd()
    if dynamic:
        net.set_inputs(Tensor(shape=[None, 2], dtype=ms.float32))
    session.start(net)
    result = float(net(Tensor([[1.0, -2.0]], ms.float32)))
    session.stop()
    session.step()
    session.close()
    return result


def two_models(folder: str) -> str:
    """Two models in one step, then another model: what start() raises."""
    ms.set_context(mode=ms.GRAPH_MODE)
    session = session_of(folder, task="statistics")
    first, second = Odd(), Odd()
    x = Tensor([[1.0, -2.0]], ms.float32)
    session.start([first, second])
    second(first(x).reshape(1, 1))
    session.stop()
    session.step()
    try:
        session.start(Odd())
    except ValueError as error:
        return str(error)
    return ""


def compiled_before(folder: str) -> list[str]:
    """The graph is compiled before the first start(): what is logged."""
    import logging

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("msprobe").addHandler(handler)
    ms.set_context(mode=ms.GRAPH_MODE)
    session = session_of(folder, task="statistics")
    net, x = Shared(), inputs()[1]
    net(x)
    session.start(net)
    net(x)
    session.stop()
    session.step()
    session.close()
    return said


def refused(folder: str, config: dict[str, Any], jit_level: str = "O0") -> str:
    """What the debugger, or start() without a model, raises."""
    ms.set_context(mode=ms.GRAPH_MODE, jit_level=jit_level)
    try:
        session_of(folder, **config).start()
    except ValueError as error:
        return str(error)
    return ""


def debugged_step(folder: str, config: dict[str, Any], mode: str) -> None:
    """One training step with the public debugger, as a compiled or as a dynamic graph."""
    from msprobe.mindspore import PrecisionDebugger

    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({"dump_path": str(Path(folder) / "dump"), "level": "L0", **config}))
    debugger = PrecisionDebugger(config_path=file)
    net = Net()
    gradient = ms.value_and_grad(net, 1, net.trainable_params())
    debugger.start(net)
    gradient(*inputs())
    debugger.stop()
    debugger.step()


def dump_tapped(folder: str) -> None:
    """Steps 1 and 2 of three with the taps of an Ascend graph, which the CPU runs as a dynamic graph only."""
    from msprobe.core.config_load import load_config
    from msprobe.core.session import Session
    from msprobe.ms_static.dump_tap_adapter import DumpTapAdapter

    ms.set_context(mode=ms.PYNATIVE_MODE)
    file = Path(folder) / "config.json"
    content = {"dump_path": str(Path(folder) / "dump"), "level": "L0", "task": "tensor", "step": [1, 2]}
    file.write_text(json.dumps(content))
    config = load_config(file, framework="mindspore/O0")
    session = Session(config, DumpTapAdapter(config))
    net = Net()
    gradient = ms.value_and_grad(net, 1, net.trainable_params())
    for _ in range(3):
        session.start(net)
        gradient(*inputs())
        session.stop()
        session.step()
    session.close()
