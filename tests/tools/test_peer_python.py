"""The peer's interpreter may be given as users type it: the runs that use it have working folders of their own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from peer_python import add_peer_python


def parsed(given: str) -> str:
    parser = argparse.ArgumentParser()
    add_peer_python(parser)
    path: str = parser.parse_args(["--peer-python", given]).peer_python
    return path


def test_a_relative_path_is_made_absolute_and_its_link_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "peer" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert parsed("peer/bin/python") == str(link)


def test_a_command_of_the_search_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "peer-python"
    command.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert parsed("peer-python") == str(command)


def test_a_path_to_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("no/where/python")
    assert "no interpreter at no/where/python" in capsys.readouterr().err
