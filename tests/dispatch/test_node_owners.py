"""The call that made an autograd node is found by the node's sequence number."""

from __future__ import annotations

from msprobe.dispatch.node_owners import NodeOwners


def test_a_node_belongs_to_the_innermost_call_that_made_it() -> None:
    owners: NodeOwners[str] = NodeOwners()
    owners.begin("a", 2)
    owners.end("a", 4)
    owners.begin("outer", 5)
    owners.begin("inner", 6)
    owners.end("inner", 8)
    owners.end("outer", 10)
    found = [owners.find(number) for number in range(11)]
    assert found == [None, None, "a", "a", None, "outer", "inner", "inner", "outer", "outer", None]


def test_a_call_that_makes_no_node_takes_no_room() -> None:
    owners: NodeOwners[str] = NodeOwners()
    for _ in range(3):
        owners.begin("a", 7)
        owners.end("a", 7)
    owners.begin("b", 7)
    owners.end("b", 8)
    assert owners.find(7) == "b"
    assert owners._calls == ["b"]


def test_an_open_call_owns_all_that_follows_and_ends_with_the_call_outside() -> None:
    owners: NodeOwners[str] = NodeOwners()
    owners.begin("outer", 0)
    owners.begin("raised", 1)
    assert owners.find(100) == "raised"
    owners.end("outer", 3)
    assert [owners.find(number) for number in (0, 2, 3)] == ["outer", "raised", None]
