"""The user's backend with probes in the graphs that it is given, and the cache of such backends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import compiled_autograd

from msprobe.dispatch.api_mode import hidden
from msprobe.graph.dynamo_hooks import inlining, run_without_compiling, user_backend, with_backend
from msprobe.graph.graph_plan import REGISTRY, GraphPlan
from msprobe.graph.instrument import add_run_input, copy_of, erase_marks, mark_unseen, marks_of
from msprobe.graph.tracing import Tracing

if TYPE_CHECKING:
    from msprobe.dispatch.api_mode import ApiMode
    from msprobe.graph.recorder import GraphRecorder

_OWN_FOLDER = str(Path(__file__).resolve().parents[1])
Compiled = Callable[..., Any]


class ProbedBackends:
    """One probed backend per backend of the user: Dynamo's cache tells them apart, so clean entries stay valid.

    Parameters
    ----------
    tracing : Tracing
    mode : ApiMode or None
        Kept off the stack while a compiled graph runs: what the graph calls are no calls of the user.
    """

    def __init__(self, tracing: Tracing, mode: ApiMode | None) -> None:
        self.tracing = tracing
        self.mode = mode
        self._backends: list[tuple[Any, ProbedBackend]] = []
        self._callbacks: dict[int, tuple[Any, ProbedCallback]] = {}

    def marks_other_calls(self, mode: ApiMode | None) -> bool:
        """Whether graphs for ``mode`` have other marks than these."""
        return (mode and mode.lowest) != (self.mode and self.mode.lowest)

    def serve(self, mode: ApiMode | None) -> None:
        """Work for the mode of another configuration, which sees the same calls."""
        self.mode = mode
        self.tracing.serve(mode)

    def swap(self, callback: Any) -> Any:
        """The callback that compiles as ``callback`` does, with probes; ``callback`` itself if there is none."""
        if isinstance(callback, ProbedCallback):
            return callback
        known = self._callbacks.get(id(callback))
        if known is not None:
            return known[1]
        clone = with_backend(callback, self._probed(user_backend(callback)))
        if clone is None:
            return callback
        probed = ProbedCallback(clone, self.tracing)
        self._callbacks[id(callback)] = callback, probed  # kept alive, so that its id stays its own
        return probed

    def _probed(self, backend: Any) -> ProbedBackend:
        for original, probed in self._backends:
            if original is backend or original == backend:  # wrappers of one compiler compare equal
                return probed
        probed = ProbedBackend(backend, self)
        self._backends.append((backend, probed))
        return probed


class ProbedCallback:
    """What Dynamo calls for a frame that it has not compiled with probes yet.

    Parameters
    ----------
    compile_frame : callable
        Dynamo's own callback, with the probed backend.
    tracing : Tracing
    """

    def __init__(self, compile_frame: Any, tracing: Tracing) -> None:
        self._torchdynamo_orig_backend = compile_frame  # where Dynamo looks for the backend of a callback
        self._compile = compile_frame
        self._tracing = tracing
        self.hooks = compile_frame.hooks

    def __call__(self, frame: Any, *more: Any) -> Any:
        """Compile ``frame``, unless it is one of this package."""
        if frame.f_code.co_filename.startswith(_OWN_FOLDER):
            return run_without_compiling()
        with inlining(self._tracing.inline), _ROOTS.inside(frame.f_code):
            return self._compile(frame, *more)


class _Roots(threading.local):
    """The frames that are being compiled in this thread, innermost last."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []

    @contextmanager
    def inside(self, code: CodeType) -> Iterator[None]:
        """``code`` is compiled meanwhile."""
        self.codes.append(code)
        try:
            yield
        finally:
            self.codes.pop()


_ROOTS = _Roots()


class ProbedBackend:
    """Compiles a graph with the user's backend after it has got probes.

    It has no ``__getattr__``: Dynamo's C code looks for attributes of a backend where no Python code may run.

    Parameters
    ----------
    backend : callable
        The user's.
    owner : ProbedBackends
    """

    def __init__(self, backend: Any, owner: ProbedBackends) -> None:
        self.backend = backend
        self._owner = owner
        self.__name__ = getattr(backend, "__name__", type(backend).__name__)

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Compiled:
        """Compile ``module``; without probes if it has no marks, or if it cannot be compiled with them."""
        if compiled_autograd.in_compiled_autograd_region or not marks_of(module):
            erase_marks(module)
            return self.backend(module, inputs, **options)  # type: ignore[no-any-return]
        probed = copy_of(module)
        erase_marks(module)
        depth = torch._C._functorch.get_dynamic_layer_stack_depth()
        try:
            seen = self._owner.tracing.last_graph()
            if self._owner.mode is not None:
                mark_unseen(probed, self._owner.mode, seen)
            plan = add_run_input(probed, seen, _ROOTS.codes[-1])
            compiled = self.backend(probed, [*inputs, torch.zeros((), dtype=torch.int64)], **options)
        except Exception as error:  # noqa: BLE001 - ours, or the user's: then the next line raises it
            if torch._C._functorch.get_dynamic_layer_stack_depth() > depth:  # it ended inside torch.vmap or torch.func
                torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
            compiled = self.backend(module, inputs, **options)  # raises what the user's own graph raises
            recorder = REGISTRY.recorder()
            if recorder is not None:
                recorder.capture.failed(f"compiled graph of {_ROOTS.codes[-1].co_name} runs without probes", error)
            return compiled  # type: ignore[no-any-return]
        return ProbedGraph(compiled, plan, self._owner)


class ProbedGraph:
    """A compiled graph that tells the recorder when it runs."""

    def __init__(self, compiled: Compiled, plan: GraphPlan, owner: ProbedBackends) -> None:
        self._compiled = compiled
        self._plan = plan
        self._owner = owner

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph; its calls are recorded if a step is."""
        recorder = REGISTRY.recorder()
        number = -1
        depth = 0
        if recorder is not None:
            depth = len(recorder.capture.threads.modules)
            number = _enter(recorder, self._plan)
        try:
            if self._owner.mode is None:
                output = self._compiled(*inputs, torch.tensor(number))
            else:
                with hidden(self._owner.mode):
                    output = self._compiled(*inputs, torch.tensor(number))
        except BaseException:
            if recorder is not None and number >= 0:
                recorder.fail(number, depth)
            raise
        if recorder is not None and number >= 0:
            _leave(recorder, number)
        return output


def _enter(recorder: GraphRecorder, plan: GraphPlan) -> int:
    try:
        return recorder.enter(plan, _frame_of(plan.root))
    except Exception as error:  # noqa: BLE001 - hook boundary
        recorder.capture.failed(f"calls of compiled graph {plan.number}", error)
        return -1


def _leave(recorder: GraphRecorder, number: int) -> None:
    try:
        recorder.leave(number)
    except Exception as error:  # noqa: BLE001 - hook boundary
        recorder.capture.failed("records of a compiled graph", error)


def _frame_of(root: CodeType) -> FrameType | None:
    """The frame that runs the compiled code of ``root``: another code object of the same name and file."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == root.co_name and code.co_filename == root.co_filename:
            return frame
        frame = frame.f_back
    return None
