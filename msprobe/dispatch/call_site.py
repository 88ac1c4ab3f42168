"""Who called: the user's instruction behind a torch function call.

torch reports ``a + b`` and ``a.add(b)`` as the same function, and ``F.conv2d`` and ``torch.conv2d`` are one object. The
bytecode of the calling instruction tells them apart. It is read once per instruction: results are cached by
(code object, offset), so the cost in a training loop is one dictionary lookup.
"""

from __future__ import annotations

import dis
import inspect
import sys
from bisect import bisect_right
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from msprobe.dispatch.api_table import OPERATORS, REFLECTED, SHORT_FUNCTIONS, Api
from msprobe.dispatch.operands import CALLS, callee_of, read_instructions, symbol_of, tensor_is_right_operand

_HANDLE_TORCH_FUNCTION = torch.overrides.handle_torch_function.__code__
_BOOLEAN_DISPATCH = torch.nn.functional.max_pool2d.__code__
_SHORT_FUNCTIONS = frozenset(getattr(torch.nn.functional, name).__code__ for name in SHORT_FUNCTIONS)
# What `boolean_dispatch` chooses from has the parameters that the dispatcher itself does not show.
_DISPATCHED = {
    getattr(torch.nn.functional, name.removesuffix("_with_indices")): getattr(torch.nn.functional, name)
    for name in dir(torch.nn.functional)
    if name.endswith("_with_indices")
}


class Caller(NamedTuple):
    """Where an API call was written.

    Attributes
    ----------
    frame : FrameType
    wrapped : bool
        The API is a Python function, which hands torch its parameters instead of the arguments as written.
    dispatched : bool
        The API was chosen by ``boolean_dispatch``, as ``F.max_pool2d`` chooses by ``return_indices``.
    functional : bool
        The API is a method that a function of ``torch.nn.functional`` does nothing but call.
    """

    frame: FrameType
    wrapped: bool
    dispatched: bool
    functional: bool


def find_caller(depth: int) -> Caller:
    """The frame that contains the API call, seen from inside ``__torch_function__``.

    Skips torch's own plumbing: ``handle_torch_function`` together with the Python function that called it, and the
    ``__torch_function__`` of a mode that lies on top of ours (``with torch.device(...)``).

    Parameters
    ----------
    depth : int
        Frames between the caller of this function and ``__torch_function__``'s own caller.
    """
    frame = sys._getframe(depth + 1)
    wrapped = dispatched = functional = False
    code = frame.f_code
    while True:
        if code is _HANDLE_TORCH_FUNCTION:
            frame = _outer(_outer(frame))
            wrapped = True
        elif code is _BOOLEAN_DISPATCH:
            frame = _outer(frame)
            dispatched = True
        elif code in _SHORT_FUNCTIONS:
            frame = _outer(frame)
            functional = True
        elif code.co_name == "__torch_function__":
            frame = _outer(frame)
        else:
            return Caller(frame, wrapped, dispatched, functional)
        code = frame.f_code


def _outer(frame: FrameType) -> FrameType:
    return frame.f_back or frame


class Written(NamedTuple):
    """How the arguments of a call are written: how many by position, which by keyword."""

    positional: int
    keywords: tuple[str, ...]


