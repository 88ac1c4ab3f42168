"""The part of a debugger that records compiled regions: installed with a step, taken away with it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msprobe.graph.dynamo_hooks import CallbackEntry, compiler_loaded, frames_compiled, missing_names

if TYPE_CHECKING:
    from msprobe.dispatch.api_mode import ApiMode
    from msprobe.dispatch.capture import Capture
    from msprobe.dispatch.modules import ModuleHooks
    from msprobe.graph.backend import ProbedBackends
    from msprobe.graph.recorder import GraphRecorder

_LOG = logging.getLogger("msprobe")


class CompiledCapture:
    """Records what compiled functions compute, under the names of eager capture.

    Parameters
    ----------
    capture : Capture
    modules : ModuleHooks
    mode : ApiMode or None
    earlier : CompiledCapture, optional
        Of the adapter that ends. If it marks the same kinds of calls its compiled graphs are used on.
    """

    def __init__(
        self, capture: Capture, modules: ModuleHooks, mode: ApiMode | None, earlier: CompiledCapture | None = None
    ) -> None:
        self._capture = capture
        self._modules = modules
        self._mode = mode
        self._told = False
        self._unloaded = False
        self._entry: CallbackEntry | None = None
        self._recorder: GraphRecorder | None = None
        self._backends: ProbedBackends | None = earlier._backends if earlier is not None else None

    def attach(self) -> None:
        """Use probed graphs from now on."""
        self._unloaded = not compiler_loaded()
        if self._unloaded:
            return  # nothing is compiled yet, and loading the compiler takes seconds
        missing = missing_names()
        if missing:
            self._capture.coverage.notes["torch.compile"] = f"not recorded: this torch has no {', '.join(missing)}"
            if not self._told:
                self._told = True
                _LOG.warning(
                    "msprobe: calls inside compiled functions are not recorded, this torch lacks: %s",
                    ", ".join(missing),
                )
            return
        self._capture.coverage.notes.pop("torch.compile", None)
        self._prepare()
        assert self._backends is not None  # noqa: S101 - prepared
        self._entry = CallbackEntry(self._backends.swap if self._capture.watcher is None else self._pass_over)
        self._entry.attach()

    def detach(self) -> None:
        """Use the user's own graphs again."""
        if self._entry is not None:
            self._entry.detach()
            self._entry = None
        elif self._unloaded and frames_compiled():
            self._capture.coverage.notes["torch.compile"] = (
                "the compiler was loaded inside this step: calls inside compiled functions are recorded from the next "
                "start() on"
            )

    def _pass_over(self, callback: Any) -> Any:
        self._capture.coverage.notes["torch.compile"] = (
            "calls inside compiled functions are not recorded: this task looks at each call while it runs"
        )
        return callback

    def close_step(self) -> None:
        """The step is over."""
        if self._recorder is not None:
            self._recorder.forget_step()

    def _prepare(self) -> None:
        # Imported here: these need the compiler, which takes seconds to load.
        from msprobe.graph.backend import ProbedBackends  # noqa: PLC0415
        from msprobe.graph.graph_plan import REGISTRY  # noqa: PLC0415
        from msprobe.graph.recorder import GraphRecorder  # noqa: PLC0415
        from msprobe.graph.tracing import Tracing  # noqa: PLC0415

        if self._recorder is None:
            self._recorder = GraphRecorder(self._capture, self._modules)
        REGISTRY.serve(self._recorder)
        if self._backends is None or self._backends.marks_other_calls(self._mode):
            self._backends = ProbedBackends(Tracing(self._mode), self._mode)
        else:
            self._backends.serve(self._mode)
