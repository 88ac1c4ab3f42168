"""Disks that refuse: nothing is raised, earlier data stays readable, one clear message."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from store_cases import open_step, open_writer, record, run

from msprobe.store import RunLayout, read_dump


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that takes 256 KiB; a file size limit stands in where mounting is not permitted."""
    place = tmp_path / "small"
    place.mkdir()
    with contextlib.ExitStack() as stack:
        mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            stack.callback(subprocess.run, ["umount", str(place)], check=True)
        else:
            import resource

            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, limits[1]))
            stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        yield place


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a folder that other users may enter, which pytest's own are not."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def test_a_full_disk_keeps_what_fitted_and_says_so_once(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = small_disk / "step0" / "rank0"
    writer = open_writer(folder)
    for index in range(2000):
        writer.add(str(index), record())
        writer.add_parent(str(index), None)
        writer.add_stack(str(index), index)
        if index % 100 == 99:
            writer.flush()
            json.loads((folder / "dump.json").read_bytes())
    writer.pause()
    writer.finish({"calls": 2000})
    dump = read_dump(folder)
    assert 100 < len(dump.data) < 1000
    assert list(dump.data) == [str(index) for index in range(len(dump.data))]
    assert dump.complete
    assert dump.coverage is not None
    assert dump.coverage["lost_records"] == 2000 - len(dump.data)
    assert any("dump.json" in reason and "errno" in reason for reason in dump.coverage["failures"])
    assert writer.failures == dump.coverage["failures"]
    for name in ("construct.json", "stack.json"):
        json.loads((folder / name).read_bytes())
    assert len(caplog.messages) == 1
    assert str(folder) in caplog.messages[0]
    assert "Training goes on" in caplog.messages[0]
    assert caplog.records[0].name == "msprobe"


def test_recording_goes_on_when_space_is_free_again(small_disk: Path) -> None:
    folder = small_disk / "step0" / "rank0"
    ballast = small_disk / "ballast"
    writer = open_writer(folder)
    writer.add("before", record())
    writer.flush()
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        file.write(bytes(1 << 20))
    for index in range(500):
        writer.add(f"during{index}", record())
    writer.flush()
    ballast.unlink()
    writer.add("after", record())
    writer.finish({})
    names = list(read_dump(folder).data)
    assert names[0] == "before"
    assert names[-1] == "after"


