"""Aligning two sequences of keys: what is the same call in both, where calls are extra, missing or replaced.

Near-linear for the sequences at hand: equal ends are cut off, keys that occur once on either side anchor the rest
(patience diff), and between anchors the longest common subsequence is found in time that grows with the number of
differences, not with the length (E. W. Myers, An O(ND) Difference Algorithm, 1986).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Keys = Sequence[int]
Pair = tuple[int, int]

#: With more differences than this in one gap, its calls have little in common: the next, weaker key is asked.
MOST_DIFFERENCES = 1000


@dataclass(frozen=True, slots=True)
class Gap:
    """A range on either side that is not aligned yet; ends exclusive."""

    target: int
    target_end: int
    golden: int
    golden_end: int

    @property
    def is_open(self) -> bool:
        """Whether both sides have something left."""
        return self.target < self.target_end and self.golden < self.golden_end


def align_levels(target: Sequence[Keys], golden: Sequence[Keys]) -> tuple[list[Pair], list[Gap]]:
    """Align by the strictest keys first, then what lies between by weaker ones.

    Parameters
    ----------
    target, golden
        Keys per level, strictest level first; the levels of one side have equal lengths.

    Returns
    -------
    list of (int, int)
        Aligned positions, increasing on both sides.
    list of Gap
        What is left between them, also where only one side has something.
    """
    pairs: list[Pair] = []
    gaps = [Gap(0, len(target[0]), 0, len(golden[0]))]
    for level_target, level_golden in zip(target, golden, strict=True):
        left: list[Gap] = []
        for gap in gaps:
            if gap.is_open:
                found = sorted(align_gap(level_target, level_golden, gap))
                pairs += found
                left += gaps_between(gap, found)
            else:
                left.append(gap)
        gaps = left
    pairs.sort()
    return pairs, gaps


def gaps_between(gap: Gap, pairs: Sequence[Pair]) -> Iterator[Gap]:
    """Yield what is left of a gap around pairs in it; empty ranges on both sides are left out."""
    target, golden = gap.target, gap.golden
    for t, g in [*pairs, (gap.target_end, gap.golden_end)]:
        if t > target or g > golden:
            yield Gap(target, t, golden, g)
        target, golden = t + 1, g + 1


def align_gap(target: Keys, golden: Keys, gap: Gap) -> list[Pair]:
    """Align one gap by one kind of key. The pairs come in any order."""
    pairs: list[Pair] = []
    todo = [gap]
    while todo:
        inner = _cut_ends(target, golden, todo.pop(), pairs)
        if not inner.is_open:
            continue
        anchors = _anchors(target, golden, inner)
        if anchors:
            pairs += anchors
            todo += [rest for rest in gaps_between(inner, anchors) if rest.is_open]
        else:
            pairs += _myers(target, golden, inner)
    return pairs


def _cut_ends(target: Keys, golden: Keys, gap: Gap, pairs: list[Pair]) -> Gap:
    """Pair equal beginnings and ends; return what lies between."""
    t, t_end, g, g_end = gap.target, gap.target_end, gap.golden, gap.golden_end
    while t < t_end and g < g_end and target[t] == golden[g]:
        pairs.append((t, g))
        t, g = t + 1, g + 1
    while t < t_end and g < g_end and target[t_end - 1] == golden[g_end - 1]:
        t_end, g_end = t_end - 1, g_end - 1
        pairs.append((t_end, g_end))
    return Gap(t, t_end, g, g_end)


def _anchors(target: Keys, golden: Keys, gap: Gap) -> list[Pair]:
    """Return the longest increasing run of pairs whose key occurs once on each side."""
    places = _unique(golden, gap.golden, gap.golden_end)
    once = _unique(target, gap.target, gap.target_end)
    return longest_increasing([(t, places[key]) for key, t in once.items() if key in places])


def _unique(keys: Keys, begin: int, end: int) -> dict[int, int]:
    counts = Counter(keys[begin:end])
    return {keys[place]: place for place in range(begin, end) if counts[keys[place]] == 1}


def longest_increasing(pairs: Sequence[Pair]) -> list[Pair]:
    """Return a longest subsequence of pairs, sorted by the first, that increases in the second, too."""
    ordered = sorted(pairs)
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (_, value) in enumerate(ordered):
        place = bisect_left(tails, value)
        if place == len(tails):
            tails.append(value)
            ends.append(number)
        else:
            tails[place], ends[place] = value, number
        before.append(ends[place - 1] if place else -1)
    chain: list[Pair] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        chain.append(ordered[number])
        number = before[number]
    return chain[::-1]


def _myers(target: Keys, golden: Keys, gap: Gap) -> list[Pair]:
    """Return a longest common subsequence; empty if there are more than `MOST_DIFFERENCES`."""
    a, b = target[gap.target : gap.target_end], golden[gap.golden : gap.golden_end]
    n, m = len(a), len(b)
    reach = {1: 0}
    history: list[dict[int, int]] = []
    for steps in range(min(n + m, MOST_DIFFERENCES) + 1):
        history.append(reach.copy())
        for k in range(-steps, steps + 1, 2):
            if k < -m or k > n:
                continue
            down = k == -steps or (k != steps and reach.get(k - 1, -1) < reach.get(k + 1, -1))
            x = reach.get(k + 1, 0) if down else reach.get(k - 1, -1) + 1
            y = x - k
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            reach[k] = x
            if x >= n and y >= m:
                return [(gap.target + i, gap.golden + j) for i, j in _walk_back(history, n, m)]
    return []


def _walk_back(history: Sequence[dict[int, int]], x: int, y: int) -> Iterator[Pair]:
    """Yield the pairs on the way that `_myers` has found, from the end."""
    for steps in range(len(history) - 1, -1, -1):
        reach, k = history[steps], x - y
        down = k == -steps or (k != steps and reach.get(k - 1, -1) < reach.get(k + 1, -1))
        previous = k + 1 if down else k - 1
        start_x = reach.get(previous, 0) if steps else 0
        start_y = start_x - previous if steps else 0
        while x > start_x and y > start_y:
            x, y = x - 1, y - 1
            yield x, y
        x, y = start_x, start_y
