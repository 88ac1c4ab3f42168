"""Which forward calls ``token_range`` selects, and what it refuses."""

import pytest

from msprobe.core.errors import LifecycleError
from msprobe.core.token_window import TokenWindow


@pytest.mark.parametrize(
    ("wanted", "recorded"), [([0, 0], [0]), ([1, 3], [1, 2, 3]), ((4, 9), [4, 5, 6]), ([7, 8], []), ([0, 99], range(7))]
)
def test_both_ends_are_included(wanted, recorded):
    window = TokenWindow.from_argument(wanted)
    assert [number for number in range(7) if window.enter()] == list(recorded)
    assert window.calls == 7


@pytest.mark.parametrize(
    "wrong", [[], [1], [1, 2, 3], [2, 1], [-1, 2], [0, 1.0], [True, 2], "01", 3, {0: 1}, [None, 1], range(2)]
)
def test_anything_but_two_ordered_numbers_is_refused_with_the_value(wrong):
    with pytest.raises(LifecycleError) as caught:
        TokenWindow.from_argument(wrong)
    assert str(caught.value) == (
        "start(token_range=[first, last]): expected two integers with 0 <= first <= last, the first and the last "
        f"recorded forward call of the model, not {wrong!r}"
    )


def test_no_range_is_no_window():
    assert TokenWindow.from_argument(None) is None
