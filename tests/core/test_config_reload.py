"""A configuration file that is rewritten while it is followed."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msprobe.core.config_reload import ConfigWatch
from msprobe.core.errors import ConfigError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write config.json, with a time of change that is long ago unless told otherwise."""
    ages = iter(range(10_000, 0, -1))

    def call(text: str | None = None, *, aged: bool = True, **content: Any) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"dump_path": "out", **content}) if text is None else text)
        if aged:
            when = time.time() - next(ages)
            os.utime(path, (when, when))
        return path

    return call


def follow(path: Path, **keywords: Any) -> ConfigWatch:
    return ConfigWatch(path, "pytorch", keywords)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_file_is_read_only_if_its_time_size_or_inode_has_changed(write: Write) -> None:
    path = write(dump_enable=True, level="L0")
    stamp = path.stat()
    watch = follow(path)
    path.write_text(path.read_text().replace("L0", "L1"))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert watch.poll() is None
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    found = watch.poll()
    assert found is not None
    assert found.level == "L1"


def test_every_change_is_seen_once_also_by_replacement(write: Write, tmp_path: Path) -> None:
    path = write(dump_enable=False)
    watch = follow(path)
    write(dump_enable=True, level="mix")
    found = watch.poll()
    assert found is not None
    assert (found.dump_enable, found.level) == (True, "mix")
    assert watch.poll() is None
    stamp = path.stat()
    new = tmp_path / "new.json"
    new.write_text(path.read_text().replace("mix", "L0") + " ")
    assert new.stat().st_size == stamp.st_size
    os.utime(new, ns=(stamp.st_mtime_ns, stamp.st_mtime_ns))
    new.replace(path)  # same size and time of change, another inode
    found = watch.poll()
    assert found is not None
    assert found.level == "L0"


def test_a_second_write_within_one_tick_of_the_clock_is_seen(write: Write) -> None:
    path = write(dump_enable=True, level="L0", aged=False)
    watch = follow(path)
    stamp = path.stat().st_mtime_ns
    write(dump_enable=True, level="L1", aged=False)  # as long as before
    os.utime(path, ns=(stamp, stamp))
    found = watch.poll()
    assert found is not None
    assert found.level == "L1"


BROKEN = {
    "half written": '{"dump_path": "out", "lev',
    "empty": "",
    "refused value": '{"dump_path": "out", "level": "L7"}',
    "no dump_path": "{}",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_once_and_the_last_good_state_stays(
    write: Write, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    watch = follow(write(dump_enable=True, level="L0"))
    path = write(text)
    assert [watch.poll() for _ in range(3)] == [None] * 3
    (warning,) = warnings_of(caplog)
    assert warning.startswith("msprobe: the changed configuration cannot be used, the last good one stays. config")
    assert watch.config.level == "L0"
    write(dump_enable=True, level="mix")
    found = watch.poll()
    assert found is not None
    assert found.level == "mix"
    write(text)
    assert watch.poll() is None
    assert len(warnings_of(caplog)) == 2  # broken again: a new problem
    assert str(path) in warnings_of(caplog)[1] or text.startswith("{")


def test_a_broken_file_that_was_written_just_now_is_named_once(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    watch = follow(write(dump_enable=True))
    for text in BROKEN.values():
        caplog.clear()
        write(text, aged=False)
        assert [watch.poll() for _ in range(3)] == [None] * 3
        assert len(warnings_of(caplog)) == 1


def test_a_file_that_vanishes_is_named_once_and_may_come_back(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write(dump_enable=True)
    watch = follow(path)
    path.unlink()
    assert [watch.poll() for _ in range(3)] == [None] * 3
    (warning,) = warnings_of(caplog)
    assert "No such file or directory" in warning
    write(dump_enable=True)
    assert watch.poll() is None  # back as it was
    path.unlink()
    path.mkdir()
    assert watch.poll() is None
    path.rmdir()
    write(dump_enable=False)
    found = watch.poll()
    assert found is not None
    assert found.dump_enable is False


def test_without_the_key_the_switch_stays_and_the_rest_counts(write: Write) -> None:
    watch = follow(write(dump_enable=True))
    write(level="L0")
    found = watch.poll()
    assert found is not None
    assert (found.level, found.dump_enable) == ("L0", True)


def test_keyword_arguments_go_on_beating_the_file(write: Write, tmp_path: Path) -> None:
    watch = follow(write(dump_enable=True, level="L0"), level="mix", step=range(3), dump_path=tmp_path / "x", task=None)
    assert watch.config.level == "mix"
    write(dump_enable=True, level="L1", step=[9], precision="high")
    found = watch.poll()
    assert found is not None
    assert (found.level, found.step, found.dump_path) == ("mix", {0, 1, 2}, tmp_path / "x")
    assert found.precision == "high"


def test_relative_paths_stay_those_of_the_folder_where_the_run_began(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(dump_enable=True)
    watch = follow(Path(path.name))
    assert watch.config.dump_path == tmp_path / "out"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write(dump_enable=True, dump_path="other")
    found = watch.poll()
    assert found is not None
    assert found.dump_path == tmp_path / "other"
    write(dump_enable=True, dump_path="~no such user~/x")
    found = watch.poll()
    assert found is not None
    assert found.dump_path == tmp_path / "~no such user~/x"


def test_a_file_that_is_broken_at_the_beginning_is_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="L7"):
        follow(write(dump_enable=True, level="L7"))


def test_a_pipe_is_read_once_only(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"dump_path": "out", "dump_enable": true}')
    os.close(writing)
    try:
        watch = follow(Path(f"/dev/fd/{reading}"))
        assert watch.poll() is None
        assert watch.config.dump_enable is True
    finally:
        os.close(reading)


def test_the_check_costs_little_beside_reading_the_file(write: Write) -> None:
    path = write(dump_enable=True)
    watch = follow(path)

    def fastest(action: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(50):
                action()
            times.append(time.perf_counter() - begin)
        return min(times)

    assert fastest(watch.poll) < fastest(lambda: follow(path)) / 5
