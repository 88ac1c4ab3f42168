"""Module calls (levels L0 and mix), and the place of API calls among modules (level L1).

Forward hooks open and close a call. Gradients come from the same graph walk as those of an API call; no full backward
hook is used, so in-place modules and in-place use of a module's output work, and accumulation order stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.dispatch.fused_inference import FUSED, takes_fused_path, watched_for_hooks
from msprobe.dispatch.hook_ids import HookIds
from msprobe.dispatch.inert import VanishingHook
from msprobe.dispatch.operands import local_variable
from msprobe.dispatch.sharded_modules import class_name

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from msprobe.dispatch.api_mode import ApiMode
    from msprobe.dispatch.capture import Capture

_FOLLOWED = CallName("", 0, module=True)


def named_calls(models: Sequence[torch.nn.Module], first: int = 0) -> Iterator[tuple[str, torch.nn.Module]]:
    """Names of the modules below the given roots: ``Module.[index.]path.Class``.

    A root is not named itself. A module that is reachable by several paths has the first one. ``first`` is the index
    of the first root; a single root of index 0 needs none in its names.
    """
    several = first + len(models) > 1
    for index, root in enumerate(models, start=first):
        prefix = f"Module.{index}." if several else "Module."
        for path, module in root.named_modules():
            if module is not root:
                yield f"{prefix}{path}.{class_name(module)}", module


class ModuleHooks:
    """Hooks of one started period.

    Parameters
    ----------
    capture : Capture
    mode : ApiMode or None
        Function mode to bring into threads that run modules without it, and to take away from fused modules.
    """

    def __init__(self, capture: Capture, mode: ApiMode | None) -> None:
        self._capture = capture
        self._mode = mode
        self._handles: list[RemovableHandle] = []
        self._by_global_hook: dict[int, str] = {}
        self._follow_all = False
        self._has_global_hooks = False
        self._hooks_of: WeakKeyDictionary[torch.nn.Module, tuple[_Before, _After]] = WeakKeyDictionary()
        self._module_ids = HookIds()  # the same for all modules: then repeated blocks share their compiled code
        self._global_ids = HookIds()

    def serve(self, capture: Capture, mode: ApiMode | None) -> None:
        """Record for another capture from now on; no hook may be installed."""
        self._capture = capture
        self._mode = mode

    def record(self, models: Sequence[torch.nn.Module], first: int = 0) -> None:
        """Record every module below ``models``."""
        fused = watched_for_hooks(models)
        for base, module in named_calls(models, first):
            if first and self.records(module):  # shared with a root that was found before
                continue
            if isinstance(module, torch.jit.ScriptModule):
                self._capture.coverage.not_recorded[f"TorchScript module {base}"] += 1
            elif id(module) in fused:
                self._by_global_hook[id(module)] = base
            else:
                self.record_one(base, module)
        if fused:
            self._add_global_hooks()

    def records(self, module: torch.nn.Module) -> bool:
        """Whether the calls of ``module`` are recorded."""
        return self.name_of(module) is not None

    def name_of(self, module: torch.nn.Module | None) -> str | None:
        """Name of a module whose calls are recorded, None for another one."""
        if module is None:
            return None
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, _Before) and hook.hooks is self:
                return hook.base
        return self._by_global_hook.get(id(module))

    def record_one(self, base: str, module: torch.nn.Module) -> None:
        """Record the calls of one module under the name ``base``."""
        before, after = self._hooks_of.get(module) or (_Before(self, base, module), _After(self, module))
        self._hooks_of[module] = before, after
        before.base = base
        self._handles += self._module_ids.register(
            (
                lambda: module.register_forward_pre_hook(before, with_kwargs=True),
                lambda: module.register_forward_hook(after, with_kwargs=True, always_call=True),
            )
        )

    def record_alone(self, base: str, module: torch.nn.Module) -> None:
        """Record one module of a model that is not known.

        With a global hook: one of its own would switch the fused path of a module around it off.
        """
        self._by_global_hook[id(module)] = base
        self._add_global_hooks()

    def follow(self) -> None:
        """Note which modules run, for call stacks and for threads that lack the mode, without recording them."""
        self._follow_all = True
        self._add_global_hooks()

    def _add_global_hooks(self) -> None:
        if self._has_global_hooks:
            return
        self._has_global_hooks = True
        self._handles += self._global_ids.register(
            (
                lambda: register_module_forward_pre_hook(self._enter),
                lambda: register_module_forward_hook(self._leave, always_call=True),
            )
        )

    def remove(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._by_global_hook.clear()
        self._follow_all = self._has_global_hooks = False

    # -- around every module call

    def begin(
        self, base: str, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType
    ) -> None:
        """A recorded module is about to run."""
        capture = self._capture
        if not capture.running:
            return
        trusted = self._mode is not None and capture.trusts_versions and _runs_only_torch_code(module)
        with torch._C.DisableTorchFunction():
            try:
                if trusted:
                    capture.encoder.trust_versions(on=True)
                opened = capture.begin(base, args, kwargs, frame.f_back, module)
                if opened is not None:
                    opened.trusted = trusted
                    self._push(opened, module, frame)
            except Exception as error:  # noqa: BLE001 - hook boundary
                capture.failed(f"inputs of {base}", error)
        self._switch_mode(module, args, kwargs)

    def end(self, module: torch.nn.Module, output: Any) -> None:
        """A recorded module has run, or raised."""
        capture = self._capture
        opened = self.pop(module)
        if opened is None:
            return
        with torch._C.DisableTorchFunction():
            try:
                error = sys.exc_info()[1]
                if error is not None and id(error) != opened.handled:
                    capture.abort(opened, error)
                else:
                    capture.end(opened, output)
                if opened.trusted:
                    capture.encoder.trust_versions(on=False)
            except Exception as failure:  # noqa: BLE001 - hook boundary
                capture.failed(f"outputs of {opened.call.base}", failure)

    def _enter(self, module: torch.nn.Module, args: Sequence[Any]) -> None:
        if torch.compiler.is_compiling():
            return
        base = self._by_global_hook.get(id(module))
        frame = sys._getframe(1)
        if base is not None:
            self.begin(base, module, args, _keywords(frame), frame)
        elif self._capture.running and (self._follow_all or isinstance(module, FUSED)):
            self._push(OpenCall(_FOLLOWED, None), module, frame)
            self._switch_mode(module, args, _keywords(frame) if isinstance(module, FUSED) else {})

    def _leave(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._follow_all or id(module) in self._by_global_hook or isinstance(module, FUSED):
            self.end(module, output)

    def _push(self, opened: OpenCall, module: torch.nn.Module, frame: FrameType) -> None:
        error = sys.exc_info()[1]
        opened.module = module
        opened.handled = id(error) if error is not None else 0
        if self._capture.keeps_stacks:
            node = opened.node  # of the same frame, if the call was placed
            opened.outer = node if node is not None else self._capture.stack_node(frame.f_back)
            opened.frame = frame
        self._capture.threads.modules.append(opened)

    def pop(self, module: torch.nn.Module) -> OpenCall | None:
        """The call of ``module`` is over; returns it if it is recorded."""
        modules = self._capture.threads.modules
        for at in range(len(modules) - 1, -1, -1):
            if modules[at].module is module:
                opened = modules[at]
                for ended in reversed(modules[at:]):  # calls further in may have ended without telling
                    if ended.switched_mode and self._mode is not None:
                        self._mode.switch_thread()
                del modules[at:]
                return None if opened.call is _FOLLOWED else opened
        return None

    def _switch_mode(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Have the mode on this thread's stack while the module runs, or off it if the module runs fused."""
        threads = self._capture.threads
        if self._mode is None or not threads.modules or threads.modules[-1].module is not module:
            return
        wanted = not (isinstance(module, FUSED) and takes_fused_path(module, args, kwargs))
        if wanted != threads.has_mode:
            if not wanted:
                self._capture.coverage.not_recorded["call inside a fused inference module (one kernel)"] += 1
            self._mode.switch_thread()
            threads.modules[-1].switched_mode = True


