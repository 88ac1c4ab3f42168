"""The user's backend at level L2: AOTAutograd's graphs get a probe behind each operator.

The graph of Dynamo stays as it is. Where its backend hands it to AOTAutograd, the compilers of the forward and of the
backward graph are wrapped: Inductor's puts the probes in after its own passes over the graph, any other is given a
graph that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes

from msprobe.core.interruptions import pass_on_interruption
from msprobe.dispatch.api_mode import COMPILED_BACKWARD, hidden
from msprobe.dispatch.tensor_leaves import tensor_leaves
from msprobe.graph.backend import ProbedBackend, compiled_root
from msprobe.graph.dynamo_hooks import aot_compilers, leave_transforms, transforms
from msprobe.graph.exact import exact_settings
from msprobe.graph.graph_plan import GraphPlan
from msprobe.graph.instrument import copy_of, erase_marks, mark_unseen, register_calls
from msprobe.graph.kernel_graph import label_calls, probe_kernels
from msprobe.graph.kernel_registry import KERNELS, KernelGraph
from msprobe.graph.probed_graph import Compiled, Way, frame_of

if TYPE_CHECKING:
    from msprobe.dispatch.aten_mode import EnclosingMode
    from msprobe.graph.graph_log import GraphLog

_RUN = "msprobe_run"
"""Key in the metadata of an autograd node of AOTAutograd: the number of the run that made it."""


class KernelBackend(ProbedBackend):
    """Compiles a graph with the user's backend so that its operators have probes."""

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Compiled:
        """Compile ``module``; without probes if its backend knows no AOTAutograd, or if it cannot be compiled so."""
        owner = self._owner
        mode: EnclosingMode = owner.mode  # type: ignore[assignment]
        if compiled_autograd.in_compiled_autograd_region:
            erase_marks(module)
            return UnprobedKernels(self.backend(module, inputs, **options), mode)
        marked = copy_of(module)
        erase_marks(module)
        code = compiled_root()
        depth = transforms()
        try:
            seen = owner.tracing.last_graph()
            mark_unseen(marked, mode, seen)
            label_calls(marked)
            plan = register_calls(marked, seen, code)
            erase_marks(marked)
            halves = _Halves(plan, owner.log, code, mode)
            with exact_settings(exact=owner.exact), aot_compilers(halves.compiler):
                compiled = self.backend(marked, inputs, **options)
        except Exception as error:  # noqa: BLE001 - ours, or the user's: then the next call raises it
            leave_transforms(depth)
            pass_on_interruption(error)
            return UnprobedKernels(self._without_probes(module, inputs, options, error), mode)
        way = Way(fuses=self._fuses(), hindrance="at level L2 the kernels of the program itself are recorded")
        owner.log.compiled_with_probes(plan.number, way, "not checked: level L2" if owner.self_check else None)
        if not halves.found:
            return UnprobedKernels(compiled, mode)
        return ProbedKernels(compiled, plan, mode)


