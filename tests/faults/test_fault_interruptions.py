"""Exceptions that a signal handler raises at any moment reach the program, and recording goes on after them."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_process import Outcome

from msprobe.core.interruptions import pass_on_interruption
from msprobe.store import read_dump


@pytest.mark.parametrize(("level", "task"), [("L1", "statistics"), ("mix", "tensor")])
def test_no_exception_of_a_signal_handler_is_kept(
    process: Callable[..., Outcome], place: Path, level: str, task: str
) -> None:
    answer = process("faulty_training:interrupted", level=level, task=task, seconds=2.0).answer
    assert answer["raised"] > 50
    # Where Python has nowhere to raise (a generator, weak reference or object that is being taken down), it tells
    # `sys.unraisablehook`, with and without us, and C code may drop one without a word. Before `pass_on_interruption`
    # nearly every second one was missing.
    discarded = answer["discarded"]
    assert 0 <= answer["raised"] - answer["arrived"] <= max(2, answer["raised"] // 100), discarded
    assert len(discarded) <= answer["raised"] - answer["arrived"]
    assert not any("msprobe" in place for place in discarded), discarded
    # A context manager in Python cannot be interrupted safely at every instruction, neither ours nor torch.no_grad.
    assert answer["grad mode off"] <= max(2, answer["raised"] // 50)
    (first,) = place.glob("*/dump/step0/*")
    assert len(read_dump(first).data) > 1000
    (after,) = place.glob("*/dump/step1/*")
    dump = read_dump(after)
    assert dump.complete
    assert not dump.coverage["failures"]
    assert {"Functional.linear.0.forward", "Functional.linear.1.backward", "Tensor.sum.0.backward"} <= set(dump.data)


class Handlers:
    """Shapes of signal handlers that programs have."""

    def method(self, number: int, frame: Any) -> None:
        raise RuntimeError("method")

    def __call__(self, *received: Any) -> None:
        raise RuntimeError("object")


def plain(number: int, frame: Any) -> None:
    raise RuntimeError("function")


def inner(number: int, frame: Any) -> None:
    plain(number, frame)


@pytest.fixture
def alarm() -> Iterator[Callable[[Any], BaseException]]:
    before = signal.getsignal(signal.SIGUSR1)

    def raised_by(handler: Any) -> BaseException:
        signal.signal(signal.SIGUSR1, handler)
        try:
            signal.raise_signal(signal.SIGUSR1)
        except RuntimeError as error:
            return error
        raise AssertionError("the handler raised nothing")

    yield raised_by
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler",
    [plain, inner, Handlers().method, Handlers(), functools.partial(plain), lambda *received: plain(*received[-2:])],
    ids=["function", "function in a function", "method", "object", "partial", "lambda"],
)
def test_a_handler_is_told_by_its_arguments(alarm: Callable[[Any], BaseException], handler: Any) -> None:
    error = alarm(handler)
    with pytest.raises(RuntimeError) as passed:
        pass_on_interruption(error)
    assert passed.value is error


def test_an_interruption_that_python_wrapped_in_another_error_is_passed_on(
    alarm: Callable[[Any], BaseException],
) -> None:
    class Field:
        """Interrupted while a class is made, as fields of a dataclass may be: Python raises a `RuntimeError` then."""

        def __set_name__(self, owner: type, name: str) -> None:
            raise interruption

    for interruption in (KeyboardInterrupt(), alarm(plain)):
        with pytest.raises(RuntimeError, match="__set_name__") as wrapped:
            type("Holder", (), {"field": Field()})
        with pytest.raises(type(interruption)) as passed:
            pass_on_interruption(wrapped.value)
        assert passed.value is interruption


def test_an_error_while_the_program_handles_an_interruption_is_not_passed_on() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        try:
            raise ValueError
        except ValueError as error:
            pass_on_interruption(error)


def test_an_error_of_other_code_is_not_passed_on() -> None:
    def takes_a_frame(_number: int, _frame: Any, _more: Any = None) -> None:
        raise RuntimeError

    for arguments in ((1, sys._getframe().f_back), (1, None), ("1", sys._getframe())):
        with pytest.raises(RuntimeError) as caught:
            takes_a_frame(*arguments)
        pass_on_interruption(caught.value)


def test_looking_at_an_error_makes_no_reference_cycle() -> None:
    def keep() -> weakref.ref[Handlers]:
        held = Handlers()
        try:
            held.method(1, None)
        except RuntimeError as error:
            pass_on_interruption(error)
        return weakref.ref(held)

    gc.disable()
    try:
        assert keep()() is None
    finally:
        gc.enable()