def _keywords(frame: FrameType) -> Mapping[str, Any]:
    """Keyword arguments of the module call that ``frame``, of torch's ``Module._call_impl``, runs.

    A global pre-hook is not given them.
    """
    found = local_variable(frame, "kwargs")
    return found if isinstance(found, dict) else {}


def _runs_only_torch_code(module: torch.nn.Module) -> bool:
    """Whether nothing but torch's own code runs between the inputs and the outputs of a call of ``module``.

    Then tensors that are measured as the module's and again as its API's need to be read once only.
    """
    own = type(module).__module__.startswith("torch.nn.modules.") and not module._modules
    return own and len(module._forward_pre_hooks) == len(module._forward_hooks) == 1 and "forward" not in vars(module)


class _Before(VanishingHook):
    """Forward pre-hook of one module.

    When an earlier hook of the same call stops the capture, torch still calls this one, but without ``kwargs``.
    """

    __slots__ = ("base", "hooks")

    def __init__(self, hooks: ModuleHooks, base: str, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.hooks = hooks
        self.base = base

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any = None) -> None:
        if not torch.compiler.is_compiling():  # a compiler traces its own way; the hook leaves nothing in its graph
            self.hooks.begin(self.base, module, args, kwargs or {}, sys._getframe(1))


class _After(VanishingHook):
    """Forward hook of one module; as :class:`_Before`, it may be called without ``kwargs``."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: ModuleHooks, module: torch.nn.Module) -> None:
        super().__init__(module)
        self._hooks = hooks

    def __call__(self, module: torch.nn.Module, args: Any, *kwargs_and_output: Any) -> None:
        if not torch.compiler.is_compiling():
            self._hooks.end(module, kwargs_and_output[-1])


#: Classes of the hooks that open and close a call.
MODULE_HOOKS = (_Before, _After)
