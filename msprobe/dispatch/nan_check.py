"""Task ``nan_check``: whether each call, and each backward pass through it, gives NaN or Inf.

On an Ascend NPU the float status register tells (:mod:`msprobe.dispatch.status_register`); elsewhere the outputs are
scanned, and the record says so. Calls named in ``tensor_list`` are asked at once, and raise after their tensors were
written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.core.errors import ConfigError, NaNDetectedError, Problem
from msprobe.dispatch.status_register import StatusRegister, npu_in_use
from msprobe.dispatch.tensor_leaves import tensor_leaves
from msprobe.dispatch.watching import Watched, Watcher
from msprobe.kernels.npu.availability import register_problems
from msprobe.measure.nonfinite import NonfiniteScan
from msprobe.store import StepWriter
from msprobe.store.extra_info import extra_info_folder, write_extra_info

if TYPE_CHECKING:
    from msprobe.core.backward_span import Span
    from msprobe.dispatch.gradient_edges import SpanPlan

VALUE_SCAN = "value scan"
_REGISTER = "float status register"
_FOUND = {
    VALUE_SCAN: "NaN or Inf in its outputs",
    _REGISTER: "the float status register was set while it ran",
}


class Verdict:
    """``is_nan`` of one record, while answers are still on their way.

    Attributes
    ----------
    found : bool
        Whether an answer was yes.
    asked : int
        How many answers are there, or will be.
    on_device, on_host : int
        How many outputs were on an NPU, and elsewhere.
    """

    __slots__ = ("_lock", "_open", "_record", "asked", "found", "on_device", "on_host")

    def __init__(self) -> None:
        self.found = False
        self.asked = 0
        self.on_device = self.on_host = 0
        self._open = 0
        self._record: dict[str, Any] | None = None
        self._lock = threading.Lock()

    @property
    def only_on_host(self) -> bool:
        """Whether no output was on an NPU, but some elsewhere."""
        return bool(self.on_host and not self.on_device)

    def expect(self) -> None:
        """One more answer will come."""
        with self._lock:
            self.asked += 1
            self._open += 1

    def answer(self, bad: bool) -> None:
        """An expected answer."""
        with self._lock:
            self._open -= 1
            self.found = self.found or bad
            self._settle()

    def close(self, record: dict[str, Any]) -> None:
        """No more questions: fill in ``record`` as soon as every answer is there."""
        with self._lock:
            record["is_nan"] = None
            self._record = record
            self._settle()

    def _settle(self) -> None:
        if self._record is not None and not self._open:
            self._record["is_nan"] = int(self.found)


class _Checked(Watched):
    """A call of this task, with its verdict."""

    __slots__ = ("verdict",)

    def __init__(self, name: str, files: dict[str, Any] | None, verdict: Verdict) -> None:
        super().__init__(name, files)
        self.verdict = verdict


class _NanAlarm:
    """Raises for one record."""

    __slots__ = ("_arguments", "_flush")

    def __init__(self, flush: Callable[[], None], *arguments: Any) -> None:
        self._flush = flush
        self._arguments = arguments

    def sound(self) -> None:
        self._flush()
        raise NaNDetectedError(*self._arguments)


class NanCheck(Watcher):
    """Fills ``is_nan`` into every record.

    Parameters
    ----------
    stops_at : callable
        Whether ``tensor_list`` names a record.
    failed : callable
        Takes a place and an exception that must not reach the program.
    settle : callable
        See :class:`Watcher`.

    Raises
    ------
    ConfigError
        On an NPU whose float status register says nothing: one problem per reason.
    """

    def __init__(
        self,
        stops_at: Callable[[str], bool],
        failed: Callable[[str, BaseException], None],
        settle: Callable[[], None],
    ) -> None:
        super().__init__(settle)
        self._stops_at = stops_at
        self._failed = failed
        self._scan = NonfiniteScan()
        self._counts: Counter[str] = Counter()
        self._writer: StepWriter | None = None
        self._step = 0
        self._register = _status_register()

    def begin(self, name: str, span: Span | None = None) -> Watched:
        """Take note of a call; of a backward pass, nodes have begun already."""
        verdict = span.watch if span is not None and isinstance(span.watch, Verdict) else Verdict()
        checked = _Checked(name, {} if self._stops_at(name) else None, verdict)
        self._keep_for(checked, hold=True)
        return checked

    def run(self, watched: Watched, record: dict[str, Any]) -> None:
        """Clear the register: from here on it tells about this call."""
        if self._register is not None and isinstance(watched, _Checked):
            self._register.begin(watched.verdict)

    def returned(self, watched: Watched) -> None:
        """Read the register before anything else uses the device."""
        if self._register is not None and isinstance(watched, _Checked):
            self._register.end(watched.verdict)
        super().returned(watched)

    def output(self, watched: Watched, value: Any) -> None:
        """Look at what the call gave, where no register tells."""
        assert isinstance(watched, _Checked)  # noqa: S101 - made by begin
        verdict = watched.verdict
        for tensor in tensor_leaves((value,)):
            if self._register is not None and tensor.device.type == "npu":
                verdict.on_device += 1
                continue
            verdict.on_host += 1
            verdict.expect()
            known = self._scan.scan(tensor, verdict.answer)
            if known is not None:
                verdict.answer(known)

    def end(self, watched: Watched, record: dict[str, Any]) -> _NanAlarm | None:
        """Fill in ``is_nan``, now or when the devices have answered."""
        assert isinstance(watched, _Checked)  # noqa: S101 - made by begin
        verdict = watched.verdict
        if self._register is not None:
            self._register.end(verdict)
        how = VALUE_SCAN if self._register is None or verdict.only_on_host else _REGISTER
        verdict.close(record)
        if how == VALUE_SCAN:
            record["is_nan_by"] = VALUE_SCAN
        elif not verdict.asked:
            record["is_nan"], record["reason"] = None, "the float status register was not read"
        self._counts[how] += 1
        if watched.files is None:
            return None
        self._settle()
        return self._alarm(watched, how) if verdict.found else None

    def watch_nodes(self, span: Span, plan: SpanPlan) -> None:
        """Clear the register before each node of the call runs. It is read when the record is complete."""
        register, step = self._register, self._step
        if register is None:
            return

        def arrive(_gradients: Any) -> None:
            if self._step != step:
                return
            try:
                span.watch = span.watch or Verdict()
                register.begin(span.watch)
            except Exception as error:  # noqa: BLE001 - hook boundary
                self._failed(f"float status of the gradients of {span.call.base}", error)

        for node in dict.fromkeys((*plan.results, *plan.arguments)):
            node.register_prehook(arrive)

    def _alarm(self, watched: Watched, how: str) -> _NanAlarm:
        writer = self._writer
        assert writer is not None  # noqa: S101 - records exist only in an open step
        folder, files = Path("extra-info"), []
        try:
            folder = extra_info_folder(writer.folder)
            files = write_extra_info(folder, watched.files or {})
        except OSError as error:
            writer.note_failure(f"extra-info of {watched.name}: {error}")
        return _NanAlarm(writer.flush, watched.name, _FOUND[how], str(folder), files)

    # -- steps

    def open_step(self, writer: StepWriter) -> None:
        """Alarms of this step are kept beside its folder's name; a device may be there now."""
        self._writer = writer
        if self._register is None:
            self._register = _status_register()

    def resolve(self) -> None:
        """Ask the devices."""
        self._scan.resolve()
        if self._register is not None:
            self._register.resolve()

    def close_step(self) -> None:
        """Count anew."""
        self._writer = None
        self._step += 1
        self._counts.clear()

    def notes(self) -> dict[str, Any]:
        """How many records each way of detection has judged."""
        return {"is_nan by": dict(self._counts)}


def _status_register() -> StatusRegister | None:
    """Return the register of the NPU in use, None without one."""
    if not npu_in_use():
        return None
    problems = register_problems()
    if problems:
        raise ConfigError([Problem("task", "nan_check", "what the NPU is set up for", text) for text in problems])
    return StatusRegister()
