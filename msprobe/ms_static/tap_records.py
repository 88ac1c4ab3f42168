"""What taps report, gathered into records. Called from MindSpore's own threads while a graph runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe.core.coverage import Coverage
from msprobe.core.interruptions import pass_on_interruption
from msprobe.core.names import PARAMETERS_GRAD, CallName, Counters
from msprobe.measure.kernel_statistics import tensor_entry
from msprobe.ms_static.tap_places import BOOL, FLOAT, INT, NOTHING, UNKNOWN_SHAPE, Kind, Place
from msprobe.ms_static.tapped_cells import TappedCell
from msprobe.store import StepWriter

Array: TypeAlias = NDArray[Any]
Record: TypeAlias = dict[str, Any]

DYNAMIC_SHAPE = "shape known only when the graph runs"
NOT_RECORDED = np.int32(-1)
_NOTHING = np.int32(0)
_SIDES: dict[Kind, tuple[str, str]] = {
    Kind.ARGUMENT: ("input_args", "input"),
    Kind.KEYWORD: ("input_kwargs", "kwargs"),
    Kind.RESULT: ("output", "output"),
    Kind.PARAMETER: ("parameters", "parameters"),
    Kind.RESULT_GRADIENT: ("input", "input"),
    Kind.ARGUMENT_GRADIENT: ("output", "output"),
}
_DTYPES = {"bool": "Bool", "bfloat16": "BFloat16"} | {
    f"{word}{bits}": f"{text}{bits}"
    for word, text in (("int", "Int"), ("uint", "UInt"), ("float", "Float"), ("complex", "Complex"))
    for bits in (8, 16, 32, 64, 128)
}


_CONSTANTS = {BOOL: "bool", INT: "int", FLOAT: "float"}


class TapRecorder:
    """Gathers values by call.

    Parameters
    ----------
    cells : sequence of TappedCell
        By their numbers.
    low : bool
        Round statistics to the dtype.
    tensors : bool
        Write every tensor to a file.

    Attributes
    ----------
    running : bool
        Whether calls are recorded. Calls that began before are not, whatever comes of them later.
    writer : StepWriter or None
        The open step.
    coverage : Coverage
    null_reasons : Counter
        Why statistics are missing, and how often.
    outer : dict
        Number of a Cell without taps -> its call that is under way.
    """

    def __init__(self, cells: Sequence[TappedCell], *, low: bool, tensors: bool) -> None:
        self.running = False
        self.writer: StepWriter | None = None
        self.coverage = Coverage()
        self.null_reasons: Counter[str] = Counter()
        self.outer: dict[int, CallName] = {}
        self._cells = cells
        self._low = low
        self._tensors = tensors
        self._lock = threading.Lock()
        self._counters = Counters()
        self._entered: dict[int, CallName] = {}
        self._calls: dict[tuple[int, int], tuple[CallName, int]] = {}
        self._records: dict[str, Record] = {}

    # -- called by graphs; nothing may be raised into them

    def enter(self, tensors: Any, number: Any) -> Any:
        """A Cell call with this many tensors begins; returns its index."""
        return self._guarded(lambda place: self._enter(place, _integer(tensors)), number, NOT_RECORDED)

    def see(self, value: Any, number: Any, call: Any, shape: Any) -> Any:
        """A value passes."""
        return self._guarded(lambda place: self._see(value, place, _integer(call), np.ravel(shape)), number, _NOTHING)

    def _guarded(self, action: Callable[[Place], Any], number: Any, otherwise: Any) -> Any:
        if not self.running:
            return otherwise
        try:
            with self._lock:
                return action(Place.from_number(_integer(number)))
        except Exception as error:  # noqa: BLE001 - hook boundary: the user's graph goes on
            pass_on_interruption(error)
            self.coverage.not_recorded[f"value of a compiled Cell: {type(error).__name__}"] += 1
            if self.writer is not None:
                self.writer.note_failure(f"a value of a compiled Cell: {type(error).__name__}: {error}")
            return otherwise

    def _enter(self, place: Place, tensors: int) -> Any:
        cell = self._cells[place.cell]
        call = CallName(cell.base, self._counters.take(cell.base), module=True)
        if cell.parent is not None:
            call.parent = self._entered.get(cell.parent) or self.outer.get(cell.parent)
        self._entered[place.cell] = call
        self._calls[place.cell, call.index] = (call, tensors)
        return np.int32(call.index)

    def _see(self, value: Array, place: Place, index: int, shape: Array) -> Any:
        self._put(place, index, lambda path: self._entry(value, shape, path))
        return _NOTHING

    def _put(self, place: Place, index: int, entry_of: Callable[[str], Record | None]) -> None:
        """Put one value where it belongs; ``entry_of`` makes its entry, given its full name."""
        if place.kind is Kind.PARAMETER_GRADIENT:
            self._put_parameter_gradient(place, entry_of)
            return
        found = self._calls.get((place.cell, index))
        if found is None:
            return
        call, tensors = found
        backward = place.kind in (Kind.RESULT_GRADIENT, Kind.ARGUMENT_GRADIENT)
        name = call.backward() if backward else call.forward
        record = self._record(name, call, tensors if backward else None)
        key, part = _SIDES[place.kind]
        position = self._position(place)
        several = place.kind is Kind.RESULT and place.nested  # they are one list
        steps = place.inner if several else f"{position}.{place.inner}" if place.nested else position
        _put(record, key, position, place, entry_of(f"{name}.{part}.{steps}"))

    def _position(self, place: Place) -> int | str:
        """Return the index of a value in its list, or its name."""
        cell = self._cells[place.cell]
        if place.kind is Kind.PARAMETER:
            return cell.parameters[place.slot]
        if place.kind is Kind.KEYWORD:
            return cell.keywords[place.slot]
        return place.slot

    def _record(self, name: str, call: CallName, tensors: int | None) -> Record:
        """Return a record, a new one with all its keys; ``tensors`` of the arguments for a backward one."""
        record = self._records.get(name)
        if record is None:
            record = {"input_args": [], "input_kwargs": {}, "output": [], "parameters": {}}
            if tensors is not None:
                record = {"input": [None] * self._results(call), "output": [None] * (tensors or self._arguments(call))}
            self._records[name] = record
            parent = call.parent if isinstance(call.parent, CallName) else None
            above = None if parent is None else parent.forward if tensors is None else parent.backward()
            if self.writer is not None:
                self.writer.add_parent(name, above)
        return record

    def _results(self, call: CallName) -> int:
        """Return how many tensors the call has given back, as far as that was recorded."""
        return _tensors_in(self._records.get(call.forward, {}).get("output", ()))

    def _arguments(self, call: CallName) -> int:
        """Return how many tensors the call was given, as far as that was recorded."""
        forward = self._records.get(call.forward, {})
        return _tensors_in(forward.get("input_args", ())) + _tensors_in(forward.get("input_kwargs", {}).values())

    def _put_parameter_gradient(self, place: Place, entry_of: Callable[[str], Record | None]) -> None:
        cell = self._cells[place.cell]
        parameter = cell.parameters[place.slot]
        name = f"{cell.base}.{PARAMETERS_GRAD}.{self._counters.take(f'{cell.base}.{parameter}')}"
        self._records.setdefault(name, {})[parameter] = [entry_of(f"{name}.{parameter}")]

    def _entry(self, value: Array, shape: Array, path: str) -> Record | None:
        dtype = _DTYPES.get(value.dtype.name, value.dtype.name)
        form = int(shape[0])
        if form == UNKNOWN_SHAPE:
            self.null_reasons[DYNAMIC_SHAPE] += 1
            empty = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
            return {"type": "mindspore.Tensor", "dtype": dtype, "shape": None, **empty, "reason": DYNAMIC_SHAPE}
        if form < 0:
            return None if form == NOTHING else {"type": _CONSTANTS[form], "value": np.ravel(value)[0].item()}
        sizes = tuple(int(size) for size in shape[1:])
        array = value.reshape(sizes) if 0 not in sizes else np.empty(sizes, value.dtype)
        entry = tensor_entry(array, dtype, low=self._low)
        if "reason" in entry:
            self.null_reasons[entry["reason"]] += 1
        if self._tensors and array.size and self.writer is not None:
            data_name = self.writer.write_tensor(f"{path}.npy", lambda file: _save(file, array))
            if data_name is not None:
                entry["data_name"] = data_name
        return entry

    # -- of taps that wrote files

    def replay(self, values: Sequence[tuple[Place, Callable[[str], Record | None]]]) -> None:
        """Take values that were written by a step, in the order in which they were.

        A file does not say to which call its value belongs: the n-th value at a place is that of the n-th call, and
        gradients come back in the opposite order.

        Parameters
        ----------
        values
            Place, and what makes the entry given its full name.
        """
        with self._lock:
            before = Counter(cell for cell, _ in self._calls)
            seen: Counter[Place] = Counter()
            for place, entry_of in values:
                if not place.kind.nests:
                    continue
                index, seen[place] = before[place.cell] + seen[place], seen[place] + 1
                if (place.cell, index) not in self._calls:
                    self._enter(place, 0)
                self._put(place, index, entry_of)
            calls = Counter(cell for cell, _ in self._calls)
            for place, entry_of in values:
                if place.kind.nests:
                    continue
                if not calls[place.cell]:  # only gradients are wanted
                    self._enter(place, 0)
                    calls[place.cell] = 1
                index = max(calls[place.cell] - 1 - seen[place], 0)
                seen[place] += 1
                self._put(place, index, entry_of)

    # -- called by the session

    @property
    def entered(self) -> bool:
        """Whether any Cell call of the step was seen."""
        return bool(self._entered)

    def flush(self) -> None:
        """Hand over the records; the graphs that made them are done."""
        with self._lock:
            if self.writer is not None:
                for name, record in self._records.items():
                    self.writer.add(name, record)
            self._records.clear()

    def end_step(self) -> None:
        """Restart names; what still comes of earlier calls is dropped."""
        with self._lock:
            self._counters.reset()
            self.coverage.reset()
            self.null_reasons.clear()
            self._entered.clear()
            self.outer.clear()
            self._calls.clear()


def _tensors_in(entries: Iterable[Any]) -> int:
    count = 0
    for entry in entries:
        if isinstance(entry, list):
            count += _tensors_in(entry)
        elif entry is not None:
            count += entry.get("type") == "mindspore.Tensor"
    return count


def _put(record: Record, key: str, position: int | str, place: Place, entry: Record | None) -> None:
    holder: Any = record.setdefault(key, {})
    if place.kind is Kind.RESULT and place.nested:
        _set(holder, place.inner, entry)  # several results are one list
    elif place.nested:
        inner = _at(holder, position)
        if not isinstance(inner, list):
            inner = []
            _set(holder, position, inner)
        _set(inner, place.inner, entry)
    else:
        _set(holder, position, entry)


def _at(holder: Any, position: int | str) -> Any:
    if isinstance(holder, dict):
        return holder.get(str(position))
    return holder[position] if int(position) < len(holder) else None


def _set(holder: Any, position: int | str, value: Any) -> None:
    """Set an element of a dict or of a list that grows; what was not seen is null."""
    if isinstance(holder, dict):
        holder[str(position)] = value
        return
    while len(holder) <= int(position):
        holder.append(None)
    holder[int(position)] = value


def _save(file: BinaryIO, array: Array) -> None:
    plain = array.astype(np.float32) if array.dtype.name == "bfloat16" else array  # numpy has no bfloat16 of its own
    np.save(file, plain, allow_pickle=False)


def _integer(value: Any) -> int:
    """Return a number that MindSpore hands over as an int or as an array of one element."""
    return value if isinstance(value, int) else int(np.ravel(value)[0])
