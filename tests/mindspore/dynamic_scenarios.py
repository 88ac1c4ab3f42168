"""Runs in dynamic graphs, each for a process of its own. Each returns what the test looks at, as JSON values."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import dynamic_models as models
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

Pair = namedtuple("Pair", "first second")


def debugger(folder: str | Path, **config: Any) -> Any:
    """A new debugger, in the place of the one that the process has."""
    from msprobe.mindspore import PrecisionDebugger

    Path(folder).mkdir(exist_ok=True)
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({"dump_path": str(Path(folder) / "dump"), **config}))
    PrecisionDebugger._instance = None
    return PrecisionDebugger(config_path=file)


def content(folder: str | Path, step: int = 0, part: str = "") -> dict[str, Any]:
    """What a step wrote: the content of each JSON file by its name, and the names of the tensor files."""
    (place,) = (Path(folder) / "dump" / part / f"step{step}").iterdir()
    found: dict[str, Any] = {file.stem: json.loads(file.read_text()) for file in place.glob("*.json")}
    found["files"] = {file.name: np.load(file).tolist() for file in sorted(place.glob("dump_tensor_data/*.npy"))}
    return found


def capture(folder: str, config: dict[str, Any], model: nn.Cell, *inputs: Any, grad: bool = True) -> dict[str, Any]:
    """One recorded step of a model."""
    current = debugger(folder, **config)
    with current.capture(model):
        if grad:
            ms.value_and_grad(model, 0, model.trainable_params())(*inputs)
        else:
            model(*inputs)
    return content(folder)


def trained(name: str, folder: str, configs: dict[str, dict[str, Any]], blocking: bool = True) -> dict[str, Any]:
    """Train a model without the tool, then with each configuration."""
    if blocking:
        ms.runtime.launch_blocking()
    found = {"untouched": models.train(name, None)}
    for label, config in configs.items():
        found[label] = models.train(name, debugger(Path(folder) / label, **config))
    return found


def dumped(name: str, folder: str, levels: list[str]) -> dict[str, Any]:
    """What one step of training a model looks like, by level."""
    ms.runtime.launch_blocking()
    found = {}
    for level in levels:
        models.train(name, debugger(Path(folder) / level, level=level), steps=1)
        found[level] = content(Path(folder) / level)
    return found


def unblocked(folder: str) -> list[dict[str, Any]]:
    """One step whose kernels run behind the program, and the same with blocking launches."""
    found = []
    for place in ("behind", "blocking"):
        models.train("transformer", debugger(Path(folder) / place, level="mix"), steps=1)
        found.append(content(Path(folder) / place)["dump"]["data"])
        ms.runtime.launch_blocking()
    return found


# -- life cycle


def attributes() -> dict[str, int]:
    """Identity of everything that the tool may replace."""
    from msprobe.ms_dynamic.api_table import mindspore_apis

    found = {f"{api.base} {api.hides}": id(vars(api.holder).get(api.attribute)) for api in mindspore_apis()}
    executor = ms.common.api._JitExecutor
    classes = [nn.Cell, executor, type(ops.ReLU()), type(ops.Conv2D(1, 1)), type(ops.BiasAdd())]
    return found | {kind.__name__: id(vars(kind).get("__call__")) for kind in classes}


def leftovers(folder: str) -> dict[str, Any]:
    """What differs after start() and stop(), also when the user's code has raised in between."""
    ms.runtime.launch_blocking()
    model, inputs = models.convolutions()
    gradient = ms.value_and_grad(model, None, model.trainable_params())
    before = attributes()
    current = debugger(folder, level="mix")
    current.start(model)
    during = sum(before[name] != now for name, now in attributes().items())
    hooked = sum(len(parameter.hooks()) for parameter in model.trainable_params())
    gradient(*inputs)
    current.stop()
    after = [name for name, now in attributes().items() if before[name] != now]
    hooks = sum(len(parameter.hooks()) for parameter in model.trainable_params())
    first = len(content(folder)["dump"]["data"])
    gradient(*inputs)
    current.step()
    return {
        "during": during,
        "hooked": hooked,
        "after": after,
        "hooks": hooks,
        "records": [first, len(content(folder)["dump"]["data"])],
        "coverage": content(folder)["coverage"],
    }


