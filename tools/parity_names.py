"""Which of our records stands for which record of the peer.

A record has the same name on both sides, with two documented exceptions: the peer drops the namespace of a torch
function (``torch.linalg.norm`` and ``torch.norm`` share the name ``Torch.norm`` and its counter), and it counts a
recomputed call as a new one. Both follow from the order of our records, so they can be undone exactly.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MODULES = ("Module.", "Cell.")
_API = re.compile(r"(?P<prefix>\w+)\.(?P<name>.+)\.(?P<index>\d+)\.(?P<side>forward|backward)(?P<tag>#.*)?")
_MODULE = re.compile(r"(?P<base>\w+\..+)\.(?P<side>forward|backward|parameters_grad)\.(?P<index>\d+)(?P<tag>#.*)?")


@dataclass(frozen=True, slots=True)
class Name:
    """A record name, taken apart."""

    base: str
    side: str
    index: int
    tag: str
    module: bool

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """None for what is no record name: ``optimizer``, ``clip_grad``."""
        found = _MODULE.fullmatch(text) if text.startswith(MODULES) else None
        if found:
            return cls(found["base"], found["side"], int(found["index"]), found["tag"] or "", True)
        found = _API.fullmatch(text)
        if not found:
            return None
        return cls(f"{found['prefix']}.{found['name']}", found["side"], int(found["index"]), found["tag"] or "", False)

    def peer_base(self) -> str:
        """The base without a namespace."""
        if self.module or self.base.count(".") < 2 or not self.base.startswith("Torch."):
            return self.base
        return f"Torch.{self.base.rpartition('.')[2]}"

    def peer(self, index: int) -> str:
        """The name that the peer gives to the call, if it is the ``index``-th there."""
        return f"{self.base}.{self.side}.{index}" if self.module else f"{self.peer_base()}.{index}.{self.side}"


@dataclass(slots=True)
class Counterparts:
    """Names of the peer, and the records of ours that stand for them.

    Attributes
    ----------
    ours : dict
        Name of the peer -> our name.
    reasons : dict
        Name of the peer -> key of the documented difference, where the two names are not equal.
    """

    ours: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def to_peer(self) -> dict[str, str]:
        """Our name -> name of the peer."""
        return {ours: peer for peer, ours in self.ours.items()}

    def add(self, peer: str, ours: str, *, namespaces: bool) -> None:
        """Note a pair; ``namespaces`` tells whether functions of several namespaces share the peer's counter."""
        self.ours[peer] = ours
        tag = ours.partition("#")[2]
        if tag and not tag.startswith("recompute"):
            self.reasons[peer] = "overwritten"
        elif peer != ours:
            self.reasons[peer] = "namespace" if namespaces else "recompute"


def counterparts(ours: Mapping[str, object], peer: Iterable[str]) -> Counterparts:
    """Pair the records of two dumps of the same script.

    Parameters
    ----------
    ours : mapping
        Our records, in the order in which they were written.
    peer : iterable of str
        Names of the peer's records.
    """
    wanted = set(peer)
    pairs = Counterparts()
    ordinals: dict[tuple[str, int], list[int]] = defaultdict(list)  # our (base, index) -> indices at the peer
    count: dict[str, int] = defaultdict(int)
    parsed = [(text, name) for text in ours if (name := Name.parse(text)) is not None]
    namespaces = {name.peer_base() for _, name in parsed if name.peer_base() != name.base}
    for text, name in parsed:
        if name.side != "forward" or name.tag == "#error":
            continue
        ordinal = count[name.peer_base()]
        count[name.peer_base()] += 1
        ordinals[name.base, name.index].append(ordinal)
        pairs.add(name.peer(ordinal), text, namespaces=name.peer_base() in namespaces)
    for text, name in parsed:
        if name.side == "parameters_grad":
            pairs.add(text, text, namespaces=False)
        elif name.side == "backward":  # a later pass over the same graph overwrites the earlier one
            candidates = [name.peer(ordinal) for ordinal in ordinals.get((name.base, name.index), [name.index])]
            for candidate in [other for other in candidates if other in wanted] or candidates[:1]:
                pairs.add(candidate, text, namespaces=name.peer_base() in namespaces)
    return pairs
