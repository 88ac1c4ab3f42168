"""Operators and their operands, read from the bytecode: on which side of ``*`` the tensor stands.

``2 * (a + 1)`` and ``(a + 1) * 2`` both reach torch as ``Tensor.mul(tensor, 2)``. What the instructions of each operand
load tells them apart: constants and numbers on one side, a tensor, a module or a torch function on the other. Nothing
of the user's code is run: names are looked up, attributes only where they are plain data.
"""

from __future__ import annotations

import dis
import inspect
import re
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

# Python 3.10 has one instruction per operator, later ones name the operator in the argument.
_SYMBOLS_3_10 = {
    "ADD": "+", "SUBTRACT": "-", "MULTIPLY": "*", "TRUE_DIVIDE": "/", "FLOOR_DIVIDE": "//", "MODULO": "%",
    "POWER": "**", "MATRIX_MULTIPLY": "@", "AND": "&", "OR": "|", "XOR": "^", "LSHIFT": "<<", "RSHIFT": ">>",
    "SUBSCR": "[]",
}  # fmt: skip
CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD"})
Instructions = list[dis.Instruction]

_LOADS = frozenset({"LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"})
_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_BEFORE_CALL = frozenset({"PRECALL", "KW_NAMES"})
_PAIR = re.compile(r"(?:LOAD|STORE)_FAST(?:_BORROW)?")
_ASK_FOR_LOCALS = frozenset({"dir", "eval", "exec", "locals", "vars"})
# What a tensor is asked for as a number or a shape, and attributes of it that are tensors again.
_NUMBER_METHODS = frozenset({"size", "dim", "numel", "nelement", "item", "stride", "tolist", "storage_offset"})
_TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data", "grad", "real", "imag"})
_NUMBER_BUILTINS = frozenset({len, int, float, bool, round})
_UNKNOWN = object()


def read_instructions(code: CodeType) -> Instructions:
    """Instructions of ``code``, with those that do two things at once (Python 3.13) taken apart."""
    instructions = []
    for instruction in dis.get_instructions(code):
        parts = _PAIR.findall(instruction.opname)
        if len(parts) == 2 and isinstance(instruction.argval, tuple):
            instructions += [
                instruction._replace(opname=part, opcode=dis.opmap[part], arg=0, argval=name, argrepr=name)
                for part, name in zip(parts, instruction.argval, strict=True)
            ]
        else:
            instructions.append(instruction)
    return instructions


def symbol_of(instruction: dis.Instruction) -> str:
    """Operator that a binary, in-place or unary instruction applies: ``"+"``, ``"+="``, ``"unary -"``."""
    kind, _, operation = instruction.opname.partition("_")
    if instruction.argrepr == "INTRINSIC_UNARY_POSITIVE":  # Python 3.12
        return "unary +"
    if kind == "UNARY":
        return {"NEGATIVE": "unary -", "POSITIVE": "unary +"}.get(operation, "")
    if kind not in ("BINARY", "INPLACE"):
        return ""
    symbol = _SYMBOLS_3_10.get(operation, instruction.argrepr)
    return f"{symbol}=" if kind == "INPLACE" else symbol


def tensor_is_right_operand(instructions: Instructions, index: int, frame: FrameType) -> bool:
    """Whether the binary operator at ``index``, between a tensor and a number, has the tensor on its right.

    Parameters
    ----------
    instructions : list of dis.Instruction
        Of the code that ``frame`` runs.
    index : int
        The operator.
    frame : FrameType

    Returns
    -------
    bool
        False also when it cannot be told.
    """
    middle = start_of_expression(instructions, index)
    if not middle:
        return False
    left, right = (_holds_tensor(instructions, end, frame) for end in (middle, index))
    return (right is True and left is not True) or (left is False and right is not False)


def start_of_expression(instructions: Instructions, end: int) -> int | None:
    """Index of the first instruction of the expression whose value is on top of the stack before ``end``."""
    missing = 1
    for at in range(end - 1, -1, -1):
        instruction = instructions[at]
        if instruction.is_jump_target and at != end - 1:
            return None
        missing -= dis.stack_effect(instruction.opcode, instruction.arg)
        if missing == 0:
            return at
    return None


def callee_of(instructions: Instructions, index: int) -> int | None:
    """Index of the instruction that loads what the call at ``index`` calls."""
    end: int | None = index
    while end and instructions[end - 1].opname in _BEFORE_CALL:
        end -= 1
    if instructions[index].opname.endswith("_KW"):
        end = index - 1  # the names of the keywords
    for _ in range(instructions[index].arg or 0):
        end = start_of_expression(instructions, end) if end else None
    while end and instructions[end - 1].opname == "PUSH_NULL":
        end -= 1
    return end - 1 if end else None


