"""Distinct stacks: the same whether Python or the native kernel walks the frames."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from types import FrameType

import pytest

from msprobe.core.call_stack import KeyOf, StackBook, StackNode, stack_key
from msprobe.measure.backends import native_module

NATIVE = native_module()


@pytest.fixture(params=["python", "native"] if NATIVE is not None else ["python"])
def key_of(request: pytest.FixtureRequest) -> KeyOf:
    return stack_key if request.param == "python" else NATIVE.stack_key  # type: ignore[union-attr]


def inner(look: Callable[[FrameType], object]) -> object:
    return look(sys._getframe())


def outer(look: Callable[[FrameType], object]) -> list[object]:
    return [inner(look) for _ in range(2)] + [inner(look)]


def test_a_key_tells_where_each_frame_stands(key_of: KeyOf) -> None:
    keys: list[Hashable] = outer(lambda frame: key_of(frame, None, None, False))
    assert keys[0] == keys[1] != keys[2]
    assert None not in keys


def test_a_walk_ends_at_the_anchor_and_fails_without_it(key_of: KeyOf) -> None:
    me = sys._getframe()
    node = StackNode((), (), None, in_clip_grad=False)

    def keys(frame: FrameType) -> set[Hashable]:
        return {
            key_of(frame, me, node, False),
            key_of(frame, me, node, True),
            key_of(frame, me, None, False),
            key_of(frame, frame, None, False),
            key_of(frame, None, None, False),
        }

    found = inner(keys)
    assert isinstance(found, set)
    assert len(found) == 5
    assert None not in found
    assert key_of(me.f_back, me, None, False) is None


def test_a_stack_in_two_parts_reads_like_the_whole(key_of: KeyOf) -> None:
    book = StackBook(key_of=key_of)
    me = sys._getframe()
    around = book.node(me.f_back, None, None)

    def nodes(frame: FrameType) -> tuple[StackNode | None, ...]:
        parts = book.node(frame, me, around, True)
        assert parts is book.node(frame, me, around, True)
        return parts, book.node(frame, me, around), book.node(frame, None, None)

    parts, without_anchor, whole = inner(nodes)  # type: ignore[misc]
    assert book.render(parts) == book.render(whole)
    lines = book.render(without_anchor)
    assert len(lines) == len(book.render(whole)) - 1
    assert not any(me.f_code.co_name in line for line in lines)


def test_a_node_is_none_when_its_anchor_has_returned(key_of: KeyOf) -> None:
    book = StackBook(key_of=key_of)
    over = inner(lambda frame: frame)
    assert isinstance(over, FrameType)
    assert book.node(sys._getframe(), over, None, True) is None