def refusals(folder: str) -> dict[str, str]:
    """What the debugger says to calls that it cannot carry out."""
    found = {}

    def attempt(label: str, action: Any) -> None:
        try:
            action()
            found[label] = "accepted"
        except ValueError as error:
            found[label] = f"{type(error).__name__}: {error}"

    attempt("pair", lambda: debugger(folder, task="nan_check", level="L1"))
    attempt("xor", lambda: debugger(folder, statistics={"summary_mode": "xor"}))
    current = debugger(folder, level="L0")
    attempt("no model", current.start)
    attempt("no cell", lambda: current.start(models.floats(2)))
    ms.set_context(mode=ms.GRAPH_MODE)
    attempt("mode changed", lambda: current.start(nn.ReLU()))
    attempt("L1 in graph mode", lambda: debugger(folder, level="L1"))
    return found


def steps_and_ranges(folder: str) -> dict[str, Any]:
    """Which steps are recorded, and how start, stop and step out of order go on."""
    ms.runtime.launch_blocking()
    value = Tensor(models.floats(2, 2))
    current = debugger(folder, level="L1", step=[1, "3-4"])
    for _ in range(6):
        current.start()
        ops.relu(value)
        current.stop()
        mint.add(value, value)
        current.start()
        ops.relu(value)
        current.stop()
        current.step()
    places = sorted((Path(folder) / "dump").glob("step*"))
    wanted = {place.name: list(content(folder, int(place.name[4:]))["dump"]["data"]) for place in places}
    other = debugger(Path(folder) / "order", level="L1")
    other.stop()
    other.step()
    other.start()
    ops.relu(value)
    other.start()
    ops.relu(value)
    other.step()
    ops.relu(value)
    other.stop()
    other.step()
    names = [list(content(Path(folder) / "order", step)["dump"]["data"]) for step in (1, 2)]
    return {"wanted": wanted, "out of order": names}


def on_the_second_node(folder: str, wanted: list[int], mode: str) -> dict[str, Any]:
    """As rank 9 of 16 on two nodes of eight, which MindSpore is made to say: the step folders, and what was logged."""
    import logging

    from mindspore import communication
    from mindspore.communication import GlobalComm

    GlobalComm.INITED = True
    numbers = {"get_rank": 9, "get_group_size": 16, "get_local_rank": 1, "get_local_rank_size": 8}
    for name, number in numbers.items():
        setattr(communication, name, lambda number=number: number)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("msprobe").addHandler(handler)
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    current = debugger(folder, rank=wanted, **({"level": "L2", "task": "tensor"} if mode == "graph" else {}))
    with current.capture():
        ops.relu(Tensor(models.floats(2))) if mode == "dynamic" else nn.ReLU()(Tensor(models.floats(2)))
    return {"folders": [str(path.name) for path in Path(folder).glob("dump/step0/*")], "said": said}


# -- values


class Containers(nn.Cell):
    """Nested arguments and results."""

    def construct(self, nested: Any, scale: float = 2.0, *, pair: Any = None) -> Any:
        first = nested["list"][0] * scale
        return {"first": first, "tuple": (first + pair.second, None, "text")}, [first.astype(ms.bfloat16)]


class Holder(nn.Cell):
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.inner = inner

    def construct(self, x: Tensor) -> Tensor:
        found, halves = self.inner({"list": [x, 1]}, pair=Pair(x, x + 1))
        return (found["tuple"][0] + halves[0].astype(ms.float32)).sum()


def containers(folder: str) -> dict[str, Any]:
    ms.runtime.launch_blocking()
    return capture(folder, {"level": "L0"}, Holder(Containers()), Tensor(models.floats(2, 3)))


def raised(folder: str) -> dict[str, Any]:
    """An operator raises in a recorded step; the next step."""
    ms.runtime.launch_blocking()
    model, inputs = models.convolutions()
    gradient = ms.value_and_grad(model, None, model.trainable_params())
    current = debugger(folder, level="mix")
    with current.capture(model):
        gradient(*inputs)
    try:
        with current.capture(model):
            gradient(Tensor(models.floats(3, 2, 6, 6)))
    except RuntimeError as error:
        found = {"raised": str(error)[:12]}
    with current.capture(model):
        gradient(*inputs)
    steps = [content(folder, step)["dump"]["data"] for step in range(3)]
    return {**found, "same": steps[0].keys() == steps[2].keys(), "failed": list(steps[1])}


