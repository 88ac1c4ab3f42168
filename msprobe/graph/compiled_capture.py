"""The part of a debugger that records compiled regions: installed with a step, taken away with it."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from msprobe.dispatch.aten_mode import EnclosingMode
from msprobe.dispatch.kernel_capture import KernelCapture
from msprobe.graph.dynamo_hooks import CallbackEntry, compiler_loaded, eager_stance, frames_compiled, missing_names
from msprobe.graph.exact import ExactCompiler

if TYPE_CHECKING:
    from msprobe.core.config_record import Config
    from msprobe.dispatch.api_mode import ApiMode
    from msprobe.dispatch.capture import Capture
    from msprobe.dispatch.modules import ModuleHooks
    from msprobe.graph.backend import ProbedBackend, ProbedBackends
    from msprobe.graph.kernel_recorder import KernelRecorder
    from msprobe.graph.recorder import GraphRecorder

_LOG = logging.getLogger("msprobe")


class CompiledCapture:
    """Records what compiled functions compute, under the names of eager capture.

    Parameters
    ----------
    capture : Capture
    modules : ModuleHooks
    mode : ApiMode or None
    config : Config
    earlier : CompiledCapture, optional
        Of the adapter that ends. If it marks the same kinds of calls its compiled graphs are used on.
    """

    def __init__(
        self,
        capture: Capture,
        modules: ModuleHooks,
        mode: ApiMode | None,
        config: Config,
        earlier: CompiledCapture | None = None,
    ) -> None:
        self._capture = capture
        self._modules = modules
        self._mode = mode
        self._told = False
        self._unloaded = False
        self._found_names = False  # once all are there they stay, and looking for them takes 50 us
        self._entry: CallbackEntry | None = None
        self._stance: contextlib.AbstractContextManager[None] | None = None
        self._recorder: GraphRecorder | KernelRecorder | None = None
        self._backends: ProbedBackends | None = earlier._backends if earlier is not None else None
        self._settings = {"exact": config.exact, "self_check": config.self_check}
        self._compiler: ExactCompiler = earlier._compiler if earlier is not None else ExactCompiler()
        self._compiler.use(self, exact=config.exact)

    def attach(self) -> None:
        """Use probed graphs from now on."""
        self._unloaded = not compiler_loaded()
        if self._unloaded:
            return  # nothing is compiled yet, and loading the compiler takes seconds
        if not self._found_names:
            missing = missing_names(kernels=isinstance(self._mode, EnclosingMode))
            if missing:
                self._do_without(", ".join(missing))
                return
            self._found_names = True
        self._capture.coverage.notes.pop("torch.compile", None)
        self._prepare()
        assert self._backends is not None  # noqa: S101 - prepared
        swap = self._backends.swap if self._capture.watcher is None else self._pass_over
        self._entry = CallbackEntry(swap, self._backends.log.stance)
        self._entry.attach()
        self._sees_kernels(self._capture.watcher is None)

    def detach(self) -> None:
        """Use the user's own graphs again."""
        self._sees_kernels(False)
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None
        if self._entry is not None:
            self._entry.detach()
            self._entry = None
        elif self._unloaded and frames_compiled():
            self._capture.coverage.notes["torch.compile"] = (
                "the compiler was loaded inside this step: calls inside compiled functions are recorded from the next "
                "start() on"
            )

    def _do_without(self, missing: str) -> None:
        """Have compiled functions run eagerly while they are recorded, by what torch offers to everybody."""
        self._stance = eager_stance()
        self._sees_kernels(self._stance is not None)
        if self._stance is not None:
            text = f"compiled functions ran eagerly while they were recorded: this torch has no {missing}"
        else:
            text = f"not recorded, and torch.compiler.set_stance is missing, too: this torch has no {missing}"
        self._capture.coverage.notes["torch.compile"] = text
        if not self._told:
            self._told = True
            _LOG.warning("msprobe: torch.compile: %s", text)

    def _sees_kernels(self, sees: bool) -> None:
        """At level L2: whether kernels of compiled functions are recorded, unless the graph says otherwise."""
        if isinstance(self._mode, EnclosingMode):
            self._mode.compiled.probed = sees

    def _pass_over(self, callback: Any) -> Any:
        self._capture.coverage.notes["torch.compile"] = (
            "calls inside compiled functions are not recorded: this task looks at each call while it runs"
        )
        return callback

    def conclude(self) -> None:
        """The debugger, or its configuration, has ended."""
        self._compiler.release(self)

    def note(self) -> None:
        """Bring what coverage.json says about compiled functions up to date."""
        notes = self._capture.coverage.notes
        if self._settings["exact"]:
            notes["exact"] = self._compiler.note()
        notes.pop("compiled", None)
        if self._backends is None or self._recorder is None:
            return
        found = self._backends.log.report(self._recorder.runs)
        if found:
            notes["compiled"] = found

    def close_step(self) -> None:
        """The step is over."""
        if self._recorder is not None:
            self._recorder.forget_step()

    def _prepare(self) -> None:
        # Imported here: these need the compiler, which takes seconds to load, and names that this torch may lack.
        from msprobe.graph.backend import ProbedBackend, ProbedBackends  # noqa: PLC0415
        from msprobe.graph.tracing import Tracing  # noqa: PLC0415

        kind: type[ProbedBackend] = ProbedBackend
        if isinstance(self._mode, EnclosingMode):
            kind = self._record_kernels(self._mode)
        else:
            self._record_calls()
        if self._backends is None or not self._backends.compiles_alike(self._mode, kind, **self._settings):
            self._backends = ProbedBackends(Tracing(self._mode), self._mode, kind, **self._settings)
        else:
            self._backends.serve(self._mode)

    def _record_calls(self) -> None:
        from msprobe.graph.graph_plan import REGISTRY  # noqa: PLC0415
        from msprobe.graph.recorder import GraphRecorder  # noqa: PLC0415

        if not isinstance(self._recorder, GraphRecorder):
            self._recorder = GraphRecorder(self._capture, self._modules)
        REGISTRY.serve(self._recorder)

    def _record_kernels(self, mode: EnclosingMode) -> type[ProbedBackend]:
        from msprobe.graph.kernel_backend import KernelBackend  # noqa: PLC0415
        from msprobe.graph.kernel_recorder import KernelRecorder  # noqa: PLC0415
        from msprobe.graph.kernel_registry import KERNELS  # noqa: PLC0415

        if not isinstance(self._recorder, KernelRecorder):
            assert isinstance(self._capture, KernelCapture)  # noqa: S101 - of that mode
            self._recorder = KernelRecorder(self._capture, self._modules, mode)
        KERNELS.serve(self._recorder)
        return KernelBackend
