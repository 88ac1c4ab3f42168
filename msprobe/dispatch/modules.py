"""Module calls (levels L0 and mix), and the place of API calls among modules (level L1).

Forward hooks open and close a call. Gradients come from the same graph walk as those of an API call; no full backward
hook is used, so in-place modules and in-place use of a module's output work, and accumulation order stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from sys import _getframe, exc_info
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from msprobe.core.names import CallName
from msprobe.core.open_call import OpenCall
from msprobe.dispatch.fused_inference import FUSED, takes_fused_path, watched_for_hooks
from msprobe.dispatch.hook_ids import HookIds
from msprobe.dispatch.inert import ModuleHook
from msprobe.dispatch.named_modules import NamedModules
from msprobe.dispatch.operands import local_variable

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from msprobe.dispatch.api_mode import ApiMode
    from msprobe.dispatch.capture import Capture

_FOLLOWED = CallName("", 0, module=True)
_NO_KWARGS: Mapping[str, Any] = {}

_DisableTorchFunction = torch._C.DisableTorchFunction
_TABLES = attrgetter(
    "_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called"
)
_REGISTER = attrgetter("register_forward_pre_hook", "register_forward_hook")
_Tables = tuple[ref[dict[int, Any]], ref[dict[int, Any]], dict[int, bool], dict[int, bool]]


class ModuleHooks:
    """Hooks of one started period.

    Parameters
    ----------
    capture : Capture
    mode : ApiMode or None
        Function mode to bring into threads that run modules without it, and to take away from fused modules.

    Attributes
    ----------
    capture, mode
        As given, or as :meth:`serve` was given them since.
    """

    def __init__(self, capture: Capture, mode: ApiMode | None) -> None:
        self.capture = capture
        self.mode = mode
        self._handles: list[RemovableHandle] = []
        self._by_global_hook: dict[int, _Before] = {}
        self._follow_all = False
        self._has_global_hooks = False
        self._hooks_of: WeakKeyDictionary[torch.nn.Module, tuple[_Before, _After]] = WeakKeyDictionary()
        self._placed: list[_Tables] = []
        self._module_ids = HookIds()  # the same for all modules: then repeated blocks share their compiled code
        self._numbers = self._module_ids.number(0), self._module_ids.number(1)
        self._global_ids = HookIds()

    def serve(self, capture: Capture, mode: ApiMode | None) -> None:
        """Record for another capture from now on; no hook may be installed."""
        self.capture = capture
        self.mode = mode

    def record(self, found: NamedModules) -> None:
        """Record every module that was found."""
        fused = watched_for_hooks(found)
        usual = {kind for kind in found.classes if _has_torchs_registration(kind)}
        if not found.first and not fused and len(usual) == len(found.classes):
            self._place(found.calls)
            return
        for base, module in found.calls:
            if found.first and self.records(module):  # shared with a root that was found before
                continue
            if isinstance(module, torch.jit.ScriptModule):
                self.capture.coverage.not_recorded[f"TorchScript module {base}"] += 1
            elif id(module) in fused:
                self._by_global_hook[id(module)] = self._hooks_named(base, module)[0]
            elif type(module) in usual:
                self._place([(base, module)])
            else:
                self._register(base, module)
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
        before = self._by_global_hook.get(id(module))
        return before.base if before is not None else None

    def _place(self, calls: Sequence[tuple[str, torch.nn.Module]]) -> None:
        """Record the calls of modules under the names given with them.

        Does what torch's registration would, without its handles: a step may begin with hundreds of hooks. A handle
        holds the tables of hooks weakly, too: there may be something in them that the user wants to be freed.
        """
        enter, leave = self._numbers
        for base, module in calls:
            own = module.__dict__
            if "register_forward_hook" in own or "register_forward_pre_hook" in own:  # replaced on this module alone
                self._register(base, module)
                continue
            before, after = self._hooks_of.get(module) or self._hooks_named(base, module)
            before.base = base
            pre_hooks, hooks, with_kwargs, always = _TABLES(module)
            self._placed.append((ref(pre_hooks), ref(hooks), with_kwargs, always))
            with_kwargs[enter] = always[leave] = True
            pre_hooks[enter] = before
            hooks[leave] = after

    def _register(self, base: str, module: torch.nn.Module) -> None:
        """Do the same for one module that has a way of its own to register hooks."""
        before, after = self._hooks_named(base, module)
        self._handles += self._module_ids.register(
            (
                lambda: module.register_forward_pre_hook(before, with_kwargs=True),
                lambda: module.register_forward_hook(after, always_call=True),
            )
        )

    def _hooks_named(self, base: str, module: torch.nn.Module) -> tuple[_Before, _After]:
        hooks = self._hooks_of.get(module)
        if hooks is None:
            hooks = self._hooks_of[module] = _Before(self, module), _After(self, module)
        hooks[0].base = base
        return hooks

    def record_alone(self, base: str, module: torch.nn.Module) -> None:
        """Record one module of a model that is not known.

        With a global hook: one of its own would switch the fused path of a module around it off.
        """
        self._by_global_hook[id(module)] = self._hooks_named(base, module)[0]
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
        enter, leave = self._numbers
        for pre_hooks_ref, hooks_ref, with_kwargs, always in self._placed:
            pre_hooks, hooks = pre_hooks_ref(), hooks_ref()
            if pre_hooks is not None:
                pre_hooks.pop(enter, None)
            if hooks is not None:
                hooks.pop(leave, None)
            with_kwargs.pop(enter, None)
            always.pop(leave, None)
        self._placed.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._by_global_hook.clear()
        self._follow_all = self._has_global_hooks = False

    # -- around every module call

    def _enter(self, module: torch.nn.Module, args: Sequence[Any]) -> None:
        if is_compiling():
            return
        before = self._by_global_hook.get(id(module))
        frame = _getframe(1)
        if before is not None:
            before(module, args, _keywords(frame), frame)
            return
        fused = isinstance(module, FUSED)
        capture, mode = self.capture, self.mode
        if capture.running and (self._follow_all or fused):
            self.push(OpenCall(_FOLLOWED, None), module, frame)
            if mode is not None and (fused or not capture.threads.has_mode):
                self.switch_mode(mode, module, args, _keywords(frame) if fused else _NO_KWARGS)

    def _leave(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if is_compiling():
            return
        if self._follow_all or id(module) in self._by_global_hook or isinstance(module, FUSED):
            opened = self.pop(module)
            if opened is not None:  # perhaps of a module that is recorded alone, by other hooks
                self.end(opened, output)

    def push(self, opened: OpenCall, module: torch.nn.Module, frame: FrameType) -> None:
        """A call of ``module`` has begun, which ``frame`` runs."""
        capture = self.capture
        error = exc_info()[1]
        if error is not None:
            opened.handled = id(error)
        opened.module = module
        if capture.keeps_stacks:
            node = opened.node  # of the same frame, if the call was placed
            opened.outer = node if node is not None else capture.stack_node(frame.f_back)
            opened.frame = frame
        capture.threads.modules.append(opened)

    def pop(self, module: torch.nn.Module) -> OpenCall | None:
        """The call of ``module`` is over; returns it if it is recorded."""
        modules = self.capture.threads.modules
        if not modules or (modules[-1].module is not module and all(outer.module is not module for outer in modules)):
            return None
        while True:
            opened = modules.pop()
            if opened.switched_mode and self.mode is not None:
                self.mode.switch_thread()
            if opened.module is module:  # calls further in may have ended without telling
                return None if opened.call is _FOLLOWED else opened

    def end(self, opened: OpenCall, output: Any) -> None:
        """A recorded module has run, or raised."""
        capture = self.capture
        with _DisableTorchFunction():
            try:
                error = exc_info()[1]
                if error is not None and id(error) != opened.handled:
                    capture.abort(opened, error)
                else:
                    capture.end(opened, output)
                if opened.trusted:
                    capture.encoder.trust_versions(on=False)
            except Exception as failure:  # noqa: BLE001 - hook boundary
                capture.failed(f"outputs of {opened.call.base}", failure)

    def switch_mode(
        self, mode: ApiMode, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Have the mode on this thread's stack while the module runs, or off it if the module runs fused."""
        threads = self.capture.threads
        wanted = not takes_fused_path(module, args, kwargs)
        if wanted == threads.has_mode or not threads.modules or threads.modules[-1].module is not module:
            return
        if not wanted:
            self.capture.coverage.not_recorded["call inside a fused inference module (one kernel)"] += 1
        mode.switch_thread()
        threads.modules[-1].switched_mode = True