def caught(folder: str) -> dict[str, Any]:
    """The user's code catches an exception of a Cell and goes on."""
    ms.runtime.launch_blocking()

    class Careful(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())

        def construct(self, x: Tensor) -> Tensor:
            try:
                self.block(x[:, :2])
            except ValueError:
                x = x + 1
            return self.block(x).sum()

    return capture(folder, {"level": "mix"}, Careful(), Tensor(models.floats(2, 3)))


def tasks(folder: str, configs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One step of a small model under each configuration."""
    ms.runtime.launch_blocking()
    found = {}
    for label, config in configs.items():
        model, inputs = models.convolutions()
        model.set_train()
        found[label] = capture(str(Path(folder) / label), config, model, *inputs)
    return found


# -- the rest of the API


def saved(folder: str) -> dict[str, Any]:
    """Level debug."""
    ms.runtime.launch_blocking()
    from msprobe.mindspore import save

    current = debugger(folder, level="debug", task="tensor")

    def loss(x: Tensor) -> Tensor:
        hidden = x * 2
        save({"hidden": hidden, "number": 3}, "point")
        save(x.asnumpy(), "array", save_backward=False)
        return (hidden * hidden).sum()

    gradient = ms.grad(loss)(Tensor(np.ones((2, 2), np.float32)))
    current.step()
    return {"gradient": gradient.asnumpy().tolist(), **content(folder)}


def custom(folder: str) -> dict[str, Any]:
    """register_custom_api, and after restore_custom_api."""
    ms.runtime.launch_blocking()

    class Library:
        @staticmethod
        def fused(x: Tensor, scale: float) -> Tensor:
            return ops.relu(x) * scale

    before = vars(Library)["fused"]
    current = debugger(folder, level="L1")
    current.register_custom_api(Library, "fused", "Mine")
    with current.capture():
        ms.grad(lambda x: Library.fused(x, 2.0).sum())(Tensor(models.floats(2)))
    current.restore_custom_api(Library, "fused")
    return {"restored": vars(Library)["fused"] is before, **content(folder)}


def trained_by_model(folder: str) -> dict[str, Any]:
    """mindspore.train.Model with the callback."""
    ms.runtime.launch_blocking()
    from mindspore.dataset import NumpySlicesDataset

    from msprobe.mindspore import MsprobeInitStep, MsprobeStep

    call = nn.Cell.__call__
    data = NumpySlicesDataset((models.floats(6, 3), models.floats(6, 2)), shuffle=False).batch(2)
    net = nn.Dense(3, 2)
    model = ms.train.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    current = debugger(folder, level="L0")
    callbacks = [MsprobeInitStep(current), MsprobeStep(current)]
    model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
    steps = sorted(path.name for path in (Path(folder) / "dump").glob("step*"))
    names = list(content(folder, 2)["dump"]["data"])
    return {"steps": steps, "names": names, "restored": nn.Cell.__call__ is call}


def seeded() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    from msprobe.mindspore import LifecycleError, seed_all

    def draw() -> list[Any]:
        return [np.random.rand(), ops.standard_normal((2,)).asnumpy().tolist()]

    seed_all(5, mode=True)
    first = draw()
    seed_all(5, mode=True)
    found: dict[str, Any] = {"equal": first == draw()}
    try:
        seed_all(-1)
    except LifecycleError as error:
        found["refused"] = str(error)
    seed_all(5, rm_dropout=True)
    x = Tensor(np.ones((4, 4), np.float32))
    kept = [nn.Dropout(p=0.9).set_train()(x), ops.dropout(x, p=0.9), mint.nn.functional.dropout(x, p=0.9)]
    return {**found, "kept": [float(value.sum().asnumpy()) for value in kept]}


def unreferenced(folder: str) -> list[bool]:
    """Whether a model is freed once the user drops it after a recorded step.

    Without the garbage collector after a forward pass; ``value_and_grad`` itself makes a cycle, so then with it.
    """
    import gc
    import weakref

    ms.runtime.launch_blocking()
    dies: list[bool] = []
    current = debugger(folder, level="mix")
    for backward in (False, True):
        gc.collect()
        gc.disable()
        model, inputs = models.convolutions()
        with current.capture(model):
            if backward:
                ms.value_and_grad(model, None, model.trainable_params())(*inputs)
            else:
                model(*inputs)
        current._session._models = ()  # a session remembers its model for the next step
        seen = weakref.ref(model.head)
        del model, inputs
        if backward:
            gc.collect()
        dies.append(seen() is None)
        gc.enable()
    return dies
