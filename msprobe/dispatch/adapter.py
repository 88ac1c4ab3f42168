"""PyTorch side of a session: which hooks a level installs, and how they are taken away again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from msprobe.core.config_record import Config
from msprobe.core.errors import LifecycleError
from msprobe.core.forked_child import ForkedChild
from msprobe.core.risk import LOWEST_RECORDED, Risk
from msprobe.core.saving import VariableSaver
from msprobe.dispatch.acc_check import check_acc_check
from msprobe.dispatch.acl_dump import AclCapture
from msprobe.dispatch.api_mode import ApiMode
from msprobe.dispatch.api_table import ApiTable
from msprobe.dispatch.aten_mode import EnclosingMode
from msprobe.dispatch.capture import Capture
from msprobe.dispatch.engine import EngineEntry
from msprobe.dispatch.hook_ids import HookIds
from msprobe.dispatch.kernel_capture import KernelCapture
from msprobe.dispatch.modules import ModuleHooks
from msprobe.dispatch.named_modules import NamedModules
from msprobe.dispatch.optimizer_steps import OptimizerSteps
from msprobe.dispatch.parameter_gradients import ParameterGradients
from msprobe.dispatch.pipeline_trials import PipelineTrials
from msprobe.dispatch.root_modules import RootModules
from msprobe.dispatch.sharded_modules import class_name
from msprobe.dispatch.status_register import npu_in_use
from msprobe.dispatch.tensor_hooks import TorchHooks
from msprobe.dispatch.token_hook import BeforeForward
from msprobe.graph.compiled_capture import CompiledCapture
from msprobe.store import StepWriter

if TYPE_CHECKING:
    from msprobe.dispatch.collectives import Collectives

_LOG = logging.getLogger("msprobe")


class PytorchAdapter:
    """Installs what the configured level needs.

    Parameters
    ----------
    config : Config
    earlier : PytorchAdapter, optional
        The adapter that this one takes over from, when the configuration changes while the run goes on. Then a level
        that records modules no longer insists on being given a model: it finds the ones that run.

    Attributes
    ----------
    finds_models : bool
        Whether a level that records modules and is given none records those that run.

    Raises
    ------
    ConfigError
        If the task cannot work on this machine.
    LifecycleError
        From :meth:`models_of`, when a level that records modules gets no module.
    """

    framework = "pytorch"

    def __init__(self, config: Config, *, earlier: PytorchAdapter | None = None) -> None:
        self._config = config
        self._records_modules = config.level in ("L0", "mix")
        self.capture, self._mode = _capture_of(config)
        self._engine = EngineEntry(self._mode, self.capture) if self._mode is not None else None
        self._modules = earlier._modules if earlier is not None else ModuleHooks(self.capture, self._mode)
        self._modules.serve(self.capture, self._mode)
        self._compiled: CompiledCapture | None = None
        if config.level in ("L0", "L1", "mix") or isinstance(self.capture, KernelCapture):
            previous = earlier._compiled if earlier is not None else None
            self._compiled = CompiledCapture(self.capture, self._modules, self._mode, config, previous)
        self._single: ModuleHooks | None = None
        self._collectives = _collectives_of(config, self.capture, self._mode)
        self._parameters = ParameterGradients(self.capture)
        self._trials = PipelineTrials(self._before_trial)
        self._attached: Sequence[torch.nn.Module] = ()
        self._optimizer_steps = OptimizerSteps(self._optimizer_begins, self.capture.end_phase)
        self.saver: VariableSaver | None = None
        if config.level == "debug":
            self.saver = VariableSaver(self.capture, TorchHooks(), tensors=config.task == "tensor")
        self._token_ids = earlier._token_ids if earlier is not None else HookIds()
        self.roots = earlier.roots if earlier is not None else RootModules()
        self.finds_models = earlier is not None
        self._in_child = earlier._in_child if earlier is not None else ForkedChild()
        self._in_child.silences(self.capture)

    def reconfigured(self, config: Config) -> PytorchAdapter:
        """An adapter for a changed configuration. Hooks keep their ids, so that compiled code stays valid."""
        return PytorchAdapter(config, earlier=self)

    def models_of(self, model: Any) -> Sequence[torch.nn.Module]:
        """Return the root modules in ``model`` (a module, or a list or tuple of modules)."""
        roots = model if isinstance(model, (list, tuple)) else [] if model is None else [model]
        wrong = [root for root in roots if not isinstance(root, torch.nn.Module)]
        if wrong:
            raise LifecycleError(
                f"start(model=...): expected a torch.nn.Module or a list of them, not {type(wrong[0]).__name__}"
            )
        if self._records_modules and not roots and not self.finds_models:
            raise LifecycleError(
                f'level "{self._config.level}" records modules: call start(model=...) with a torch.nn.Module '
                "or a list of them"
            )
        return list(roots)

    def rank(self) -> int | None:
        """Rank in the default process group, None before it is initialised."""
        return torch.distributed.get_rank() if _distributed() else None

    def numbering(self) -> tuple[int, int] | None:
        """Rank in the default process group and its size, None before it is initialised."""
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if _distributed() else None

    def writer_options(self) -> dict[str, Any]:
        """How this adapter's records are turned into text."""
        config = self._config
        return {
            "tensors": config.task == "tensor" or (config.task == "statistics" and bool(config.tensor_list)),
            "render_stack": self.capture.stacks.render,
            "resolve": self.capture.resolve,
            "asynchronous": config.async_dump,
            "spare_core": _processors() > torch.get_num_threads(),
        }

    def open_step(self, writer: StepWriter) -> None:
        """Record into ``writer`` from now on."""
        self.capture.writer = writer
        if self.capture.watcher is not None:
            self.capture.watcher.open_step(writer)

    def close_step(self) -> Mapping[str, Any]:
        """Emit what waits, restart names; returns the coverage of the step."""
        if self.saver is not None:
            self.saver.close_step()
        if self._collectives is not None:
            self._collectives.close_step()
        self._note_surroundings()
        report = self.capture.close_step()
        if self._compiled is not None:
            self._compiled.close_step()
        self.capture.writer = None
        self._optimizer_steps.sweep()
        if self._mode is not None and not self.capture.running:
            self._mode.leave_thread()  # torch puts it back after a backward pass in which a hook has called stop()
        return report

    def report(self) -> Mapping[str, Any]:
        """Coverage of the open step."""
        self._note_surroundings()
        return self.capture.report()

    def _note_surroundings(self) -> None:
        """What was compiled, and who is in the default process group: a record names no group where it is that one."""
        if self._compiled is not None:
            self._compiled.note()
        if _distributed():
            group = {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}
            self.capture.coverage.notes["process_group"] = group

    def exhausted(self) -> str | None:
        """Why no later step is recorded, or None."""
        return self.capture.watcher.ended if self.capture.watcher is not None else None

    def conclude(self) -> None:
        """The run is over."""
        self._optimizer_steps.sweep()
        if self._compiled is not None:
            self._compiled.conclude()
        if self.capture.watcher is not None:
            self.capture.watcher.conclude()

    def attach(self, models: Sequence[torch.nn.Module]) -> None:
        """Install the hooks and the mode of the level."""
        self.capture.new_threads()
        self._attached = models
        if self.saver is not None:
            return  # nothing is recorded but what save() is given
        if self._records_modules:
            found = NamedModules(models)
            self._modules.record(found)
            self._parameters.record(found)
            if not models:
                self.roots.watch(self._record_root)
        elif isinstance(self.capture, KernelCapture) and models:
            self._modules.record(NamedModules(models))  # parents of the kernels, no records
        else:
            self._modules.follow()
        if self._mode is not None:
            running = self._optimizer_steps.watch()
            if running is not None:
                self.capture.begin_phase("optimizer", running)
        self.capture.running = True
        if self._compiled is not None:
            self._compiled.attach()
        if self._mode is not None and self._engine is not None:
            self._engine.attach()
            self._mode.enter_thread()
        if self._collectives is not None:
            self._collectives.attach()
        self._trials.watch()

    def detach(self) -> None:
        """Remove every hook and the mode."""
        self.capture.running = False
        self._attached = ()
        self._trials.ignore()
        if self._collectives is not None:
            self._collectives.detach()
        if self._compiled is not None:
            self._compiled.detach()
        self.end_module_dump()
        if self._mode is not None and self._engine is not None:
            self._mode.leave_thread()
            self._engine.detach()
        self.roots.ignore()
        self._modules.remove()
        self._parameters.remove()
        self._optimizer_steps.ignore()
        self.capture.count_open_modules()
        self.capture.threads.modules.clear()
        self.capture.end_phase()

    def _before_trial(self) -> Callable[[], None]:
        """A pipeline tries a stage out: take everything away until the function that is returned is called."""
        if not self.capture.running:
            return lambda: None
        models = self._attached
        self.capture.coverage.not_recorded["trial run of a pipeline stage, for the shapes it sends"] += 1
        self.detach()
        return lambda: self.attach(models)

    def before_forward(self, model: torch.nn.Module, action: Callable[[], None]) -> Callable[[], None]:
        """Run ``action`` before each forward call of ``model``; returns what ends that."""
        hook = BeforeForward(model, action)
        (handle,) = self._token_ids.register((lambda: model.register_forward_pre_hook(hook, prepend=True),))
        return handle.remove

    def _record_root(self, number: int, root: torch.nn.Module) -> None:
        """A model was found by itself (:class:`RootModules`)."""
        try:
            found = NamedModules([root], number)
            self._modules.record(found)
            self._parameters.record(found)
        except Exception as error:  # noqa: BLE001 - hook boundary
            self.capture.failed(f"hooks of the model {type(root).__name__}", error)

    def recording_mode(self) -> ApiMode | None:
        """The function mode, if a call that this thread makes now is recorded and not part of another one."""
        mode, capture = self._mode, self.capture
        if mode is None or mode.paused or not (capture.running and capture.threads.has_mode):
            return None
        return mode if mode in torch.overrides._get_current_function_mode_stack() else None

    def begin_module_dump(self, module: torch.nn.Module, dump_name: str) -> None:
        """Record ``module`` as ``Module.{dump_name}.Class`` and no API call, until :meth:`end_module_dump`."""
        if not isinstance(module, torch.nn.Module):
            raise LifecycleError(f"module_dump: expected a torch.nn.Module, not {type(module).__name__}")
        if self._config.level in ("L2", "debug"):
            _LOG.warning('msprobe: module_dump() does nothing at level "%s": use L0, L1 or mix', self._config.level)
            return
        if not self.capture.running:
            _LOG.warning("msprobe: module_dump() outside start() and stop() records nothing")
            return
        if self._modules.records(module):
            _LOG.warning("msprobe: module_dump(%s): start(model) records this module already", dump_name)
            return
        self.end_module_dump()
        if self._mode is not None:
            self._mode.paused = True
        self._single = ModuleHooks(self.capture, None)
        self._single.record_alone(f"Module.{dump_name}.{class_name(type(module))}", module)

    def end_module_dump(self) -> None:
        """Record again what the level records."""
        if self._single is None:
            return
        self._single.remove()
        self._single = None
        if self._mode is not None:
            self._mode.paused = False

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any, frame: FrameType) -> None:
        own = f"{type(optimizer).__module__}.".startswith("torch.optim.")  # Adafactor says it is of torch.optim itself
        plain = own and len(args) == 1 and not kwargs  # no closure
        self.capture.begin_phase("optimizer", frame, plain)
        if self._mode is not None:
            self._mode.begin_phase()