class _Halves:
    """Compiles the forward and the backward graph that AOTAutograd makes of one graph of Dynamo, the latter later.

    Attributes
    ----------
    found : bool
        Whether there is a graph of ATen operators.
    """

    def __init__(self, plan: GraphPlan, log: GraphLog, code: CodeType, mode: EnclosingMode) -> None:
        self._plan = plan
        self._log = log
        self._code = code
        self._mode = mode
        self.found = False

    def compiler(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """The compiler to use in place of ``original``, which AOTAutograd was given as its argument ``name``."""
        backward = name == "bw_compiler"

        def compile_half(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            self.found = True
            try:
                return self._with_probes(original, copy_of(module), inputs, backward=backward)
            except Exception as error:  # noqa: BLE001 - ours, or the user's: then the next call raises it
                pass_on_interruption(error)
                compiled = original(module, inputs)
                self._log.without_probes(self._code, f"{type(error).__name__}: {error}")
                return UnprobedHalf(compiled, self._mode)

        return compile_half

    def _with_probes(
        self, compiler: Callable[..., Any], module: torch.fx.GraphModule, inputs: Sequence[Any], *, backward: bool
    ) -> Any:
        if not isinstance(compiler, SerializableAOTDispatchCompiler):
            kernels = probe_kernels(module.graph, self._plan, backward=backward)
            module.recompile()
            return ProbedHalf(compiler(module, inputs), kernels)
        late = _AfterPasses(self._plan, backward=backward)
        config = torch._inductor.config
        passes = [*get_custom_graph_passes(config.post_grad_custom_post_pass), late]
        with config.patch(post_grad_custom_post_pass=passes, force_disable_caches=True):
            compiled = compiler(module, inputs)
        return compiled if late.kernels is None else ProbedHalf(compiled, late.kernels)


class _AfterPasses(CustomGraphPass):  # type: ignore[misc] # torch has no types for it
    """Puts the probes in when Inductor is done with its own passes over the graph."""

    def __init__(self, plan: GraphPlan, *, backward: bool) -> None:
        self._plan = plan
        self._backward = backward
        self.kernels: KernelGraph | None = None

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.kernels = probe_kernels(graph, self._plan, backward=self._backward)

    def uuid(self) -> None:
        """No cache: what a probe's number means is known to this process only."""


class _Half:
    """A compiled forward or backward graph."""

    _boxed_call = True  # AOTAutograd hands the arguments over in a list, which the graph empties

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._boxed = getattr(compiled, "_boxed_call", False)

    def _run(self, arguments: list[Any]) -> Any:
        return self._compiled(arguments) if self._boxed else self._compiled(*arguments)


class UnprobedHalf(_Half):
    """One without probes: of its kernels, those are recorded that it calls as operators."""

    def __init__(self, compiled: Any, mode: EnclosingMode) -> None:
        super().__init__(compiled)
        self._mode = mode

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the graph."""
        self._mode.compiled.runs_unprobed()
        return self._run(arguments)


class ProbedHalf(_Half):
    """One with probes."""

    def __init__(self, compiled: Any, kernels: KernelGraph) -> None:
        super().__init__(compiled)
        self._kernels = kernels

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the graph; its kernels are recorded if a step is."""
        recorder = KERNELS.recorder()
        if recorder is None or not self._begin(recorder):
            return self._run(arguments)
        returned = False
        try:
            with recorder.mode.kernels_unseen():
                output = self._run(arguments)
            returned = True
        finally:
            recorder.end(returned=returned)
        return output

    def _begin(self, recorder: Any) -> bool:
        try:
            number = _run_of_current_node() if self._kernels.backward else None
            return bool(recorder.begin(self._kernels, number))
        except Exception as error:  # noqa: BLE001 - hook boundary
            recorder.capture.failed("kernels of a compiled graph", error)
            return False


class ProbedKernels:
    """A compiled graph of Dynamo that tells the recorder when it runs."""

    def __init__(self, compiled: Compiled, plan: GraphPlan, mode: EnclosingMode) -> None:
        self._compiled = compiled
        self._plan = plan
        self._mode = mode

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        recorder = KERNELS.recorder()
        if recorder is None or not recorder.capture.running or recorder.capture.writer is None:
            return self._compiled(*inputs)
        number = self._enter(recorder)
        try:
            with hidden(self._mode):
                output = self._compiled(*inputs)
        finally:
            if number is not None:
                recorder.leave()
        if number is not None:
            _mark_nodes(output, number)
        return output

    def _enter(self, recorder: Any) -> int | None:
        try:
            return int(recorder.enter(self._plan, frame_of(self._plan.root)))
        except Exception as error:  # noqa: BLE001 - hook boundary
            recorder.capture.failed(f"kernels of compiled graph {self._plan.number}", error)
            return None


class UnprobedKernels:
    """A compiled graph without probes: of its kernels, those are recorded that it calls as operators."""

    def __init__(self, compiled: Compiled, mode: EnclosingMode) -> None:
        self._compiled = compiled
        self._mode = mode

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        self._mode.compiled.runs_unprobed()
        return self._compiled(*inputs)


def _mark_nodes(output: Any, number: int) -> None:
    """Leave the number of the run with the autograd node that runs the backward half."""
    for tensor in tensor_leaves(output if isinstance(output, (tuple, list)) else (output,)):
        node = _compiled_node(tensor.grad_fn)
        if node is not None:
            node.metadata[_RUN] = number


def _compiled_node(node: Any) -> Any:
    """The compiled node that a result comes from, also through the views that torch makes of it; None without one."""
    while node is not None and not type(node).__name__.startswith(COMPILED_BACKWARD):
        following = [after for after, _ in node.next_functions if after is not None]
        node = following[0] if len(following) == 1 else None
    return node


def _run_of_current_node() -> int:
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node.metadata.get(_RUN, -1))