def local_variable(frame: FrameType, name: str) -> Any:
    """Value of a local variable, or None; leaves no trace on the frame.

    Up to Python 3.12, ``frame.f_locals`` of a function is a dictionary that stays with the frame: it would keep the
    user's tensors alive, so it is emptied again. A function that may have asked for that dictionary itself is not read.
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals.get(name)
    if not _ASK_FOR_LOCALS.isdisjoint(code.co_names):
        return None
    variables = frame.f_locals
    value = variables.get(name)
    if type(variables) is dict:
        variables.clear()
    return value


def _holds_tensor(instructions: Instructions, end: int | None, frame: FrameType) -> bool | None:
    """Whether the expression that ends before ``end`` is a tensor; None if it cannot be told."""
    if not end:
        return None
    value = _known_value(instructions, end, frame)
    if value is not _UNKNOWN:
        return isinstance(value, torch.Tensor)
    last = instructions[end - 1]
    if last.opname in CALLS:
        return _returns_tensor(instructions, end - 1, frame)
    if last.opname in _ATTRIBUTES:
        of_tensor = _holds_tensor(instructions, end - 1, frame)
        return last.argval in _TENSOR_ATTRIBUTES if of_tensor else None
    if symbol_of(last) == "[]":
        return _item_is_tensor(instructions, end, frame)
    return _computes_tensor(instructions, end, frame)


def _computes_tensor(instructions: Instructions, end: int, frame: FrameType) -> bool | None:
    """Whether an operator gives a tensor: if one of its operands is one."""
    operator = instructions[end - 1].opname
    operands: list[int | None] = []
    if operator.startswith(("UNARY_", "BINARY_", "INPLACE_")):
        operands.append(end - 1)
    if operator.startswith(("BINARY_", "INPLACE_")):
        operands.append(start_of_expression(instructions, end - 1))
    held = [_holds_tensor(instructions, operand, frame) for operand in operands]
    return True if True in held else None if None in held or not held else False


def _item_is_tensor(instructions: Instructions, end: int, frame: FrameType) -> bool | None:
    container = start_of_expression(instructions, end - 1)
    of_container = _holds_tensor(instructions, container, frame)
    of_shape = container and instructions[container - 1].argval == "shape"
    return False if of_shape and of_container is False else of_container or None


def _returns_tensor(instructions: Instructions, index: int, frame: FrameType) -> bool | None:
    at = callee_of(instructions, index)
    if at is None:
        return None
    function = _known_value(instructions, at + 1, frame)
    if function is not _UNKNOWN:
        module = getattr(function, "__module__", None) or ""
        if function in _NUMBER_BUILTINS or module == "math":
            return False
        return True if isinstance(function, torch.nn.Module) or module.startswith("torch") else None
    method = instructions[at]
    if method.opname in _ATTRIBUTES and _holds_tensor(instructions, at, frame):
        return method.argval not in _NUMBER_METHODS
    return None


def _known_value(instructions: Instructions, end: int, frame: FrameType) -> Any:
    """Value of a constant, of a variable, or of plain data reached from it by attributes."""
    last = instructions[end - 1]
    if last.opname in _CONSTANTS:
        return last.argval
    if last.opname in _LOADS:
        value = None if last.opname == "LOAD_GLOBAL" else local_variable(frame, last.argval)
        if value is None:
            value = frame.f_globals.get(last.argval, frame.f_builtins.get(last.argval))
        return _UNKNOWN if value is None else value
    if last.opname in _ATTRIBUTES and end > 1:
        owner = _known_value(instructions, end - 1, frame)
        return _UNKNOWN if owner is _UNKNOWN else _plain_attribute(owner, last.argval)
    return _UNKNOWN


def _plain_attribute(owner: Any, name: str) -> Any:
    """An attribute that is stored on the object, so that no property or ``__getattr__`` of the user runs."""
    stored = getattr(owner, "__dict__", None)
    if isinstance(owner, torch.Tensor) or not isinstance(stored, dict):
        return _UNKNOWN
    tables = [stored]
    if isinstance(owner, torch.nn.Module):
        tables += [stored.get(table) or {} for table in ("_parameters", "_buffers", "_modules")]
    for table in tables:
        if name in table:
            return table[name]
    if isinstance(owner, (ModuleType, FunctionType)):
        return _UNKNOWN
    value = inspect.getattr_static(type(owner), name, _UNKNOWN)
    return value if isinstance(value, (int, float)) else _UNKNOWN
