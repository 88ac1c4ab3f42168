"""Files that somebody damaged, or made to do damage: every reader gives an answer or one clear error, and soon."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msprobe.core.config_load import load_config
from msprobe.core.errors import ConfigError
from msprobe.store import DumpReadError, iter_records, read_dump, recover, safe_file_name

EXAMPLES = int(os.environ.get("MSPROBE_FUZZ_EXAMPLES", "60"))
"""`make fuzz` sets more."""
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
DEEP = b"[" * 100_000
WHOLE = b'{"task":"statistics","level":"L1","framework":"pytorch","data":{\n"a":{"output":[1]},\n"b":{}\n}}\n'
READERS: tuple[Callable[[Path], object], ...] = (read_dump, lambda path: list(iter_records(path)), recover)


def write(folder: Path, **files: bytes) -> Path:
    """Write ``dump_json`` and so on into a rank folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


def read_all(folder: Path) -> None:
    """Let every reader try; only its own error may come out."""
    for reader in READERS:
        try:
            reader(folder)
        except DumpReadError as error:  # noqa: PERF203 - each has its own
            assert str(folder) in str(error)  # noqa: PT017 - not raised by every input


@pytest.mark.parametrize(
    "dump",
    [
        b"",
        b"\0" * 4096,
        b"[1]",
        b"null",
        b'{"data":' + DEEP,
        b'{"data":{"a":' + DEEP + b"]" * 100_000 + b"}}",
        b'{"task":"x","data":{\n"a":' + DEEP + b"]" * 100_000 + b',\n"b":{}\n}}\n',
        b'{"task":"x","data":{\n"a":' + b"1" * 100_000 + b"\n}}\n",
        b'{"task":"x","data":{\n"a":"\xff\xfe"\n}}\n',
        b'{"task":[],"level":{},"data":[]}',
    ],
    ids=["empty", "zeros", "list", "null", "deep", "deep whole", "deep line", "digits", "no utf-8", "types"],
)
def test_a_hostile_dump_gives_an_answer_or_a_clear_error(tmp_path: Path, dump: bytes) -> None:
    read_all(write(tmp_path / "rank0", dump_json=dump))


@pytest.mark.parametrize("text", [DEEP, b"[1,2", b"3", b'{"0":[[["x"]],["f"]],"1":[[{"a":1}],3],"2":5}', b"null\n[]\n"])
@pytest.mark.parametrize("name", ["stack.json", "construct.json", "coverage.json", "stack.json.part"])
def test_hostile_files_beside_a_dump_do_not_hide_its_records(tmp_path: Path, name: str, text: bytes) -> None:
    folder = write(tmp_path / "rank0", dump_json=WHOLE)
    (folder / name).write_bytes(text)
    assert list(read_dump(folder).data) == ["a", "b"]
    read_all(folder)
    assert list(json.loads((folder / "dump.json").read_bytes())["data"]) == ["a", "b"]


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"3",
        b'{"names":5}',
        b'{"stack":[],"frames":1}',
        b'{"stack":{},"names":["b"]}',
        b'{"stack":0,"names":[[]]}',
    ],
)
def test_a_damaged_line_of_the_stack_journal_costs_only_itself(tmp_path: Path, line: bytes) -> None:
    journal = b'{"stack":0,"frames":["f"]}\n' + line + b'\n{"stack":0,"names":["a"]}\n'
    folder = write(tmp_path / "rank0", dump_json=WHOLE)
    (folder / "stack.json.part").write_bytes(journal)
    assert read_dump(folder).stacks == {"a": ["f"]}


@pytest.mark.parametrize(
    "coverage",
    [
        b'{"complete":true,"records":"abc"}',
        b'{"complete":false,"writer":{"pid":-1,"host":3}}',
        json.dumps({"complete": False, "writer": {"pid": 10**30, "host": os.uname().nodename}}).encode(),
    ],
)
def test_recover_takes_no_word_of_a_hostile_coverage_file(tmp_path: Path, coverage: bytes) -> None:
    folder = write(tmp_path / "rank0", dump_json=WHOLE[:-20], coverage_json=coverage)
    assert {report.state for report in recover(folder).folders} <= {"fine", "repaired"}


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    folder = write(tmp_path / "rank0", dump_json=WHOLE[:-20])
    for name in ("coverage.json", "stack.json", "construct.json", "stack.json.part"):
        os.mkfifo(folder / name)
    read_all(folder)
    (folder / "dump.json").unlink()
    os.mkfifo(folder / "dump.json")
    read_all(folder)


