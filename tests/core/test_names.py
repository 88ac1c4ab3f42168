"""The name grammar: what is written can be read back, and counters restart with the step."""

from hypothesis import given
from hypothesis import strategies as st

from msprobe.core import names
from msprobe.core.names import CallName, Counters, RecordName, parse_name

SEGMENT = st.text(st.characters(whitelist_categories=("L", "N"), whitelist_characters="_"), min_size=1, max_size=8)
PATH = st.lists(SEGMENT, min_size=1, max_size=4).map(".".join)


@given(
    SEGMENT.filter(lambda s: s not in ("Module", "Cell")),
    PATH,
    st.integers(0, 10**6),
    st.sampled_from(["forward", "backward"]),
)
def test_api_name_round_trips(prefix, path, index, direction):
    name = RecordName(prefix, path, "", direction, index)
    assert parse_name(str(name)) == name


@given(PATH, SEGMENT, st.integers(0, 10**6), st.sampled_from(["forward", "backward", "parameters_grad"]))
def test_module_name_round_trips(path, cls, index, direction):
    name = RecordName("Module", path, cls, direction, index)
    assert parse_name(str(name)) == name


def test_known_names_parse_to_their_parts():
    assert parse_name("Torch.linalg.norm.3.backward") == RecordName("Torch", "linalg.norm", "", "backward", 3)
    assert parse_name("Module.0.layers.1.mlp.MLP.forward.2") == RecordName(
        "Module", "0.layers.1.mlp", "MLP", "forward", 2
    )
    assert parse_name("Functional.relu.0.forward#recompute") == RecordName(
        "Functional", "relu", "", "forward", 0, "recompute"
    )
    assert parse_name("Functional.relu.0.backward#2").tag == "2"
    assert parse_name("Tensor.__add__.0.forward").path == "__add__"


def test_text_outside_the_grammar_is_not_a_name():
    for text in (
        "relu",
        "Functional.relu",
        "Functional.relu.x.forward",
        "Module.fc.Linear.forward",
        "",
        "Functional.relu.0.sideways",
    ):
        assert parse_name(text) is None


def test_call_name_formats_both_orders_and_tags():
    assert CallName("Functional.linear", 2).forward == "Functional.linear.2.forward"
    assert CallName("Module.fc.Linear", 2, module=True).forward == "Module.fc.Linear.forward.2"
    assert (
        CallName("Module.fc.Linear", 0, module=True, tag="recompute").forward == "Module.fc.Linear.forward.0#recompute"
    )
    assert CallName("Functional.linear", 2).backward() == "Functional.linear.2.backward"
    assert CallName("Functional.linear", 2).backward(2) == "Functional.linear.2.backward#2"


def test_counters_count_per_name_and_restart():
    counters = Counters()
    assert [counters.take("a"), counters.take("a"), counters.take("b")] == [0, 1, 0]
    counters.reset()
    assert counters.take("a") == 0


PIECES = st.sampled_from(
    ["Module", "Cell", "Functional", "Tensor", "forward", "backward", "parameters_grad", "0", "12"]
)
ODD = st.sampled_from(["", ".", "..", "#", "#2", "a", "layers.3", "Linear", "\n", "\u0663", "\u00b2", "#x.0.forward"])


@given(
    st.lists(st.one_of(PIECES, ODD), max_size=8).map(".".join)
    | st.text("MoCedul.#0123forwabckpmts_", max_size=40)
    | st.from_regex(r"(Module|Cell|Torch)(\.[a-c#]*){0,3}\.[0-9]{1,2}\.(forward|backward)(#1)?", fullmatch=True)
    | st.from_regex(r"(Module|Cell|Torch)(\.[a-c]*){0,3}\.(forward|parameters_grad)\.[0-9]{1,2}(#1)?", fullmatch=True)
)
def test_names_that_are_taken_apart_quickly_are_those_of_the_grammar(text):
    assert parse_name(text) == names._by_grammar(text)
