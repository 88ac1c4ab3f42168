"""Every private name of torch's compiler that this room needs, and how each is found.

The names below exist in torch 2.13. A torch without one of them is noticed here, before anything is installed:
:func:`missing_names` says what is missing, and compiled functions then run eagerly while they are recorded
(:func:`eager_stance`), which coverage.json tells.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

EVAL_FRAME = "torch._dynamo.eval_frame"


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One name that is not part of torch's public interface.

    Attributes
    ----------
    module, path : str
        Where it is: ``getattr`` along ``path`` from ``module``.
    purpose : str
        What it is needed for.
    """

    module: str
    path: str
    purpose: str


PRIVATE_NAMES = (
    PrivateName(EVAL_FRAME, "_callback_from_stance", "use another backend while a step is recorded"),
    PrivateName(EVAL_FRAME, "innermost_backend", "find the user's backend"),
    PrivateName(EVAL_FRAME, "_stance.stance", "know when a compilation would be an error"),
    PrivateName("torch._dynamo.convert_frame", "ConvertFrame._clone_with_backend", "compile with another backend"),
    PrivateName("torch._dynamo.convert_frame", "ConvertFrameAssert._clone_with_backend", "the same with fullgraph"),
    PrivateName("torch._dynamo.convert_frame", "catch_errors_wrapper", "the same with the user's settings"),
    PrivateName("torch._dynamo.types", "ConvertFrameReturn", "keep the compiler out of this package"),
    PrivateName(
        "torch._dynamo.symbolic_convert", "InliningInstructionTranslator.inline_call", "see API and module calls"
    ),
    PrivateName("torch._dynamo.variables.torch_function", "SymbolicTorchFunctionState", "see API calls in wrappers"),
    PrivateName("torch._C._autograd", "_get_current_graph_task_keep_graph", "free what runs beside the program"),
    PrivateName("torch._C", "_len_torch_dispatch_stack", "keep it from the program's modes"),
    PrivateName("torch.utils._python_dispatch", "_disable_current_modes", "the same"),
    PrivateName("torch._C._functorch", "get_interpreter_stack", "leave out calls inside torch.vmap"),
    PrivateName("torch._C._functorch", "TransformType.Vmap", "the same"),
    PrivateName("torch._C._functorch", "get_dynamic_layer_stack_depth", "clean up after a backend that failed"),
    PrivateName("torch._C._functorch", "pop_dynamic_layer_stack_and_undo_to_depth", "the same"),
)


KERNEL_NAMES = (
    PrivateName("torch._dynamo.backends.common", "aot_module_simplified", "see the graphs of operators"),
    PrivateName(
        "torch._functorch._aot_autograd.schemas",
        "SerializableAOTDispatchCompiler",
        "know Inductor",
    ),
    PrivateName("torch._inductor.custom_graph_pass", "CustomGraphPass", "see Inductor's graph"),
    PrivateName("torch._inductor.custom_graph_pass", "get_custom_graph_passes", "keep the user's own pass"),
)
"""Needed at level L2 only."""


def missing_names(*, kernels: bool = False) -> list[str]:
    """What this torch lacks, empty if it can be used, at level L2 if ``kernels``; imports the compiler."""
    missing = []
    for name in (*PRIVATE_NAMES, *KERNEL_NAMES) if kernels else PRIVATE_NAMES:
        try:
            found: Any = importlib.import_module(name.module)
            for part in name.path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):  # noqa: PERF203 - each name is looked up alone
            missing.append(f"{name.module}.{name.path} ({name.purpose})")
    return missing


def compiler_loaded() -> bool:
    """Whether something in this process has asked for the compiler."""
    return EVAL_FRAME in sys.modules


def frames_compiled() -> int:
    """How many functions have been compiled in this process."""
    counted = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counted["frames"]["ok"]) if counted else 0


def eager_stance() -> contextlib.AbstractContextManager[None] | None:
    """Have compiled functions run eagerly until the result is left; None where torch does not offer that.

    The public ``torch.compiler.set_stance``, of torch 2.6. Its ``force_backend`` would hand over graphs, but without
    the user's backend, and without the calls as they are written: eager code has the same values, and all names.
    """
    set_stance = getattr(importlib.import_module("torch.compiler"), "set_stance", None)
    return None if set_stance is None else set_stance("force_eager")


@dataclass(frozen=True, slots=True)
class BreakReason:
    """Why Dynamo ended a graph, and at which line of the user's; no file if that is not known."""

    reason: str
    file: str
    line: int


def graph_breaks(since: int = 0) -> list[BreakReason]:
    """Graph breaks of this process, in order; none where torch keeps no list of them."""
    kept = getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", ())
    return [_break_reason(found) for found in kept[since:]]


def _break_reason(found: Any) -> BreakReason:
    frames = getattr(found, "user_stack", None) or [None]
    last = frames[-1]
    return BreakReason(str(found.reason), getattr(last, "filename", ""), getattr(last, "lineno", 0) or 0)


def graphs_of_aot() -> str | None:
    """Changes whenever AOTAutograd is given a graph; None where torch does not count them."""
    counter = getattr(sys.modules.get("torch._functorch.aot_autograd"), "AOT_COUNTER", None)
    return None if counter is None else repr(counter)


def skip_reason(answer: Any) -> str | None:
    """Why the frame that a callback was given runs eagerly; None if it was compiled."""
    if getattr(answer, "guarded_code", None) is not None:
        return None
    return str(getattr(answer, "skip_reason", None) or "Dynamo does not say why")


