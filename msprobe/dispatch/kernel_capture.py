"""Level L2: turn kernels (aten operators) into records, each under the API call that runs it.

API and module calls are named exactly as at levels L1 and L0, but only to be the parents of kernels: they open and
close here without being recorded. A kernel of a backward pass belongs to the API call that made the autograd node
which is running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from msprobe.core.call_stack import StackNode
from msprobe.core.config_record import Config
from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.core.risk import Risk
from msprobe.core.selection import NOTHING, Choice, Selection
from msprobe.core.thread_state import ThreadState
from msprobe.dispatch.capture import Capture, as_sequence
from msprobe.dispatch.look_away import LookAway, nodes_since
from msprobe.dispatch.node_owners import NodeOwners
from msprobe.dispatch.tensor_leaves import tensor_leaves

PERTURBED = (
    "level L2 is not bitwise neutral for this step: torch takes another formula for the gradient of {} while operators "
    "are watched, and was called where the tool cannot look away; the last bits can differ"
)

_sequence = torch._C._autograd._get_sequence_nr
_task_id = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node


class Kernel(NamedTuple):
    """What is known about one operator.

    Attributes
    ----------
    base : str
        ``Aten.mm.default``.
    risk : Risk
    written : tuple of (int or str)
        Arguments that the operator writes to, by position or keyword.
    returns : bool
        Whether it returns anything.
    writes_inside : bool
        Whether it writes through other in-place operators, which count the write.
    unwatched : tuple of str
        Types of its autograd nodes whose formula is another one while kernels are watched.
    """

    base: str
    risk: Risk
    written: tuple[int | str, ...]
    returns: bool
    writes_inside: bool
    unwatched: tuple[str, ...]


class EnclosingApi:
    """An API call as the parent of kernels. It holds names only: it outlives the call until the step ends.

    Attributes
    ----------
    call : CallName
    expansion : Choice
        What ``list`` selects of the kernels inside.
    node : StackNode or None
        Where the call was made.
    task : int
        The backward pass in which it began, -1 outside of one.
    placed : set of bool
        Whether its forward (False) and backward (True) stand in the hierarchy already.
    unwatched : set of Kernel
        Those of its kernels whose gradient must not be watched.
    """

    __slots__ = ("call", "expansion", "node", "placed", "since", "task", "unwatched")

    def __init__(self, call: CallName, expansion: Choice, node: StackNode | None) -> None:
        self.call = call
        self.expansion = expansion
        self.node = node
        self.task: int = _task_id()
        self.placed: set[bool] = set()
        self.since: int = _sequence()
        self.unwatched: set[Kernel] = set()


class OpenKernel(NamedTuple):
    """A kernel between its begin and its end."""

    call: CallName
    api: EnclosingApi | None
    backward: bool
    record: dict[str, Any]
    node: StackNode | None
    epoch: int

    @property
    def name(self) -> str:
        """Name of its record."""
        return self.call.backward() if self.backward else self.call.forward


class _Threads(ThreadState):
    """Per thread: the API calls that are running, the nodes they make, and the step in which they were last asked."""

    def __init__(self, everywhere: list[list[OpenCall]]) -> None:
        super().__init__(everywhere)
        self.known_in = -1
        self.apis: list[EnclosingApi] = []
        self.owners: NodeOwners[EnclosingApi] = NodeOwners()


class KernelCapture(Capture):
    """Records of kernels; see :class:`Capture` for what a debugger expects of it.

    Parameters
    ----------
    config : Config
    lowest : Risk
        Kernels of a lower class are left out, unless ``list`` names them in full.
    """

    calls_alike = False
    # A kernel's outputs are measured before autograd counts its in-place write: the version is still the old one.
    trusts_versions = False
    thread_state = _Threads
    threads: _Threads

    def __init__(self, config: Config, lowest: Risk) -> None:
        super().__init__(config)
        self.selection = Selection(config.list, config.scope, config.tensor_list, expand_apis=True)
        self.lowest = lowest
        self.look_away: LookAway | None = None
        self._owners: list[NodeOwners[EnclosingApi]] = []  # of the threads that made calls in this step
        self._placed: set[str] = set()  # modules and phases that stand in the hierarchy of this step

    # -- API and module calls: parents

    def begin(
        self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType | None, module: Any = None
    ) -> Any:
        """An API or module call begins."""
        api = self.enclose(base, self.stack_node, frame, module)
        if isinstance(api, OpenCall):
            return api
        threads = self.threads
        if threads.known_in != self.epoch:
            threads.known_in = self.epoch
            threads.owners.clear()
            self._owners.append(threads.owners)
        threads.owners.begin(api, _sequence())
        threads.apis.append(api)
        return api

    def enclose(
        self,
        base: str,
        stack_of: Callable[[FrameType | None], StackNode | None],
        frame: FrameType | None,
        module: Any = None,
    ) -> EnclosingApi | OpenCall:
        """Name an API or module call that begins, as :meth:`place` does; kernels are recorded under it."""
        call = self.recomputation.name(base, self.counters.take, module=module is not None)
        if call.tag:
            self.coverage.recomputed += 1
        node = stack_of(frame) if self.keeps_stacks else None
        inner = self._module()
        call.parent = inner.call if inner is not None else call.parent or self._phase(frame)
        if call.parent is None and node is not None and node.in_clip_grad:
            call.parent = "clip_grad"
        _, expansion = self.selection.enter(call, inner.expansion if inner is not None else NOTHING)
        if module is None:
            return EnclosingApi(call, expansion, node)
        opened = OpenCall(call, call.parent)
        opened.expansion, opened.module, opened.node, opened.epoch = expansion, module, node, self.epoch
        return opened

    def end(self, opened: Any, output: Any, written: Any = None) -> None:
        """The call returned; it is no parent any more, except of its backward kernels."""
        if isinstance(opened, EnclosingApi):
            self._close(opened)
            if opened.unwatched:
                results = tensor_leaves(as_sequence(output if written is None else written))
                self._look_away(opened, [result.grad_fn for result in results])

    def abort(self, opened: Any, error: BaseException | None) -> None:
        """The call raised: its index goes to the next call."""
        if not opened.call.tag:
            self.counters.give_back(opened.call.base, opened.call.index)
        if isinstance(opened, EnclosingApi):
            self._close(opened)

    def _close(self, api: EnclosingApi) -> None:
        threads = self.threads
        if api in threads.apis:
            del threads.apis[threads.apis.index(api) :]
            threads.owners.end(api, _sequence())

    def _look_away(self, api: EnclosingApi, nodes: Sequence[Any]) -> None:
        """Let the gradients that torch computes differently under a dispatch mode run without it."""
        types = {name for kernel in api.unwatched for name in kernel.unwatched}
        found = [node for node in nodes_since(api.since, nodes) if type(node).__name__ in types]
        if found and self.look_away is not None:
            for node in found:
                self.look_away.during(node)
        else:
            self._note_perturbed(*api.unwatched)

    def _note_perturbed(self, *kernels: Kernel) -> None:
        names = ", ".join(sorted(kernel.base for kernel in kernels))
        self.coverage.notes["perturbed"] = PERTURBED.format(names)

    def _module(self) -> OpenCall | None:
        """The innermost module call that has a name: modules are only followed when start() was given no model."""
        modules = self.threads.modules
        return modules[-1] if modules and modules[-1].call.base else None

    def _owner_of_current_node(self) -> EnclosingApi | None:
        """The API call whose backward is running; None for accumulation, or if several threads claim the node."""
        node = _current_node()
        if node is None:
            return None
        number = node._sequence_nr()
        found = [api for api in (owners.find(number) for owners in self._owners) if api is not None]
        return found[0] if len(found) == 1 else None

    # -- kernels

    def begin_kernel(
        self, kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType | None
    ) -> OpenKernel | None:
        """A kernel is about to run: name it, decide about it, record its inputs as they are before it runs.

        Parameters
        ----------
        kernel : Kernel
        args, kwargs
            Arguments of the operator.
        frame : FrameType or None
            The calling frame.

        Returns
        -------
        OpenKernel or None
            None when the kernel is not recorded.
        """
        apis = self.threads.apis
        task = _task_id()
        api = apis[-1] if apis and apis[-1].task == task else None
        if kernel.unwatched and torch.is_grad_enabled() and _needs_gradient(args, kwargs):
            if api is None:
                self._note_perturbed(kernel)
            else:
                api.unwatched.add(kernel)
        backward = api is None and task != -1
        if backward:
            api = self._owner_of_current_node()
            call = CallName(kernel.base, self.counters.take(kernel.base))
        else:
            call = self.recomputation.name(kernel.base, self.counters.take, module=False)
        name = call.backward() if backward else call.forward
        if not self._wanted(kernel, call, api, name, backward=backward):
            return None
        record: dict[str, Any] = {}
        if self.data_mode.input:
            record = self._kernel_inputs(name, args, kwargs, backward=backward)
        node = None
        if self.keeps_stacks and not backward:
            node = api.node if api is not None else self.stack_node(frame)
        if api is None and not backward:
            inner = self._module()
            call.parent = inner.call if inner is not None else self._phase(frame)
        return OpenKernel(call, api, backward, record, node, self.epoch)

    def _wanted(self, kernel: Kernel, call: CallName, api: EnclosingApi | None, name: str, *, backward: bool) -> bool:
        inner = self._module() if api is None and not backward else None
        enclosing = api.expansion if api is not None else inner.expansion if inner is not None else NOTHING
        return self._chosen(kernel, call, enclosing, name, backward=backward)

    def _chosen(self, kernel: Kernel, call: CallName, enclosing: Choice, name: str, *, backward: bool) -> bool:
        choice, _ = self.selection.enter(call, enclosing)
        passes = self.data_mode.backward if backward else self.data_mode.forward
        if not (passes and (choice.backward if backward else choice.forward)):
            self.coverage.filtered += 1
            return False
        if kernel.risk < self.lowest and not self.selection.names(name):
            self.coverage.low_risk += 1
            return False
        return True

    def _kernel_inputs(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, backward: bool
    ) -> dict[str, Any]:
        prefix = name if self.wants_tensors(name) else None
        encoder = self.encoder
        positional = encoder.encode_sequence(args, prefix and f"{prefix}.input")
        keywords = encoder.encode_mapping(kwargs, prefix and f"{prefix}.kwargs") if kwargs else {}
        if not backward:
            return {"input_args": positional, "input_kwargs": keywords}
        return {"input": positional, "input_kwargs": keywords} if keywords else {"input": positional}

    def end_kernel(
        self, kernel: Kernel, opened: OpenKernel, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """The kernel has run. One that returns nothing has the arguments that it wrote to as its outputs."""
        if opened.epoch != self.epoch or self.writer is None:
            self.coverage.not_recorded["call was open when its step ended"] += 1
            return
        results: Sequence[Any] = as_sequence(output)
        if not kernel.returns:
            results = [_argument(key, args, kwargs) for key in kernel.written]
        self.read_results(opened, results)
        self._keep(opened, opened.name)

    def read_results(self, opened: OpenKernel, results: Sequence[Any]) -> None:
        """Record what a kernel has returned."""
        if self.data_mode.output:
            prefix = opened.name if self.wants_tensors(opened.name) else None
            opened.record["output"] = self.encoder.encode_sequence(results, prefix and f"{prefix}.output")

    def abort_kernel(self, opened: OpenKernel, error: BaseException) -> None:
        """The kernel raised: keep its inputs under a tagged name, and give its index to the next one."""
        if opened.epoch != self.epoch or self.writer is None:
            return
        call = opened.call
        if not call.tag:
            self.counters.give_back(call.base, call.index)
            call = call.tagged("error")
        if type(error).__name__ != "_StopRecomputationError":
            opened.record["error"] = f"{type(error).__name__}: {error}"[:500]
        self._keep(opened, f"{call.backward()}#error" if opened.backward else call.forward)

    def _keep(self, opened: OpenKernel, name: str) -> None:
        writer = self.writer
        assert writer is not None  # noqa: S101 - asked by the callers
        writer.add(name, opened.record)
        if not self.keeps_stacks:
            return
        if opened.node is not None:
            writer.add_stack(name, opened.node)
        if opened.api is None:
            self._place(name, opened.call.parent, backward=False)
            return
        api = opened.api
        parent = api.call.backward() if opened.backward else api.call.forward
        writer.add_parent(name, parent)
        if opened.backward not in api.placed:
            api.placed.add(opened.backward)
            self._place(parent, api.call.parent, backward=opened.backward)

    def _place(self, name: str, parent: CallName | str | None, *, backward: bool) -> None:
        """Put ``name`` under its parent, and the parent under its own: no record of theirs would do it."""
        writer = self.writer
        assert writer is not None  # noqa: S101 - asked by the callers
        outer = None
        if isinstance(parent, CallName):
            outer, parent = parent.parent, parent.backward() if backward else parent.forward
        writer.add_parent(name, parent)
        if parent is not None and parent not in self._placed:
            self._placed.add(parent)
            self._place(parent, outer, backward=backward)

    # -- kernels of a compiled graph

    def place_kernel(
        self, kernel: Kernel, parent: EnclosingApi | OpenCall | None, *, backward: bool
    ) -> OpenKernel | None:
        """Name a kernel of a compiled graph that is about to run, and decide about it; nothing is measured.

        Parameters
        ----------
        kernel : Kernel
        parent : EnclosingApi or OpenCall or None
            The API or module call that it was compiled from.
        backward : bool
            Whether a backward pass runs it.

        Returns
        -------
        OpenKernel or None
            None when the kernel is not recorded.
        """
        call = CallName(kernel.base, self.counters.take(kernel.base))
        name = call.backward() if backward else call.forward
        expansion = parent.expansion if parent is not None else NOTHING
        if not self._chosen(kernel, call, expansion, name, backward=backward):
            return None
        api = parent if isinstance(parent, EnclosingApi) else None
        node = parent.node if parent is not None and not backward else None
        if api is None and parent is not None and not backward:
            call.parent = parent.call
        return OpenKernel(call, api, backward, {}, node, self.epoch)

    def read_arguments(self, opened: OpenKernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Record what a kernel of a compiled graph was given."""
        if self.data_mode.input:
            opened.record.update(self._kernel_inputs(opened.name, args, kwargs, backward=opened.backward))

    def keep_kernel(self, opened: OpenKernel) -> None:
        """Add the record of a kernel of a compiled graph."""
        self._keep(opened, opened.name)

    # -- steps

    def close_step(self) -> dict[str, Any]:
        """See :meth:`Capture.close_step`."""
        report = super().close_step()
        self._owners.clear()
        self._placed.clear()
        return report


def _needs_gradient(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Below autograd a tensor still says whether it needs a gradient, but an output does not yet."""
    return any(tensor.requires_grad for tensor in tensor_leaves((*args, *kwargs.values())))


def _argument(key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(key, str):
        return kwargs.get(key)
    return args[key] if key < len(args) else None