def _has_torchs_registration(kind: type[torch.nn.Module]) -> bool:
    """Whether all that registering a hook with a module of this class does is to enter it in torch's tables."""
    return _REGISTER(kind) == _REGISTER(torch.nn.Module) and not issubclass(kind, torch.jit.ScriptModule)


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


class _Before(ModuleHook):
    """Forward pre-hook of one module.

    When an earlier hook of the same call stops the capture, torch still calls this one, but without ``kwargs``.
    """

    __slots__ = ("base", "hooks")

    def __init__(self, hooks: ModuleHooks, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.hooks = hooks
        self.base = ""

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any = None, frame: FrameType | None = None) -> None:
        """Begin the call that ``frame`` runs, the caller's if it is not given."""
        if is_compiling():
            return  # a compiler traces its own way; the hook leaves nothing in its graph
        hooks = self.hooks
        capture, mode = hooks.capture, hooks.mode
        if not capture.running:
            return
        if frame is None:
            frame = _getframe(1)
        if kwargs is None:
            kwargs = _NO_KWARGS
        trusted = mode is not None and capture.trusts_versions and _runs_only_torch_code(module)
        with _DisableTorchFunction():
            try:
                if trusted:
                    capture.encoder.trust_versions(on=True)
                opened = capture.begin(self.base, args, kwargs, frame.f_back, module)
                if opened is not None:
                    if trusted:
                        opened.trusted = True
                    hooks.push(opened, module, frame)
            except Exception as error:  # noqa: BLE001 - hook boundary
                capture.failed(f"inputs of {self.base}", error)
        if mode is not None and (isinstance(module, FUSED) or not capture.threads.has_mode):
            hooks.switch_mode(mode, module, args, kwargs)


class _After(ModuleHook):
    """Forward hook of one module. It asks for no keyword arguments, which would be one more table to be in."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: ModuleHooks, module: torch.nn.Module) -> None:
        super().__init__(module)
        self._hooks = hooks

    def __call__(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """The module has run, or raised."""
        if is_compiling():
            return
        hooks = self._hooks
        opened = hooks.pop(module)
        if opened is not None:
            hooks.end(opened, output)


#: Classes of the hooks that open and close a call.
MODULE_HOOKS = (_Before, _After)