class CallbackEntry:
    """Replaces what Dynamo asks for its callback each time a compiled function is called.

    Parameters
    ----------
    swap : callable
        Given the user's callback, returns the one to use.
    not_compiling : callable
        Told the stance that keeps Dynamo from compiling.
    """

    def __init__(self, swap: Callable[[Any], Any], not_compiling: Callable[[str], None]) -> None:
        self._swap = swap
        self._not_compiling = not_compiling
        self._original: Any = None

    def attach(self) -> None:
        """Begin; somebody else's replacement is left in place and called."""
        module = sys.modules[EVAL_FRAME]
        self._original = module._callback_from_stance
        module._callback_from_stance = self._entered  # type: ignore[attr-defined]

    def detach(self) -> None:
        """Put the original back, unless somebody else has replaced it since."""
        module = sys.modules.get(EVAL_FRAME)
        if module is not None and getattr(module, "_callback_from_stance", None) == self._entered:
            module._callback_from_stance = self._original  # type: ignore[attr-defined]

    def _entered(self, callback: Any) -> Any:
        if callback is None or callback is False:
            return self._original(callback)
        if sys.modules[EVAL_FRAME]._stance.stance == "fail_on_recompile":
            return self._swap(callback)  # a function mode is on the stack: the clean entry would count as a recompile
        chosen = self._original(self._swap(callback))
        if chosen is None or chosen is False:
            self._not_compiling(sys.modules[EVAL_FRAME]._stance.stance)
            return chosen
        return self._swap(chosen)  # a stance with a backend of its own drops the callback that it is given


def user_backend(callback: Any) -> Any:
    """The backend that the user gave to ``torch.compile``."""
    return sys.modules[EVAL_FRAME].innermost_backend(callback)


def with_backend(callback: Any, backend: Any) -> Any:
    """A callback that compiles as ``callback`` does, for another backend; None if it is of an unknown kind."""
    inner = getattr(callback, "_torchdynamo_orig_backend", None)
    clone = getattr(inner, "_clone_with_backend", None)
    if clone is None:
        return None
    convert_frame = importlib.import_module("torch._dynamo.convert_frame")
    return convert_frame.catch_errors_wrapper(clone(backend), callback.hooks)


def run_without_compiling() -> Any:
    """What a callback returns for a frame that is not to be compiled."""
    return importlib.import_module("torch._dynamo.types").ConvertFrameReturn()


def inside_vmap() -> bool:
    """Whether Dynamo traces inside ``torch.vmap``, where a tensor stands for one of many and has no values to read."""
    levels = torch._C._functorch.get_interpreter_stack() or []
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


def transforms() -> int:
    """How many of ``torch.vmap``, ``torch.func.grad`` and their like are running."""
    return int(torch._C._functorch.get_dynamic_layer_stack_depth())


def leave_transforms(depth: int) -> None:
    """End those that began after there were ``depth``: a compilation failed inside them."""
    if transforms() > depth:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


class _Handlers(threading.local):
    """Who looks at the calls of one function in this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Callable[..., Any]] = []


class _Watched:
    """A function of torch that is replaced while some thread wants to handle its calls.

    Parameters
    ----------
    module, owner, name : str
        Where it is: ``module.owner.name``; no owner for a function of the module itself.
    """

    def __init__(self, module: str, owner: str, name: str) -> None:
        self._module, self._owner, self._name = module, owner, name
        self._installing = threading.Lock()
        self._threads_inside = 0
        self._stored: tuple[Any, ...] = ()  # in a tuple: a method that is looked up in a class binds itself
        self._handlers = _Handlers()

    @contextlib.contextmanager
    def handled_by(self, handler: Callable[..., Any]) -> Iterator[None]:
        """Have ``handler(original, ...)`` called instead in this thread: others may compile at the same time."""
        owner: Any = importlib.import_module(self._module)
        owner = getattr(owner, self._owner) if self._owner else owner
        with self._installing:
            if not self._threads_inside:
                self._stored = (vars(owner)[self._name],)
                replacement = self._handed_over(getattr(owner, self._name))
                setattr(owner, self._name, staticmethod(replacement) if self._owner else replacement)
            self._threads_inside += 1
        self._handlers.stack.append(handler)
        try:
            yield
        finally:
            self._handlers.stack.pop()
            with self._installing:
                self._threads_inside -= 1
                if not self._threads_inside:
                    setattr(owner, self._name, self._stored[0])

    def _handed_over(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            handlers = self._handlers.stack
            return handlers[-1](original, *args, **more) if handlers else original(*args, **more)

        return call


_INLINING = _Watched("torch._dynamo.symbolic_convert", "InliningInstructionTranslator", "inline_call")
_LOWERING = _Watched("torch._dynamo.backends.common", "", "aot_module_simplified")


def inlining(handler: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Have ``handler(original, translator, function, args, kwargs, ...)`` called for each function Dynamo inlines."""
    return _INLINING.handled_by(handler)


def aot_compilers(
    compiler: Callable[[str, Callable[..., Any]], Callable[..., Any]],
) -> contextlib.AbstractContextManager[None]:
    """Have ``compiler(name, original)`` used for each compiler that a backend hands to AOTAutograd in this thread."""

    def lower(original: Callable[..., Any], *args: Any, **more: Any) -> Any:
        names = ("fw_compiler", "bw_compiler", "inference_compiler")
        wrapped = {name: compiler(name, more[name]) for name in names if more.get(name) is not None}
        return original(*args, **{**more, **wrapped})

    return _LOWERING.handled_by(lower)
