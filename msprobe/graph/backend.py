"""The user's backend with probes in the graphs that it is given, and the cache of such backends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import compiled_autograd

from msprobe.core.interruptions import pass_on_interruption
from msprobe.dispatch.api_mode import hidden
from msprobe.graph.dynamo_hooks import (
    graph_breaks,
    graphs_of_aot,
    inlining,
    leave_transforms,
    run_without_compiling,
    skip_reason,
    transforms,
    user_backend,
    with_backend,
)
from msprobe.graph.effects import Effects, effects_of
from msprobe.graph.exact import exact_settings
from msprobe.graph.graph_log import GraphLog
from msprobe.graph.graph_plan import REGISTRY
from msprobe.graph.instrument import add_run_input, copy_of, erase_marks, mark_unseen, marks_of
from msprobe.graph.kernel_registry import KERNELS
from msprobe.graph.probed_graph import Compiled, Forms, ProbedGraph, Way
from msprobe.graph.self_check import SelfCheck
from msprobe.graph.tracing import Tracing

if TYPE_CHECKING:
    from msprobe.dispatch.api_mode import ApiMode

_UNFUSED = ("eager", "aot_eager")  # backends that round at each operator
NO_AOT = "its backend does not use AOTAutograd"
_OWN_FOLDER = str(Path(__file__).resolve().parents[1])
COMPILED_AUTOGRAD = (
    "a backward pass was compiled as a whole: there are no parameters_grad records of it, and backward records of "
    "calls outside compiled graphs, and of graphs that ran beside the program, may be missing"
)


class ProbedBackends:
    """One probed backend per backend of the user: Dynamo's cache tells them apart, so clean entries stay valid.

    Parameters
    ----------
    tracing : Tracing
    mode : ApiMode or None
        Kept off the stack while a compiled graph runs: what the graph calls are no calls of the user.
    kind : type
        What compiles with probes: for the calls or for the kernels of a graph.
    exact, self_check : bool
        As in the configuration.

    Attributes
    ----------
    log : GraphLog
        What was compiled.
    """

    def __init__(
        self, tracing: Tracing, mode: ApiMode | None, kind: type[ProbedBackend], *, exact: bool, self_check: bool
    ) -> None:
        self.tracing = tracing
        self.kind = kind
        self.mode = mode
        self.exact = exact
        self.self_check = self_check
        self.log = GraphLog()
        self._backends: list[tuple[Any, ProbedBackend]] = []
        self._callbacks: dict[int, tuple[Any, ProbedCallback]] = {}

    def compiles_alike(self, mode: ApiMode | None, kind: type[ProbedBackend], *, exact: bool, self_check: bool) -> bool:
        """Whether graphs for ``mode`` and these settings are the same as these."""
        lowest = (mode and mode.lowest), (self.mode and self.mode.lowest)
        return lowest[0] == lowest[1] and (kind, exact, self_check) == (self.kind, self.exact, self.self_check)

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
        probed = ProbedCallback(clone, self.tracing, self.log)
        self._callbacks[id(callback)] = callback, probed  # kept alive, so that its id stays its own
        return probed

    def _probed(self, backend: Any) -> ProbedBackend:
        for original, probed in self._backends:
            if original is backend or original == backend:  # wrappers of one compiler compare equal
                return probed
        probed = self.kind(backend, self)
        self._backends.append((backend, probed))
        return probed


class ProbedCallback:
    """What Dynamo calls for a frame that it has not compiled with probes yet.

    Parameters
    ----------
    compile_frame : callable
        Dynamo's own callback, with the probed backend.
    tracing : Tracing
    log : GraphLog
        Told what becomes of each frame.
    """

    def __init__(self, compile_frame: Any, tracing: Tracing, log: GraphLog) -> None:
        self._torchdynamo_orig_backend = compile_frame  # where Dynamo looks for the backend of a callback
        self._compile = compile_frame
        self._tracing = tracing
        self._log = log
        self.hooks = compile_frame.hooks

    def __call__(self, frame: Any, *more: Any) -> Any:
        """Compile ``frame``, unless it is one of this package."""
        if frame.f_code.co_filename.startswith(_OWN_FOLDER):
            return run_without_compiling()
        known = len(graph_breaks())
        with inlining(self._tracing.inline), _ROOTS.inside(frame.f_code):
            answer = self._compile(frame, *more)
        self._log.compiled(frame.f_code, skip_reason(answer), graph_breaks(known))
        return answer


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


def compiled_root() -> CodeType:
    """The function that is being compiled in this thread."""
    return _ROOTS.codes[-1]


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
        if compiled_autograd.in_compiled_autograd_region:
            erase_marks(module)
            return CompiledBackward(self.backend(module, inputs, **options), self._owner)
        if not marks_of(module):
            erase_marks(module)
            return self.backend(module, inputs, **options)  # type: ignore[no-any-return]
        probed = copy_of(module)
        erase_marks(module)
        owner, code = self._owner, compiled_root()
        depth = transforms()
        try:
            seen = owner.tracing.last_graph()
            if owner.mode is not None:
                mark_unseen(probed, owner.mode, seen)
            effects = effects_of(module)
            with exact_settings(exact=owner.exact):
                clean = None
                if not self._fuses() and owner.self_check and not effects.hindrance:
                    clean = self.backend(module, inputs, **options)
                plan = add_run_input(probed, seen, code)
                compiled, way = self._with_probes(probed, inputs, options, effects)
        except Exception as error:  # noqa: BLE001 - ours, or the user's: then the next call raises it
            leave_transforms(depth)
            pass_on_interruption(error)
            return self._without_probes(module, inputs, options, error)
        if clean is None and (way.beside or (owner.self_check and not effects.hindrance)):
            try:
                with exact_settings(exact=owner.exact):
                    clean = self.backend(module, inputs, **options)
            except Exception as error:  # noqa: BLE001 - the program has a graph, and is not to lose it
                pass_on_interruption(error)
                way.give_up(f"it could not be compiled without probes: {type(error).__name__}: {error}")
        check = SelfCheck(effects.hindrance) if owner.self_check else None
        owner.log.compiled_with_probes(plan.number, way, check)
        forms = Forms(compiled, clean, effects, way, check)
        return ProbedGraph(forms, plan, lambda: owner.mode, partial(owner.log.without_probes, code))

    def _with_probes(
        self, probed: torch.fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any], effects: Effects
    ) -> tuple[Compiled, Way]:
        """Compile the graph with probes; how it is to run."""
        known = graphs_of_aot()
        compiled = self.backend(probed, [*inputs, torch.zeros((), dtype=torch.int64)], **options)
        fuses = self._fuses() and not isinstance(getattr(compiled, "__self__", compiled), torch.fx.GraphModule)
        hindrance = effects.hindrance
        if effects.differentiable and torch.is_grad_enabled() and known is not None and graphs_of_aot() == known:
            hindrance = hindrance or NO_AOT
        return compiled, Way(fuses=fuses, hindrance=hindrance)

    def _fuses(self) -> bool:
        """Whether a probe can make the compiler round otherwise, because it does not run operators one by one."""
        return getattr(self.backend, "compiler_name", "") not in _UNFUSED

    def _without_probes(
        self, module: torch.fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any], error: Exception
    ) -> Compiled:
        """Compile as if there were no debugger, because of ``error``."""
        log, code = self._owner.log, compiled_root()
        try:
            compiled: Compiled = self.backend(module, inputs, **options)
        except Exception as own:
            log.backend_failed(code, own)
            raise
        log.without_probes(code, f"{type(error).__name__}: {error}")
        recorder = REGISTRY.recorder() or KERNELS.recorder()
        if recorder is not None:
            recorder.capture.failed(f"compiled graph of {code.co_name} runs without probes", error)
        return compiled


class CompiledBackward:
    """A graph of compiled autograd: what it calls are no calls of the user; probes of forward graphs are in it."""

    def __init__(self, compiled: Compiled, owner: ProbedBackends) -> None:
        self._compiled = compiled
        self._owner = owner

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        recorder = REGISTRY.recorder()
        if recorder is not None and recorder.capture.running:
            recorder.capture.coverage.notes["compiled autograd"] = COMPILED_AUTOGRAD
        mode = self._owner.mode
        if mode is None:
            return self._compiled(*inputs)
        with hidden(mode):
            return self._compiled(*inputs)
