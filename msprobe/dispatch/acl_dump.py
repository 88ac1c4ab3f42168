"""Level L2 on an NPU: CANN itself dumps the kernels of one API call, switched on and off around it.

torch_npu exposes the switch of the runtime (``init_dump``, ``set_dump``, ``finalize_dump``). What is dumped and where
to is a JSON file that is generated into the rank folder. For a backward name the switch is on from the first to the
last autograd node of the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from msprobe.core.config_record import Config, DataMode, Task
from msprobe.core.errors import ConfigError, Problem
from msprobe.core.names import parse_name
from msprobe.core.open_call import OpenCall
from msprobe.dispatch.capture import Capture, as_sequence
from msprobe.dispatch.gradient_edges import InputEdges, SpanPlan, plan_span
from msprobe.dispatch.tensor_leaves import tensor_leaves

_sequence = torch._C._autograd._get_sequence_nr
CONFIG_FILE = "acl_dump.json"


def dump_target(config: Config) -> str:
    """The one API record that ``list`` names.

    Raises
    ------
    ConfigError
        If ``list`` is anything but one full name of an API call.
    """
    name = parse_name(config.list[0]) if len(config.list) == 1 else None
    if name is None or name.is_module or name.tag:
        allowed = 'at level "L2" on an NPU: exactly one full API name'
        hint = 'e.g. ["Torch.matmul.0.forward"]; a dump at level "L1" or "mix" shows the names'
        raise ConfigError([Problem(f"{config.task}.list", list(config.list), allowed, hint)])
    return str(name)


def acl_config(folder: str, task: Task, sides: DataMode) -> dict[str, Any]:
    """Content of the file for ``aclmdlSetDump``.

    Parameters
    ----------
    folder : str
        Existing folder to dump into.
    task : Task
        ``tensor``: the tensors; ``statistics``: the runtime's own statistics of them, as csv.
    sides : DataMode
        Inputs, outputs or both.

    Returns
    -------
    dict
        Keys as in the reference of CANN's aclInit: an empty ``dump_list`` with the switch on means single operators.
    """
    mode = "all" if sides.input == sides.output else "input" if sides.input else "output"
    content = {"dump_list": [], "dump_path": folder, "dump_mode": mode, "dump_op_switch": "on"}
    if task == Task.STATISTICS:
        content["dump_data"] = "stats"
    return {"dump": content}


class AclCapture(Capture):
    """Names API calls, and has the runtime dump the kernels of one of them.

    Parameters
    ----------
    config : Config

    Raises
    ------
    ConfigError
        If ``list`` does not name exactly one API call.
    """

    calls_alike = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._target = dump_target(config)
        self._task = config.task
        self._dumping = False

    def begin(
        self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType | None, module: Any = None
    ) -> OpenCall | None:
        """An API call begins: switch the dump on if it is the wanted one."""
        call = self.recomputation.name(base, self.counters.take, module=module is not None)
        backward = call.backward() == self._target and not call.tag
        if call.forward != self._target and not backward:
            self.coverage.filtered += 1
            return None
        opened = OpenCall(call, None)
        opened.epoch = self.epoch
        if self.keeps_stacks:
            opened.node = self.stack_node(frame)
        if not backward:
            self._switch_on()
        elif torch.is_grad_enabled():
            opened.edges = InputEdges(tensor_leaves((*args, *kwargs.values())))
            opened.since = _sequence()
        return opened

    def end(self, opened: OpenCall, output: Any, written: Any = None) -> None:
        """The call returned: switch the dump off, or have its nodes switch it."""
        if self._outlived(opened):
            self._switch_off()
        elif opened.call.forward == self._target:
            self._switch_off()
            self._note(self._target)
            if opened.node is not None:
                self.writer.add_stack(self._target, opened.node)  # type: ignore[union-attr]
        elif opened.edges is not None:
            plan = plan_span(opened.edges, opened.since, tensor_leaves(as_sequence(output)))
            if plan is None:
                self.coverage.not_recorded[f"{self._target}: no gradient passes the call"] += 1
            else:
                self._watch(plan)

    def abort(self, opened: OpenCall, error: BaseException | None) -> None:
        """The call raised; what the runtime has dumped of it stays."""
        self._switch_off()
        super().abort(opened, error)

    def _watch(self, plan: SpanPlan) -> None:
        """Switch the dump on at the first node of the call, and off after its last."""
        hooks = _NodeHooks(self, self.epoch, {*plan.results, *plan.arguments})
        for node in plan.results:
            node.register_prehook(hooks.first)
        for node in {*plan.results, *plan.arguments}:
            node.register_hook(hooks.ran)

    def guarded(self, epoch: int, step: Callable[[], None]) -> None:
        """Do ``step`` inside a backward pass of the step ``epoch``; nothing is raised."""
        if epoch != self.epoch or self.writer is None:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 - called by the autograd engine
            self.failed(f"kernel dump of {self._target}", error)

    def begin_backward(self) -> None:
        """The first node of the call is about to run."""
        if self.running and not self._dumping:
            self._switch_on()
            torch.autograd.Variable._execution_engine.queue_callback(self.end_backward)

    def end_backward(self) -> None:
        """The last node of the call has run, or the backward pass is over."""
        if self._dumping:
            self._switch_off()
            self._note(self._target)

    # -- the switch

    def _switch_on(self) -> None:
        writer = self.writer
        assert writer is not None  # noqa: S101 - calls are only seen while a step is open
        folder = writer.folder
        file = writer.write_file(CONFIG_FILE, acl_config(str(folder), self._task, self.data_mode))
        if file is None:
            self.coverage.not_recorded[f"{self._target}: {CONFIG_FILE} could not be written"] += 1
            return
        npu = sys.modules["torch_npu"].npu
        npu.synchronize()  # kernels launched before belong to other calls
        npu.init_dump()
        self._dumping = True
        npu.set_dump(str(file))

    def _switch_off(self) -> None:
        if not self._dumping:
            return
        self._dumping = False
        npu = sys.modules["torch_npu"].npu
        npu.synchronize()
        npu.finalize_dump()

    def _note(self, name: str) -> None:
        writer = self.writer
        if writer is not None:
            writer.add(name, {"kernel_dump": {"config": CONFIG_FILE, "dump_path": str(writer.folder)}})

    def close_step(self) -> dict[str, Any]:
        """See :meth:`Capture.close_step`; the dump is never left on."""
        self._switch_off()
        return super().close_step()


class _NodeHooks:
    """Hooks of the nodes of one call. They hold counts, not nodes."""

    __slots__ = ("_capture", "_count", "_epoch", "_missing")

    def __init__(self, capture: AclCapture, epoch: int, nodes: set[Any]) -> None:
        self._capture = capture
        self._epoch = epoch
        self._count = self._missing = len(nodes)

    def first(self, _gradients: Any) -> None:
        """Pre-hook of a node that receives the gradient of a result."""
        self._capture.guarded(self._epoch, self._capture.begin_backward)

    def ran(self, *_gradients: Any) -> None:
        """Hook of every node at the call's borders."""
        self._missing -= 1
        if self._missing == 0:
            self._missing = self._count
            self._capture.guarded(self._epoch, self._capture.end_backward)
