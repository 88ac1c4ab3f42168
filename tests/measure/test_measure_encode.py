"""The value encoder: the encodings of every kind of value, and that nothing makes it raise."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import types
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.measure.encode import DEPTH_LIMIT, ValueEncoder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def encode(value: object, **options: Any) -> Any:
    """Encode and send through JSON, as a reader would see it."""
    return json.loads(orjson.dumps(ValueEncoder(**options).encode(value)))


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Output:
    logits: Any
    loss: Any = None


class Colour(enum.Enum):
    RED = 1


class Mode(str, enum.Enum):
    FAST = "fast"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, {"type": "bool", "value": True}),
        (3, {"type": "int", "value": 3}),
        (-1.5, {"type": "float", "value": -1.5}),
        ("mean", {"type": "str", "value": "mean"}),
        (1 + 2j, {"type": "complex", "value": "(1+2j)"}),
        (2**64, {"type": "int", "value": 2**64}),
        (-(10**30), {"type": "int", "value": -(10**30)}),
        (..., {"type": "ellipsis", "value": "..."}),
        (slice(1, None, 2), {"type": "slice", "value": [1, None, 2]}),
        (torch.float16, {"type": "torch.dtype", "value": "torch.float16"}),
        (torch.device("cpu"), {"type": "torch.device", "value": "cpu:None"}),
        (torch.device("cuda", 1), {"type": "torch.device", "value": "cuda:1"}),
        (torch.Size([3, 2]), {"type": "torch.Size", "value": [3, 2]}),
        (torch.channels_last, {"type": "torch.memory_format", "format": "channels_last"}),
        (np.float32(2.0), {"type": "float32", "value": 2.0}),
        (np.bool_(True), {"type": "bool", "value": True}),
        (np.int64(-7), {"type": "int64", "value": -7}),
        (np.str_("a"), {"type": "str", "value": "a"}),
        ([1, (2.0,)], [{"type": "int", "value": 1}, [{"type": "float", "value": 2.0}]]),
        ({"a": 1, 2: "b"}, {"a": {"type": "int", "value": 1}, "2": {"type": "str", "value": "b"}}),
        (Point(1, None), {"x": {"type": "int", "value": 1}, "y": None}),
        (Output(1), {"logits": {"type": "int", "value": 1}, "loss": None}),
        (Mode.FAST, {"type": "str", "value": "fast"}),
        (Level.HIGH, {"type": "int", "value": 3}),
        (Colour.RED, {"type": "enum", "value": "Colour.RED"}),
        (object(), None),
        ({1, 2}, None),
        (len, None),
    ],
    ids=str,
)
def test_each_kind_of_value_has_its_encoding(value: object, expected: object) -> None:
    assert encode(value) == expected


def test_a_tensor_entry_has_its_keys_in_the_order_of_existing_dumps() -> None:
    encoder = ValueEncoder(summary_mode="md5", write_tensor=lambda name, save: name)
    entry = encoder.encode(torch.tensor([1.0, math.inf]), "X.input.0")
    assert list(entry) == [
        "type",
        "dtype",
        "shape",
        "Max",
        "Min",
        "Mean",
        "Norm",
        "requires_grad",
        "data_name",
        "md5",
        "Inf",
    ]
    assert entry["data_name"] == "X.input.0.pt"
    for mode in ("xor", "hash"):
        entry = encode(torch.ones(3, requires_grad=True), summary_mode=mode)
        assert list(entry) == ["type", "dtype", "shape", "md5", "requires_grad"]
        assert entry["requires_grad"] is True


def test_structure_writes_no_statistics() -> None:
    entry = encode(torch.ones(2, 3), task="structure")
    assert entry == {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "requires_grad": False}


@pytest.mark.parametrize("mode", ["statistics", "md5", "xor", "hash"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool, torch.complex64], ids=str)
def test_parameters_buffers_and_plain_tensors_have_the_same_entry(mode: str, dtype: torch.dtype) -> None:
    tensor = torch.ones(4, 2).to(dtype)
    parameter = torch.nn.Parameter(tensor, requires_grad=False)
    buffer = torch.nn.Buffer(tensor)
    assert (
        encode(tensor, summary_mode=mode) == encode(parameter, summary_mode=mode) == encode(buffer, summary_mode=mode)
    )


def test_entries_of_fast_and_general_path_agree() -> None:
    tensors = [
        torch.randn(5, 7),
        torch.randn(5, 7).t(),
        torch.randn(5, 7)[:, ::2].bfloat16(),
        torch.zeros(3),
        torch.tensor(-2.5),
        torch.arange(9),
        torch.tensor([True, False]),
        torch.zeros(4, dtype=torch.bool),
        torch.tensor([math.nan, 1.0]),
        torch.tensor([1e300, 1e200], dtype=torch.float64),
        torch.randn(3, dtype=torch.complex64),
        torch.full((9,), 60000.0, dtype=torch.float16),
        torch.tensor([-0.0, 1e-5, 1e22, 123456789.0], dtype=torch.float64),
        torch.tensor([2**64 - 1, 3], dtype=torch.uint64),
        torch.tensor([-(2**63), 2**53 + 1]),
        torch.randn(6).to(torch.float8_e4m3fn),
        torch.randn(9, requires_grad=True) * 2,
        torch.ones(2, 3, 4, 5).permute(3, 1, 0, 2),
    ]
    for precision in ("low", "high"):
        for mode in ("statistics", "md5", "xor", "hash"):
            encoder = ValueEncoder(precision=precision, summary_mode=mode)
            for tensor in tensors:
                fast = json.loads(orjson.dumps(encoder.encode(tensor)))
                python = json.loads(orjson.dumps(encoder._tensors.encode(tensor, None)))
                general = json.loads(orjson.dumps(encoder._tensors.encode_any(tensor, None)))
                for entry in (fast, python):  # sums may be taken in another order, the rest is the same to the bit
                    for key in ("Mean", "Norm") if "Mean" in entry else ():
                        assert entry[key] == pytest.approx(general[key], rel=1e-12, nan_ok=True)
                        entry[key] = general[key]
                assert repr(fast) == repr(python) == repr(general)  # repr: order of keys, -0.0 and NaN count


def test_non_finite_numbers_are_bare_tokens_not_null() -> None:
    values = [math.nan, math.inf, -math.inf, np.float64("nan"), {"a": math.inf}, torch.tensor([-math.inf])]
    text = orjson.dumps(ValueEncoder().encode(values)).decode()
    assert "null" not in text
    assert text.count("NaN") == 2
    assert text.count("-Infinity") == 4
    found = encode(torch.tensor([math.nan, 1.0]))
    assert math.isnan(found["Max"])
    assert found["NaN"] == 1


def test_device_and_dtype_keywords_are_recognised_when_given_as_text_or_type() -> None:
    found = ValueEncoder().encode_mapping({"device": "cuda", "dtype": float, "other": "cuda"})
    assert found == {
        "device": {"type": "torch.device", "value": "cuda"},
        "dtype": {"type": "torch.dtype", "value": "<class 'float'>"},
        "other": {"type": "str", "value": "cuda"},
    }
    assert ValueEncoder().encode_mapping({"device": None, "dtype": torch.int8})["device"] is None


def test_paths_follow_indices_keys_and_fields() -> None:
    written = []
    encoder = ValueEncoder(task="tensor", write_tensor=lambda name, save: written.append(name) or name)
    one = torch.ones(1)
    encoder.encode_sequence((one, [one, {"k": one}], 3, Point(one, one)), "F.f.0.forward.input")
    encoder.encode_mapping({"mask": one, "cfg": Output(one)}, "F.f.0.forward.kwargs")
    assert written == [
        "F.f.0.forward.input.0.pt",
        "F.f.0.forward.input.1.0.pt",
        "F.f.0.forward.input.1.1.k.pt",
        "F.f.0.forward.input.3.x.pt",
        "F.f.0.forward.input.3.y.pt",
        "F.f.0.forward.kwargs.mask.pt",
        "F.f.0.forward.kwargs.cfg.logits.pt",
    ]


@pytest.mark.parametrize("value", [torch.empty(0), torch.ones(2, device="meta")], ids=["empty", "meta"])
def test_tensors_without_data_get_no_file(value: torch.Tensor) -> None:
    entry = ValueEncoder(write_tensor=lambda name, save: name).encode(value, "X")
    assert "data_name" not in entry


def test_a_failing_writer_costs_the_file_but_not_the_entry() -> None:
    def write(name: str, save: object) -> str:
        raise OSError(28, "No space left on device")

    encoder = ValueEncoder(write_tensor=write)
    entry = encoder.encode(torch.ones(2), "X")
    assert entry["Max"] == 1.0
    assert "data_name" not in entry
    assert encoder.null_reasons["tensor file not written: OSError"] == 1
    assert "data_name" not in ValueEncoder(write_tensor=lambda name, save: None).encode(torch.ones(2), "X")


def test_keys_that_become_the_same_text_are_kept_apart() -> None:
    assert list(encode({1: 1, "1": 2})) == ["1", "1#1"]


def test_containers_that_hold_themselves_are_cut() -> None:
    loop: list = [1]
    loop.append(loop)
    assert encode(loop) == [{"type": "int", "value": 1}, {"type": "cycle"}]
    table: dict = {}
    table["self"] = [table]
    assert encode(table) == {"self": [{"type": "cycle"}]}
    shared = [1]
    assert encode([shared, shared]) == [[{"type": "int", "value": 1}]] * 2


def test_nesting_without_end_is_cut_at_the_limit() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    text = orjson.dumps(ValueEncoder().encode(value)).decode()
    assert text.count("[") == DEPTH_LIMIT
    assert "nested deeper than 64" in text


def test_long_and_odd_strings_stay_readable() -> None:
    found = encode("x" * 5000)["value"]
    assert found == "x" * 1000 + "... (5000 characters)"
    assert encode("\udc80 \x00 \u4e2d")["value"] == "\\udc80 \x00 \u4e2d"
    assert list(encode({"\udc80": 1})) == ["\\udc80"]
    huge = encode(1 << 100_000)["value"]
    assert huge.startswith("0x1000")
    assert "100001 bits" in huge


def test_model_outputs_and_mappings_are_objects() -> None:
    from transformers.modeling_outputs import CausalLMOutput
    from transformers.tokenization_utils_base import BatchEncoding

    found = encode(CausalLMOutput(logits=torch.ones(2)))
    assert list(found) == ["loss", "logits", "hidden_states", "attentions"]
    assert found["loss"] is None
    assert found["logits"]["Max"] == 1.0
    assert encode(BatchEncoding({"ids": torch.ones(2)}))["ids"]["Max"] == 1.0
    assert list(encode(collections.OrderedDict(a=1))) == ["a"]
    assert list(encode(types.MappingProxyType({"a": 1}))) == ["a"]


def test_a_transformers_cache_costs_nothing_and_is_counted() -> None:
    from transformers import DynamicCache

    encoder = ValueEncoder()
    assert encoder.encode(DynamicCache()) is None
    assert any("DynamicCache" in reason for reason in encoder.null_reasons)


def test_named_results_of_torch_are_lists() -> None:
    found = encode(torch.max(torch.tensor([[1.0, 2.0]]), dim=1))
    assert [entry["Max"] for entry in found] == [2.0, 1]


def test_packed_sequences_keep_their_fields() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert list(encode(packed)) == ["data", "batch_sizes", "sorted_indices", "unsorted_indices"]


def test_arrays_are_measured() -> None:
    assert encode(np.arange(5, dtype=np.uint8)) == {
        "type": "numpy.ndarray",
        "dtype": "uint8",
        "shape": [5],
        "Max": 4,
        "Min": 0,
        "Mean": 2.0,
        "Norm": pytest.approx(math.sqrt(30)),
    }
    assert encode(np.array(["a"]))["reason"]


@pytest.mark.parametrize("mode", ["md5", "xor", "hash"])
def test_arrays_have_the_checksum_of_the_equal_tensor(mode: str) -> None:
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    frozen = base.copy()
    frozen.flags.writeable = False
    for array in (base, base[::-1], base.T, base[:, ::3], base.astype(">f4"), frozen):
        tensor = torch.tensor(np.ascontiguousarray(array).astype(np.float32))
        assert encode(array, summary_mode=mode)["md5"] == encode(tensor, summary_mode=mode)["md5"]
    assert encode(np.array(["a"]), summary_mode=mode)["md5"] is None


class Hostile:
    """Raises from everything that looks at it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class HostileMapping(dict):
    def items(self) -> Any:
        raise KeyError("no items")


