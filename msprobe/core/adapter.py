"""What a framework provides to a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msprobe.core.config_record import Config
from msprobe.store import StepWriter


class Adapter(Protocol):
    """What a framework provides."""

    framework: str

    def models_of(self, model: Any) -> Sequence[Any]:
        """Check ``model`` and return its roots. Raises LifecycleError if the level needs a model and there is none."""

    def rank(self) -> int | None:
        """Rank of this process; None when there is no process group."""

    def numbering(self) -> tuple[int, int] | None:
        """By which number ``rank`` of the configuration knows this process, and how many such numbers there are.

        None when there is no process group. PyTorch numbers the ranks of all nodes, MindSpore those of each node anew.
        """

    def attach(self, models: Sequence[Any]) -> None:
        """Start recording into the writer that was opened."""

    def detach(self) -> None:
        """Stop recording: no hook is left."""

    def open_step(self, writer: StepWriter) -> None:
        """A step begins."""

    def close_step(self) -> Mapping[str, Any]:
        """A step ends; returns its coverage."""

    def report(self) -> Mapping[str, Any]:
        """Coverage of the open step."""

    def exhausted(self) -> str | None:
        """Why no later step is recorded, or None."""

    def conclude(self) -> None:
        """The run, or the part of it with this configuration, is over: say what there is to say about it."""

    def writer_options(self) -> dict[str, Any]:
        """Options for :meth:`RunLayout.open_step`."""

    def reconfigured(self, config: Config) -> Adapter:
        """An adapter that records as ``config`` says and takes over from this one, which is detached for good."""

    def before_forward(self, model: Any, action: Callable[[], None]) -> Callable[[], None]:
        """Run ``action`` before each forward call of ``model``; returns what ends that."""