def test_a_tensor_that_does_not_fit_is_left_out_whole(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = open_writer(small_disk / "step0" / "rank0")
    names = [
        writer.write_tensor(f"{index}.pt", lambda file: torch.save(torch.zeros(20_000), file)) for index in range(5)
    ]
    big = writer.write_tensor("big.pt", lambda file: torch.save(torch.zeros(200_000), file))
    writer.add("a", {})
    writer.finish({})
    kept = [name for name in names if name]
    assert kept
    assert big is None
    folder = small_disk / "step0" / "rank0" / "dump_tensor_data"
    assert sorted(file.name for file in folder.iterdir()) == sorted(kept)
    for name in kept:
        assert torch.load(folder / name).numel() == 20_000
    assert len(caplog.messages) == 1
    assert "errno" in caplog.messages[0]


def test_all_steps_of_a_run_share_one_message(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb") as file:
        file.write(bytes(1 << 20))
    layout = RunLayout(small_disk / "x")
    for step in range(5):
        writer = open_step(layout, step, task="tensor", flush_every=0.5)
        writer.add("a", {"long": "x" * 300_000})
        writer.write_tensor("a.pt", lambda file: file.write(bytes(300_000)))
        writer.finish({})
        assert writer.failures
    assert len(caplog.messages) == 1


def test_a_file_size_limit_does_not_kill_the_process(tmp_path: Path) -> None:
    body = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    writer = open_writer(Path(sys.argv[1]), flush_every=0.01)
    for index in range(1000):
        writer.add(str(index), record())
        time.sleep(0.0001)
    writer.finish({})
    print(len(read_dump(sys.argv[1]).data))
    """
    done = run(body, tmp_path / "step0" / "rank0")
    assert done.returncode == 0
    assert 50 < int(done.stdout) < 100
    assert done.stderr.count("LOG msprobe WARNING") == 1
    assert "ulimit" in done.stderr


def test_a_removed_folder_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "step0" / "rank0"
    writer = open_writer(folder)
    writer.add("a", {})
    writer.flush()
    shutil.rmtree(folder)
    for _ in range(3):
        writer.add("b", {})
        writer.add_stack("b", 1)
        writer.flush()
        assert writer.write_tensor("b.pt", lambda file: file.write(b"x")) is None
    writer.finish({})
    assert len(caplog.messages) == 1
    assert "removed while" in caplog.messages[0]
    assert not folder.exists()


@pytest.mark.parametrize("change", ["replace", "shorten"])
def test_a_file_that_somebody_changed_is_not_written_over(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "step0" / "rank0"
    writer = open_writer(folder)
    writer.add("a", {})
    writer.flush()
    if change == "replace":
        (folder / "dump.json").unlink()
    (folder / "dump.json").write_text("{}")
    writer.add("b", {})
    writer.finish({})
    assert (folder / "dump.json").read_text() == "{}"
    assert any("replaced or shortened" in reason for reason in writer.failures)


def test_an_existing_dump_is_never_overwritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "step0" / "rank0"
    first = open_writer(folder)
    first.add("a", {})
    first.finish({})
    second = open_writer(folder)
    second.add("b", {})
    second.finish({})
    assert list(read_dump(folder).data) == ["a"]
    assert len(caplog.messages) == 1
    assert "nothing is overwritten" in caplog.messages[0]


def test_without_permission_the_run_goes_on(public_folder: Path) -> None:
    """Root may write anywhere, so the process gives its rights up first."""
    body = """
    if os.geteuid() == 0:
        os.seteuid(65534)
    writer = open_writer(Path(sys.argv[1]) / "step0" / "rank0")
    for index in range(2000):
        writer.add(str(index), {})
        writer.add_stack(str(index), 1)
        writer.write_tensor("a.pt", lambda file: file.write(b"x"))
    writer.pause(); writer.finish({})
    print(len(writer.failures))
    """
    locked = public_folder / "locked"
    locked.mkdir(mode=0o555)
    done = run(body, locked)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert done.stderr.count("LOG msprobe WARNING") == 1
    assert "write permission" in done.stderr
    assert list(locked.iterdir()) == []


def test_a_file_without_write_permission_keeps_its_content(public_folder: Path) -> None:
    body = """
    os.umask(0o022)
    folder = Path(sys.argv[1]) / "step0" / "rank0"
    if os.geteuid() == 0:
        os.chown(sys.argv[1], 65534, 65534)
        os.setegid(65534); os.seteuid(65534)
    writer = open_writer(folder)
    writer.add("a", {})
    writer.flush()
    (folder / "dump.json").chmod(0o440)
    writer.add("b", {})
    writer.finish({})
    dump = read_dump(folder)
    assert list(dump.data) == ["a"], dump.data
    assert dump.coverage["lost_records"] == 1
    """
    place = public_folder / "place"
    place.mkdir()
    done = run(body, place)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("LOG msprobe WARNING") == 1


def test_folders_and_files_are_closed_to_others(tmp_path: Path) -> None:
    body = """
    os.umask(0)
    layout = RunLayout(Path(sys.argv[1]) / "out")
    writer = layout.open_step(0, task="tensor", level="L1", framework="pytorch", extra_info=True, tensors=True,
                              render_stack=lambda key: [])
    writer.add("a", {}); writer.add_stack("a", 1); writer.note_failure("x")
    writer.write_tensor("a.pt", lambda file: file.write(b"x"))
    writer.pause(); writer.add_stack("b", 1)
    writer.finish({})
    """
    done = run(body, tmp_path)
    assert done.returncode == 0, done.stderr
    for entry in (tmp_path / "out").rglob("*"):
        assert oct(entry.stat().st_mode & 0o777) == ("0o750" if entry.is_dir() else "0o640"), entry
    assert oct((tmp_path / "out").stat().st_mode & 0o777) == "0o750"


@pytest.mark.parametrize("where", ["step0", "step0/rank0", "step0/rank0/dump.json"])
def test_a_link_below_dump_path_is_not_followed(tmp_path: Path, where: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    target = victim
    if where.endswith("json"):
        target = victim / "file"
        target.write_text("precious")
    link = tmp_path / "out" / where
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    writer = open_writer(tmp_path / "out" / "step0" / "rank0")
    writer.add("a", {})
    writer.write_tensor("a.pt", lambda file: file.write(b"x"))
    writer.finish({})
    assert writer.failures
    entries = list(victim.iterdir())
    assert entries == ([target] if where.endswith("json") else [])
    assert target.is_dir() or target.read_text() == "precious"


def test_a_file_replaced_by_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "step0" / "rank0"
    victim = tmp_path / "victim"
    victim.write_text("precious" * 1000)
    writer = open_writer(folder)
    writer.add("first", {})
    writer.flush()
    for name in ("dump.json", "construct.json", "stack.json.part", "coverage.json"):
        (folder / name).unlink()
        (folder / name).symlink_to(victim)
    (folder / "dump_error_info.log").symlink_to(victim)
    writer.add("a", {})
    writer.add_parent("a", None)
    writer.add_stack("a", 1)
    writer.finish({})
    assert victim.read_text() == "precious" * 1000
    assert len(writer.failures) >= 4


@pytest.mark.parametrize("below", ["", "deeper/dump"], ids=["dump_path", "a folder above"])
def test_a_file_in_the_place_of_dump_path_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, below: str
) -> None:
    file = tmp_path / "out"
    file.write_text("mine")
    layout = RunLayout(file / below)
    for step in range(2):
        writer = open_step(layout, step, tensors=False, flush_every=0.5)
        writer.add("a", {})
        writer.finish({})
        assert any(f"{file} is a file, not a folder" in reason for reason in writer.failures)
    assert len(caplog.messages) == 1
    assert f"{file} is a file, not a folder" in caplog.messages[0]
    assert "choose another dump_path" in caplog.messages[0]
    assert file.read_text() == "mine"


def test_missing_folders_above_dump_path_are_made(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "not" / "there" / "yet")
    writer = open_step(layout, tensors=False, flush_every=0.5)
    writer.add("a", {})
    writer.finish({})
    assert list((tmp_path / "not" / "there" / "yet").glob("step0/*/dump.json"))


def test_an_existing_dump_path_link_of_the_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "big disk ++ 盘").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "big disk ++ 盘")
    layout = RunLayout(tmp_path / "out")
    writer = open_step(layout, task="tensor", extra_info=False, tensors=False, flush_every=0.5)
    writer.add("a", {})
    writer.finish({})
    assert not writer.failures
    assert list((tmp_path / "big disk ++ 盘").glob("step0/*/dump.json"))