class HostileKey:
    def __str__(self) -> str:
        raise ValueError("no text")


class HostileTensor(torch.Tensor):
    @property
    def shape(self) -> Any:
        raise ValueError("no shape")


class HostileError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text either")


class HostileWrapper(torch.Tensor):
    @staticmethod
    def __new__(cls) -> HostileWrapper:
        return torch.Tensor._make_wrapper_subclass(cls, (2,))

    def __tensor_flatten__(self) -> Any:
        raise HostileError

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise HostileError


@dataclasses.dataclass
class HalfBuilt:
    a: Any
    b: Any


def odd_values() -> list[Any]:
    half = HalfBuilt(1, 2)
    del half.b
    return [
        Hostile(),
        HostileMapping(a=1),
        {HostileKey(): 1},
        torch.ones(2).as_subclass(HostileTensor),
        HostileWrapper(),
        half,
        HalfBuilt,
        type,
        print,
        lambda: None,
        (i for i in range(3)),
        iter([1]),
        range(5),
        collections.deque([1]),
        collections.Counter("ab"),
        collections.defaultdict(list, a=[1]),
        collections.UserDict(a=1),
        collections.ChainMap({"a": 1}),
        frozenset([1]),
        b"bytes",
        bytearray(3),
        memoryview(b"abc"),
        decimal.Decimal("1.5"),
        datetime.datetime(2020, 1, 1),
        NotImplemented,
        math,
        Exception("x"),
        torch.nn.Linear(2, 2),
        torch.Generator(),
        torch.strided,
        torch.finfo(torch.float32),
        torch.ones(2).untyped_storage(),
        torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1))]),
        torch.nn.parameter.UninitializedParameter(),
        torch.nn.parameter.UninitializedBuffer(),
        torch.optim.SGD([torch.ones(1)], lr=0.1),
        torch.empty(0),
        torch.empty(0, 3, 0),
        torch.ones(2, device="meta"),
        torch.tensor(math.nan),
        torch.ones(()).expand(300, 1000),
        torch.ones(3).to_sparse(),
        torch.empty(2, 0).to_sparse(),
        torch.ones(2, 2).to_sparse_csr(),
        torch.ones(2, 2).to_mkldnn(),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        torch.zeros(4, dtype=torch.uint8).view(torch.bits8),
        torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        torch._to_functional_tensor(torch.ones(2)),
        np.datetime64("2020-01-01"),
        np.array([None, object()], dtype=object),
        np.array("text"),
        np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        np.float16("inf"),
        np.complex64(1j),
        np.longdouble(1),
        np.void(b"ab"),
        np.dtype("float32"),
        10**5000,
        -(10**5000),
        float("-inf"),
        complex("nan"),
        "\ud800",
        slice(torch.tensor(1), torch.ones(2), object()),
    ]


@pytest.mark.parametrize("mode", ["statistics", "md5", "xor", "hash"])
def test_no_value_makes_the_encoder_raise(mode: str) -> None:
    values = odd_values()
    assert len(values) > 60
    encoder = ValueEncoder(summary_mode=mode, write_tensor=lambda name, save: name)
    for index, value in enumerate(values):
        found = encoder.encode(value, f"odd.{index}")
        json.loads(orjson.dumps(found))
    encoder.encode_sequence(values)
    encoder.encode_mapping(dict(enumerate(values)))
    failed = [reason for reason in encoder.null_reasons if "while reading" in reason]
    assert failed, "hostile values are counted"


def test_a_value_that_cannot_be_read_says_so_in_its_place() -> None:
    found = encode([1, HostileMapping(a=1), 2])
    assert found[1] == {"type": "HostileMapping", "reason": "KeyError while reading a HostileMapping"}
    assert [found[0]["value"], found[2]["value"]] == [1, 2]


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(json_like)
@settings(max_examples=200, deadline=None)
def test_any_nesting_of_plain_values_becomes_json(value: Any) -> None:
    json.loads(orjson.dumps(ValueEncoder().encode(value)))