@pytest.mark.parametrize("name", ["dump.json.tmp", "stack.json.tmp"])
def test_recover_does_not_write_through_a_link(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = write(tmp_path / "rank0", dump_json=WHOLE[:-8])
    (folder / "stack.json.part").write_bytes(b'{"stack":0,"frames":["f"]}\n{"stack":0,"names":["a"]}\n')
    (folder / name).symlink_to(victim)
    recover(folder)
    assert victim.read_text() == "precious"
    assert list(json.loads((folder / "dump.json").read_bytes())["data"])
    assert (folder / "dump.json").stat().st_mode & 0o777 == 0o640


def test_recover_does_not_follow_a_linked_dump(tmp_path: Path) -> None:
    victim = write(tmp_path / "victim", dump_json=WHOLE[:-8])
    before = (victim / "dump.json").read_bytes()
    run = tmp_path / "run"
    (run / "step0").mkdir(parents=True)
    (run / "step0" / "rank0").symlink_to(victim)
    write(run / "step1" / "rank0", dump_json=WHOLE)
    recover(run)
    assert (victim / "dump.json").read_bytes() == before


def test_a_dump_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "rank0", dump_json=WHOLE)
    with (folder / "dump.json").open("ab") as file:
        try:
            file.truncate(1 << 43)
        except OSError:
            file.truncate(1 << 40)
    with pytest.raises(DumpReadError, match="MiB of memory are free"):
        read_dump(folder)


@given(st.data())
@FUZZ
def test_cut_and_flipped_files_never_break_a_reader(tmp_path: Path, data: st.DataObject) -> None:
    folder = write(
        tmp_path / "rank0",
        dump_json=WHOLE,
        construct_json=b'{\n"a":null,\n"b":"a"\n}\n',
        stack_json=b'{\n"0":[["a","b"],["f"]]\n}\n',
        coverage_json=b'{"complete":false,"records":2}\n',
    )
    for file in sorted(folder.glob("*.json")):
        text = bytearray(file.read_bytes())
        for place in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=4), label=file.name):
            text[place] = data.draw(st.integers(0, 255))
        file.write_bytes(text[: data.draw(st.integers(0, len(text)) | st.just(len(text)))])
    read_all(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    "task dump_path rank step level async_dump dump_enable extra_info precision risk_level statistics tensor nan_check "
    "acc_check structure overflow_check exception_dump".split()
)
SECTION = st.dictionaries(
    st.sampled_from(
        "scope list tensor_list data_mode summary_mode bench_path diff_nums white_list check_mode x".split()
    ),
    JSON,
    max_size=4,
)


@given(st.dictionaries(KEYS, JSON | SECTION, max_size=6))
@FUZZ
def test_a_configuration_of_any_values_is_taken_or_refused(tmp_path: Path, content: dict[str, object]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(content), encoding="utf-8", errors="surrogatepass")
    try:
        load_config(file)
    except ConfigError as error:
        assert str(file) in str(error)  # noqa: PT017 - not raised by every input


@given(st.text() | st.text(st.sampled_from('/\\.\0~%:\n "x层'), max_size=400) | st.just("x" * 10_000))
@FUZZ
def test_any_name_is_one_path_component(name: str) -> None:
    made = safe_file_name(name)
    assert 0 < len(made.encode()) <= 240
    assert "/" not in made
    assert "\0" not in made
    assert made not in {".", ".."}


BASE = b'{"dump_path":"x",'


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (b'{"dump_path":' + DEEP, True),
        (BASE + b'"statistics":{"scope":' + b"[" * 900 + b"]" * 900 + b"}}", True),
        (BASE + b'"step":[NaN],"rank":[Infinity,1e400]}', True),
        (BASE + b'"step":[' + b"1" * 100_000 + b"]}", True),
        (BASE + b",".join(b'"k%d":1' % number for number in range(20_000)) + b',"k1":2}', False),
        (BASE + b'"step":[' + b",".join([b'"x"'] * 50_000) + b"]}", True),
        (BASE + b'"task":"' + b"x" * 5_000_000 + b'"}', True),
        (b'{"dump_path":"\\ud800"}', True),
        (b'{"dump_path":null,"task":null,"level":[],"statistics":null,"tensor":3,"step":{},"rank":"all"}', True),
    ],
    ids=["deep", "deep key", "nan", "digits", "unknown keys", "wrong items", "too long", "surrogate", "types"],
)
def test_a_hostile_configuration_gets_a_short_message_soon(tmp_path: Path, text: bytes, refused: bool) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text)
    begin = time.process_time()
    try:
        config = load_config(file)
        assert not refused
        assert sum(map(len, config.warnings)) < 10_000
    except ConfigError as error:
        assert refused
        assert len(str(error)) < 10_000  # noqa: PT017 - not raised by every input
    assert time.process_time() - begin < 10


def test_an_endless_file_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="at most 4 MiB"):
        load_config("/dev/zero")
