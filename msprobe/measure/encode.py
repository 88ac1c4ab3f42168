"""Encode any value that flows through a model as JSON: arguments, results, gradients.

`ValueEncoder` never raises for a value it cannot read; the entry then says why. Tensors are encoded by `entries`,
values of torch by `scalars`; containers are walked by `value_walk`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch._C import _is_tracing

from msprobe.measure import scalars
from msprobe.measure.entries import TensorEncoder, WriteTensor
from msprobe.measure.entry_parts import Entry, MeasurePlan, Precision, SummaryMode, Task
from msprobe.measure.fast_entries import FastEntries
from msprobe.measure.quiet import Quiet
from msprobe.measure.value_walk import DEPTH_LIMIT, Parents, ValueWalk

__all__ = ["DEPTH_LIMIT", "ValueEncoder"]

NAMED = frozenset(scalars.NAMED)
"""Keywords whose values are encoded by their name, not by their type."""


class ValueEncoder(ValueWalk):
    """Encodes arguments, results and gradients for a dump.

    Parameters
    ----------
    task
        ``structure`` measures nothing; ``tensor`` differs from ``statistics`` only in what the caller gives paths for.
    summary_mode
        ``statistics``; ``md5`` adds a CRC-32; ``xor`` and ``hash`` write a 64-bit checksum instead of statistics.
    precision
        ``low`` rounds results to the tensor's dtype, ``high`` keeps float64.
    write_tensor
        Called as ``write_tensor(file_name, save)`` for tensors that come with a path; returns the name to record or
        None. `save` writes the file when called, `save.hold()` keeps the values for a later call. None: no files.
    immediate
        Device types whose tensors are read at once. Tensors of other devices are launched at once, too, but their
        entries hold None until `resolve`.
    asynchronous
        The dump is written at the end of the step: complex tensors get no statistics.

    Attributes
    ----------
    null_reasons
        How often a statistic is null or a value is missing, by reason.

    Examples
    --------
    >>> encoder = ValueEncoder()
    >>> encoder.encode_sequence((torch.tensor([3.0, 4.0]), 2, None))  # doctest: +ELLIPSIS
    [{'type': 'torch.Tensor', 'dtype': 'torch.float32', ...}, {'type': 'int', 'value': 2}, None]
    """

    __slots__ = ("_encode_tensor", "_fast", "_tensors")

    named = scalars.NAMED

    def __init__(  # noqa: PLR0913 - one keyword per setting
        self,
        *,
        task: Task = "statistics",
        summary_mode: SummaryMode = "statistics",
        precision: Precision = "low",
        write_tensor: WriteTensor | None = None,
        immediate: Container[str] = ("cpu",),
        asynchronous: bool = False,
    ) -> None:
        super().__init__(())
        measured = task != "structure"
        plan = MeasurePlan(
            statistics=measured and summary_mode in ("statistics", "md5"),
            checksum=summary_mode if measured and summary_mode != "statistics" else None,
            low=precision == "low",
            immediate=immediate,
            complex_statistics=not asynchronous,
        )
        self._tensors = TensorEncoder(plan, write_tensor, self.null_reasons)
        self._encode_tensor = self._tensors.encode
        fast = FastEntries(self._encode_inside, low=plan.low, checksum=plan.checksum)
        usable = measured and "cpu" in immediate
        self._fast = fast if fast and usable else None
        arrays = (np.ndarray, self._tensors.encode_array)
        self._bases = (arrays, *self._bases, (scalars.P2P_OPS, self._p2p_op), *scalars.SCALAR_BASES)

    def encode(self, value: Any, path: str | None = None) -> Any:
        """Return the JSON form of one value.

        Parameters
        ----------
        value
            Anything. Nothing is changed, no graph is built, no random number is drawn.
        path
            Full name of the value (``Functional.linear.0.forward.input.0``): tensors in it are saved as well.
        """
        if _is_tracing():
            with Quiet():
                return self._encode(value, path, ())
        if path is None and self._fast is not None:
            return self._fast.encode_one(value)
        return self._encode(value, path, ())

    def encode_sequence(self, values: Iterable[Any], prefix: str | None = None) -> Any:
        """Return the JSON list of `values`, a list or ``orjson.Fragment``; element ``i`` has the path ``prefix.i``."""
        if _is_tracing():  # torch.jit.trace would record sizes as tensors
            with Quiet():
                return self._items(values, prefix, ())
        fast = self._fast
        if prefix is None and fast is not None:
            return fast.encode_values(values, fast.active)
        return self._items(values, prefix, ())

    def encode_mapping(self, mapping: Mapping[Any, Any], prefix: str | None = None) -> Any:
        """Return the JSON object of a mapping, a dict or ``orjson.Fragment``; keys are text, paths ``prefix.key``."""
        if _is_tracing():
            with Quiet():
                return self._pairs(mapping.items(), prefix, ())
        if prefix is None and self._fast is not None and type(mapping) is dict and mapping.keys().isdisjoint(NAMED):
            found = self._fast.encode_pairs(mapping)
            if found is not None:
                return found
        return self._pairs(mapping.items(), prefix, ())

    @property
    def native(self) -> FastEntries | None:
        """What encodes plain values natively, None if there are no such kernels, or nothing for them to do."""
        return self._fast

    def trust_versions(self, *, on: bool) -> None:
        """See :meth:`FastEntries.trust_versions`."""
        if self._fast is not None:
            self._fast.trust_versions(on=on)
        self._tensors.trust_versions(on=on)
        self._encode_tensor = self._tensors.encode_trusting if on else self._tensors.encode

    def resolve(self) -> None:
        """Fill in the entries whose numbers are still on an accelerator. Call it before they are serialised."""
        self._tensors.resolve()

    def _encode_inside(self, value: Any) -> Any:
        with torch._C.DisableTorchFunction():  # the native kernels are also asked by code that does not hold it
            return self._encode(value, None, ())

    def _encode(self, value: Any, path: str | None, parents: Parents) -> Any:
        kind = type(value)
        try:
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                return self._encode_tensor(value, path)
            scalar = scalars.SCALARS.get(kind)
            if scalar is not None:
                return scalar(value)
            if kind is list or kind is tuple or kind is dict:
                return self._container(value, path, parents)
            return self._other(value, path, parents)
        except Exception as error:  # noqa: BLE001 - a value that cannot be read must not stop the training
            return self._failed(kind, error)

    def _other(self, value: Any, path: str | None, parents: Parents) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensors.encode_any(value, path)
        return super()._other(value, path, parents)

    def _p2p_op(self, value: Any) -> Entry:
        return scalars.encode_p2p_op(value, self._encode(value.tensor, None, ()))
