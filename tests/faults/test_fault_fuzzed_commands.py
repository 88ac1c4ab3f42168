"""Dumps and tensor files with anything in them: commands answer, or refuse with one message, and never with a trace."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from msprobe.cli import app
from msprobe.core.names import parse_name
from msprobe.store.tensor_reader import TensorReadError, read_tensor

EXAMPLES = int(os.environ.get("MSPROBE_FUZZ_EXAMPLES", "60"))
"""`make fuzz` sets more."""
CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
SAME = "MSPROBE_FUZZ_EXAMPLES" not in os.environ
"""Whether `make test` runs them: the same examples every time."""
QUICK = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS, derandomize=SAME)
SLOW = settings(  # without looking for the smallest example, which takes minutes
    QUICK, max_examples=max(EXAMPLES // 20, 12), phases=[Phase.generate]
)


def tensor(low: float, high: float) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 2],
        "Max": high,
        "Min": low,
        "Mean": (low + high) / 2,
        "Norm": 2.0,
        "requires_grad": True,
    }


DUMP: dict[str, Any] = {
    "task": "statistics",
    "level": "mix",
    "framework": "pytorch",
    "dump_data_dir": None,
    "data": {
        "Module.a.Linear.forward.0": {
            "input_args": [tensor(0, 1)],
            "input_kwargs": {"scale": {"type": "float", "value": 2.0}},
            "output": [tensor(0, float("inf"))],
            "parameters": {"weight": tensor(-1, 1)},
        },
        "Functional.linear.0.forward": {
            "input_args": [tensor(0, 1), [tensor(0, 1), None]],
            "input_kwargs": {},
            "output": [tensor(0, float("nan"))],
        },
        "Functional.linear.0.backward": {"input": [tensor(0, 1)], "output": [tensor(0, 1), None]},
        "Module.a.Linear.backward.0": {"input": [tensor(0, 1)], "output": [tensor(0, 1)]},
        "Module.a.Linear.parameters_grad.0": {"weight": [tensor(0, 1)]},
    },
}
CONSTRUCT = {
    "Module.a.Linear.forward.0": None,
    "Functional.linear.0.forward": "Module.a.Linear.forward.0",
    "Functional.linear.0.backward": "Module.a.Linear.backward.0",
    "Module.a.Linear.backward.0": None,
}
STACK = {"0": [["Module.a.Linear.forward.0", "Functional.linear.0.forward"], ["File a.py, line 1, in f"]]}
COVERAGE = {"complete": True, "records": 5, "not_recorded": {"filtered": 3}, "null_statistics": {}, "failures": []}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a document, the document itself included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, part in inner for place in places(part, (*path, key))]


def changed(document: Any, data: st.DataObject) -> Any:
    """Put anything in some places of a document, take keys away, or give them other names."""
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(0, 3))):
        *way, last = data.draw(st.sampled_from(places(document)[1:] or [(None,)]))
        holder = document
        for key in way:
            holder = holder[key]
        if last is None:
            return data.draw(JSON)
        action = data.draw(st.sampled_from(["put", "put", "take", "name"]))
        if action == "put":
            holder[last] = data.draw(JSON)
        else:
            part = holder.pop(last)
            if action == "name" and isinstance(holder, dict):
                holder[data.draw(st.text(max_size=12))] = part
    return document


def write_dump(folder: Path, data: st.DataObject) -> Path:
    """Write a rank folder in which anything may be changed."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"dump": DUMP, "construct": CONSTRUCT, "stack": STACK, "coverage": COVERAGE}
    for name, document in documents.items():
        text = json.dumps(changed(document, data))
        (folder / f"{name}.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    return folder


def run(*words: object) -> None:
    result = CliRunner().invoke(app, [str(word) for word in words])
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        raise error
    assert result.exit_code in {0, 1, 2}, result.output
    assert result.exit_code != 2 or result.output.strip()


@pytest.mark.parametrize("command", ["compare", "overflow_check", "report", "parse", "recover"])
@given(st.data())
@SLOW
def test_a_command_answers_or_refuses_whatever_is_in_a_dump(tmp_path: Path, command: str, data: st.DataObject) -> None:
    rank = write_dump(tmp_path / "run" / "step0" / "rank0", data)
    out = tmp_path / "out"
    words: dict[str, list[object]] = {
        "overflow_check": ["-i", rank, "-o", out],
        "report": [tmp_path / "run", "-o", out],
        "parse": [rank],
        "recover": [rank],
    }
    if command == "compare":
        golden = write_dump(tmp_path / "golden" / "step0" / "rank0", data)
        run("compare", "-tp", rank, "-gp", golden, "-o", out, "--html")
    else:
        run(command, *words[command])


def saved(dtype: torch.dtype) -> bytes:
    stream = io.BytesIO()
    torch.save(torch.arange(6).reshape(2, 3).to(dtype).t(), stream)
    return stream.getvalue()


FILES = [saved(dtype) for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.float8_e4m3fn)]


@given(st.sampled_from(FILES), st.data())
@QUICK
def test_a_damaged_tensor_file_is_read_or_refused(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    file = tmp_path / "a.pt"
    text = bytearray(content)
    for place in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=4)):
        text[place] = data.draw(st.integers(0, 255))
    file.write_bytes(text[: data.draw(st.just(len(text)) | st.integers(0, len(text)))])
    try:
        read_tensor(file)
    except TensorReadError as error:
        assert str(file) in str(error)  # noqa: PT017 - not raised by every input


@given(st.binary(max_size=300))
@QUICK
def test_any_bytes_are_a_tensor_file_or_none(tmp_path: Path, content: bytes) -> None:
    for name in ("a.pt", "a.npy"):
        (tmp_path / name).write_bytes(b"\x93NUMPY" + content if name.endswith("npy") else content)
        with pytest.raises(TensorReadError):
            read_tensor(tmp_path / name)


WORDS = st.sampled_from(
    "Module Torch Functional a 0 -1 forward backward Linear #recompute # . \0 parameters_grad".split()
)


@given(st.text() | st.lists(WORDS).map(".".join))
@QUICK
def test_any_text_is_a_name_or_not(text: str) -> None:
    name = parse_name(text)
    if name is not None:
        assert str(name) == text