def _capture_of(config: Config) -> tuple[Capture, ApiMode | None]:
    """What makes records at the configured level, and the function mode that sees the API calls for it."""
    if config.level == "L2" and npu_in_use():
        switched = AclCapture(config)
        return switched, ApiMode(switched, ApiTable(), Risk.LOW)
    if config.level == "L2":
        kernels = KernelCapture(config, LOWEST_RECORDED[config.risk_level])
        return kernels, EnclosingMode(kernels, ApiTable())
    capture = Capture(config)
    if config.level not in ("L1", "mix"):
        return capture, None
    table = ApiTable()
    if config.task == "acc_check":
        check_acc_check(config, table)
    by_name = bool(config.scope or config.list)
    return capture, ApiMode(capture, table, Risk.LOW if by_name else LOWEST_RECORDED[config.risk_level])


def _collectives_of(config: Config, capture: Capture, mode: ApiMode | None) -> Collectives | None:
    """What records communication: none at L2, where operators are recorded, nor where APIs are run again."""
    if mode is None or config.level == "L2" or config.task == "acc_check" or not torch.distributed.is_available():
        return None
    from msprobe.dispatch.collectives import Collectives  # noqa: PLC0415 - needs a torch that has torch.distributed

    return Collectives(capture, mode)


def _processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