class CallSites:
    """Final names of functions that look alike to torch, by calling instruction.

    Attributes
    ----------
    plain : dict
        Code objects, by id, that call APIs themselves and write their arguments as torch gets them.
    """

    def __init__(self) -> None:
        self.plain: dict[int, CodeType] = {}
        self._resolved: dict[tuple[int, int, int, bool], Api] = {}
        self._written: dict[tuple[int, int], Written | None] = {}
        self._parameters: dict[Any, tuple[str, ...] | None] = {}
        self._kept: list[object] = []  # code objects and Apis whose id is a key must stay alive
        self._instructions: dict[CodeType, list[dis.Instruction]] = {}

    def note_plain(self, frame: FrameType, direct: FrameType) -> None:
        """Remember that a caller is plain, if torch was called from its frame directly."""
        if frame is direct:
            self.plain[id(frame.f_code)] = frame.f_code

    def resolve(self, api: Api, frame: FrameType, args: tuple[Any, ...], caller: Caller | None = None) -> Api:
        """The API that the calling instruction stands for.

        Parameters
        ----------
        api : Api
            What the function object alone says (``api.at_site`` is set).
        frame : FrameType
            The caller's.
        args : tuple
            Positional arguments of the call, to tell ``1 + a`` from ``a + 1``.
        caller : Caller, optional
            More about the caller, if it is not plain.
        """
        code = frame.f_code
        key = (id(code), frame.f_lasti, id(api), api.operator and _with_number(args))
        found = self._resolved.get(key)
        if found is None:
            found = self._resolved[key] = self._decide(api, caller or Caller(frame, False, False, False), args)
            self._kept += (code, api)
        return found

    def as_written(
        self, function: Any, caller: Caller, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arguments of a Python API function as the user wrote them.

        ``F.embedding(x, w)`` reaches torch as ``embedding(x, w, padding_idx=None, max_norm=None, ...)``: every
        parameter, most of them by keyword. The calling instruction says how many were given by position and which by
        keyword. Where it does not (``f(*args)``, ``a ** b``), the arguments stay as torch has them.
        """
        frame = caller.frame
        key = (id(frame.f_code), frame.f_lasti)
        try:
            written = self._written[key]
        except KeyError:
            written = self._written[key] = self._read_call(frame)
            self._kept.append(frame.f_code)
        names = self._names_of(function) if written is not None else None
        if written is None or names is None or len(args) > len(names):
            return args, kwargs
        given = dict(zip(names, args, strict=False), **kwargs)
        count = written.positional + (1 if names[0] == "self" else 0)
        if count > len(names) or not given.keys() >= {*names[:count], *written.keywords}:
            return args, kwargs
        return tuple(given[name] for name in names[:count]), {name: given[name] for name in written.keywords}

    def _names_of(self, function: Any) -> tuple[str, ...] | None:
        """Names of a function's parameters, None if some have no name (``*args``)."""
        if function not in self._parameters:
            try:
                parameters = inspect.signature(_DISPATCHED.get(function, function)).parameters.values()
                named = all(p.kind is not p.VAR_POSITIONAL and p.kind is not p.VAR_KEYWORD for p in parameters)
                self._parameters[function] = tuple(p.name for p in parameters) if named and parameters else None
            except (TypeError, ValueError):  # no signature
                self._parameters[function] = None
        return self._parameters[function]

    def _read_call(self, frame: FrameType) -> Written | None:
        at = self._position(frame)
        if at is None:
            return None
        instructions, index = at
        call = instructions[index]
        if call.opname not in CALLS or call.arg is None:
            return None
        keywords: tuple[str, ...] = ()
        if call.opname.endswith("_KW"):
            keywords = instructions[index - 1].argval
        else:
            before = [step for step in instructions[max(index - 2, 0) : index] if step.opname == "KW_NAMES"]
            if before and before[0].arg is not None:
                keywords = frame.f_code.co_consts[before[0].arg]
        return Written(call.arg - len(keywords), keywords) if isinstance(keywords, tuple) else None

    def _decide(self, api: Api, caller: Caller, args: tuple[Any, ...]) -> Api:
        frame = caller.frame
        if caller.functional:
            return Api("Functional", api.name)
        if caller.dispatched:
            return api.renamed(api.name.removesuffix("_with_indices"))
        at = self._position(frame)
        if at is None:
            return api
        instructions, index = at
        if api.operator:
            return self._operator(api, instructions, index, frame, args)
        if api.other is not None and _loaded_from_torch(instructions, index, frame, api.name):
            return api.other
        return api

    def _position(self, frame: FrameType) -> tuple[list[dis.Instruction], int] | None:
        code = frame.f_code
        instructions = self._instructions.get(code)
        if instructions is None:
            instructions = self._instructions[code] = read_instructions(code)
        # While a Python function runs, its caller's offset is that of the call's last inline cache entry.
        index = bisect_right(instructions, frame.f_lasti, key=lambda instruction: instruction.offset) - 1
        # Python 3.11 calls a builtin from PRECALL, not from the CALL after it, once the line has run a few times.
        if index >= 0 and instructions[index].opname == "PRECALL" and index + 1 < len(instructions):
            index += 1
        return (instructions, index) if index >= 0 else None

    @staticmethod
    def _operator(
        api: Api, instructions: list[dis.Instruction], index: int, frame: FrameType, args: tuple[Any, ...]
    ) -> Api:
        opname = instructions[index].opname
        if opname == "COMPARE_OP":  # `1 > a` runs a < 1: the function names the comparison, not the symbol
            return api.renamed(f"__{api.name}__")
        symbol = symbol_of(instructions[index])
        if opname in CALLS and _calls_builtin("abs", instructions, index):
            symbol = "abs()"
        function, dunder = OPERATORS.get(symbol, ("", ""))
        onto_number = function == f"{api.name}_"  # `total += a` where total is a number
        if onto_number:
            function, dunder = OPERATORS[symbol.removesuffix("=")]
        if function != api.name:
            return api
        number = dunder in REFLECTED and _with_number(args)
        if number and (onto_number or tensor_is_right_operand(instructions, index, frame)):
            dunder = REFLECTED[dunder]
        return api.renamed(dunder)


def _with_number(args: tuple[Any, ...]) -> bool:
    """Whether an operator is applied to a tensor and a number: in a loop that may differ from one time to the next."""
    return len(args) > 1 and not isinstance(args[1], torch.Tensor)


def _calls_builtin(name: str, instructions: list[dis.Instruction], index: int) -> bool:
    """Whether the call at ``index`` is ``name(argument)``, and not ``argument.name()``."""
    at = callee_of(instructions, index)
    return (
        at is not None and instructions[at].opname in ("LOAD_GLOBAL", "LOAD_NAME") and instructions[at].argval == name
    )


def _loaded_from_torch(instructions: list[dis.Instruction], index: int, frame: FrameType, name: str) -> bool:
    """Whether the function called at ``index`` was read as ``torch.<name>`` (not ``F.<name>``)."""
    for at in range(index - 1, 0, -1):
        instruction = instructions[at]
        if instruction.argval == name and instruction.opname.startswith("LOAD_"):
            owner = instructions[at - 1]
            return owner.opname in ("LOAD_GLOBAL", "LOAD_NAME") and frame.f_globals.get(owner.argval) is torch
    return False
