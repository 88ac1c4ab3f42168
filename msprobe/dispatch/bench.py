"""``bench_path``: compare with an earlier md5 dump while the program runs, and keep the tensors where it differs.

A call differs if its inputs agree with the earlier run and its outputs do not: there the difference is made. Gradients
are compared in the same way; the inputs of a backward pass are those of its forward call, too. Copies of the inputs are
held until the outputs are known, because a call may write to its inputs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from msprobe.core.config_record import Config
from msprobe.core.coverage import Coverage
from msprobe.core.errors import ConfigError, Problem
from msprobe.core.live_compare import Values, differing, leaves_of
from msprobe.core.selection import Selection
from msprobe.dispatch.watching import Watched, Watcher
from msprobe.store import StepWriter, dumps_json, loads_json
from msprobe.store.bench import BenchError, check_bench, find_bench, read_bench, write_summary

if TYPE_CHECKING:
    from msprobe.core.backward_span import Span

_LOG = logging.getLogger("msprobe")
_ANNOUNCED = 10  # differences that are logged at once; the others are in the file
_EQUAL = "equal"
_INPUTS_DIFFER = "inputs differ"
_DIFFERENT = "outputs differ from equal inputs"
_EXTRA = "not in the earlier dump"
_MISSING = "only in the earlier dump"


class _Compared(Watched):
    """A call that the earlier dump has, too.

    Attributes
    ----------
    earlier : Values
    forward : str
        The forward call of a backward pass, else itself.
    """

    __slots__ = ("earlier", "forward")

    def __init__(self, name: str, forward: str, earlier: Values) -> None:
        super().__init__(name, {})
        self.forward = forward
        self.earlier = earlier


class BenchWatch(Watcher):
    """Compares every record with the earlier one of the same name.

    Parameters
    ----------
    config : Config
        With a ``bench_path``.
    selection : Selection
        Closed after the last difference.
    coverage : Coverage
    settle : callable
        See :class:`Watcher`.

    Raises
    ------
    ConfigError
        If ``bench_path`` holds no dump of a run.
    """

    def __init__(self, config: Config, selection: Selection, coverage: Coverage, settle: Callable[[], None]) -> None:
        super().__init__(settle)
        path = config.bench_path
        assert path is not None  # noqa: S101 - the reason for this watcher
        try:
            check_bench(path, config.dump_path)
        except BenchError as error:
            allowed = "the dump_path of an earlier run with summary_mode md5"
            raise ConfigError([Problem("tensor.bench_path", str(path), allowed, str(error))]) from error
        self._path = path
        self._limit = config.diff_nums
        self._selection = selection
        self._coverage = coverage
        self._writer: StepWriter | None = None
        self._earlier: dict[str, Values] = {}
        self._own = True
        self._obstacle: str | None = None
        self._diverged: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._extra: list[str] = []
        self._differences: list[dict[str, Any]] = []
        self._total: Counter[str] = Counter()
        self._first: str | None = None
        self._files: list[Path] = []

    # -- calls

    def begin(self, name: str, span: Span | None = None) -> Watched | None:
        """Look the record up in the earlier dump; keep its tensors if it is there."""
        earlier = self._earlier.pop(name, None)
        if self.ended is not None or (span is not None and not self._own):
            earlier = None
        elif earlier is None and self._obstacle is None:
            self._extra.append(name)
        compared = None
        if earlier is not None:
            compared = _Compared(name, name if span is None else span.call.forward, earlier)
        self._keep_for(compared, hold=True)
        return compared

    def run(self, watched: Watched, record: dict[str, Any]) -> None:
        """Drop the copies of inputs that differ already: what the call makes of them says nothing."""
        assert isinstance(watched, _Compared)  # noqa: S101 - made by begin
        self._settle()  # checksums may still be on a device
        _unpack(record)
        ours = Values.of(record).inputs
        if any(watched.earlier.inputs.get(path, text) != text for path, text in ours.items()):
            watched.files = None

    def end(self, watched: Watched, record: dict[str, Any]) -> None:
        """Compare."""
        assert isinstance(watched, _Compared)  # noqa: S101 - made by begin
        self._keep_for(None, hold=False)
        if self.ended is not None:
            return
        self._settle()
        _unpack(record)
        ours, earlier = Values.of(record), watched.earlier
        if watched.forward in self._diverged or differing(ours.inputs, earlier.inputs):
            self._diverged.add(watched.forward)
            self._counts[_INPUTS_DIFFER] += 1
            return
        paths = differing(ours.outputs, earlier.outputs)
        if not paths:
            self._counts[_EQUAL] += 1
            return
        self._counts[_DIFFERENT] += 1
        self._keep(watched, record, paths)

    def _keep(self, watched: Watched, record: dict[str, Any], paths: list[str]) -> None:
        """Write the tensors of a call that differs, and end the collection if that was the last one."""
        writer = self._writer
        assert writer is not None  # noqa: S101 - records exist only in an open step
        name = watched.name
        written = {file: writer.write_tensor(file, saver) for file, saver in (watched.files or {}).items()}
        for path, entry in leaves_of(record):
            file = written.get(f"{name}.{path}.pt")
            if file is not None:
                entry["data_name"] = file
        files = [file for file in written.values() if file is not None]
        step = writer.folder.parent.name
        self._differences.append({"record": name, "differing": paths, "files": files})
        self._first = self._first or f"{name} in {step}"
        number = self._total[_DIFFERENT] + self._counts[_DIFFERENT]
        if number <= _ANNOUNCED:
            _LOG.warning(
                "msprobe: difference %d: %s in %s has other values than in the earlier run at %s, from equal inputs; "
                "%d tensors stored in %s",
                number, name, step, ", ".join(paths[:4]), len(files), writer.folder,
            )  # fmt: skip
        if number == self._limit:
            self.ended = f"{number} difference(s) from {self._path} were found (diff_nums), the last one at {name}"
            self._selection.close()
            self._coverage.filter_by("came after the last difference (diff_nums)")

    # -- steps

    def open_step(self, writer: StepWriter) -> None:
        """Read the earlier dump of this step and rank."""
        self._writer = writer
        self._earlier, self._own, self._obstacle = {}, True, None
        try:
            folder = find_bench(self._path, writer.folder.parent.name, writer.folder.name)
            records, self._own = read_bench(folder, Values.of)
        except ValueError as error:
            self._obstacle = str(error)
            _LOG.warning("msprobe: nothing is compared in %s: %s", writer.folder.parent.name, error)
            return
        self._earlier = {name: values for name, values in records.items() if ".parameters_grad." not in name}
        if not self._own:
            _LOG.warning(
                "msprobe: %s was written by another tool, which lists gradients in another order: "
                "forward records are compared, backward ones are not", folder,
            )  # fmt: skip

    def notes(self) -> dict[str, Any]:
        """What the comparison of this step came to."""
        if self._obstacle is not None:
            return {"bench_path": {"not compared": self._obstacle}}
        counts = dict(self._counts)
        if self._extra:
            counts[_EXTRA] = len(self._extra)
        if self._missing():
            counts[_MISSING] = len(self._missing())
        return {"bench_path": counts}

    def _missing(self) -> list[str]:
        """Records of the earlier dump that this step did not bring, unless it was cut short."""
        if self.ended is not None:
            return []
        return [name for name in self._earlier if self._own or "backward" not in name]

    def close_step(self) -> None:
        """Write ``bench_differences.json`` of the step."""
        writer, self._writer = self._writer, None
        if writer is not None and self._obstacle is None:
            missing = self._missing()
            summary = {
                "bench_path": str(self._path),
                "counts": self.notes()["bench_path"],
                "differences": self._differences,
                _EXTRA: self._extra,
                _MISSING: missing,
                "ended": self.ended,
            }
            try:
                self._files.append(write_summary(writer.folder, summary))
            except OSError as error:
                writer.note_failure(f"bench_differences.json: {error}")
            self._total.update(self.notes()["bench_path"])
        self._earlier, self._extra, self._differences = {}, [], []
        self._counts.clear()
        self._diverged.clear()

    def conclude(self) -> None:
        """Say what the comparison came to."""
        total = self._total
        compared = total[_EQUAL] + total[_INPUTS_DIFFER] + total[_DIFFERENT]
        if not compared and not total:
            return
        lines = [f"msprobe compared {compared} records with {self._path}:"]
        lines += [f"    {count} {what}" for what, count in total.items()]
        if self._first is not None:
            lines.append(f"    the first difference: {self._first}")
        if self.ended is not None:
            lines.append(f"    the collection ended there: {self.ended}")
        if self._files:
            lines.append(f"    details: {', '.join(map(str, self._files[:3]))}{' ...' if len(self._files) > 3 else ''}")
        _LOG.warning("%s", "\n".join(lines))
        self._total.clear()


def _unpack(record: dict[str, Any]) -> None:
    """Turn parts that the encoder has made JSON text of already into objects again."""
    for key, part in record.items():
        items = part if isinstance(part, list) else part.values() if isinstance(part, dict) else (part,)
        if any(isinstance(item, orjson.Fragment) for item in items):
            record[key] = loads_json(dumps_json(part))
