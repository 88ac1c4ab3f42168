"""The records of a dump file one by one, without ever holding the file: ours, the peer's, or any other layout.

`msprobe.store.reader` returns whole dumps as Python objects, which take ten times the size of the file. A comparison
needs each record once or twice, so here a record is a span of bytes in the file.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from msprobe.store.json_bytes import loads_json
from msprobe.store.reader import DumpReadError, find_dump_file

_CHUNK = 1 << 20
_BLOCK = 1 << 21
_LARGEST_HEAD = 1 << 20
#: A string (without group 1 if it is cut off), or one structural character.
_TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*(?:(")|\\?\Z)|[{}\[\],]', re.DOTALL)
_DATA_KEY = re.compile(rb'"data"\s*:\s*\{')
_NAME = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"\s*:')


@dataclass(frozen=True, slots=True)
class DumpHead:
    """What stands before the records.

    Attributes
    ----------
    path
        The file.
    task, level, framework
        As written; empty where a file has none.
    data_dir
        ``dump_data_dir`` as written; empty if null.
    start
        Offset of the first byte after the brace that opens ``data``.
    """

    path: Path
    task: str
    level: str
    framework: str
    data_dir: str
    start: int


def read_head(path: str | Path) -> DumpHead:
    """Read what stands before the records of a dump file or rank folder.

    Raises
    ------
    DumpReadError
        There is no such file, or it has no object under ``data`` within its first MiB.
    """
    file = find_dump_file(Path(path))
    try:
        with file.open("rb") as stream:
            text = stream.read(_LARGEST_HEAD)
    except OSError as error:
        raise DumpReadError(f"{file}: {error.strerror}") from error
    match = _DATA_KEY.search(text)
    if match is None:
        raise DumpReadError(
            f'{file}: no object under the key "data" ({len(text)} bytes looked at); '
            "give the dump.json of a step{N}/rank{R} folder"
        )
    try:
        head = loads_json(text[: match.end()] + b"}}")
    except ValueError as error:
        raise DumpReadError(f"{file}: not JSON before its records ({error})") from error
    return DumpHead(
        path=file,
        task=str(head.get("task") or ""),
        level=str(head.get("level") or ""),
        framework=str(head.get("framework") or ""),
        data_dir=str(head.get("dump_data_dir") or ""),
        start=match.end(),
    )


class MemberIndex:
    """Where each record of a dump file is: offset, length and a hash of its name, 24 bytes a record.

    Parameters
    ----------
    path
        ``dump.json``, ``debug.json`` or the folder that has it.
    most
        Stop after this many records; None for all.

    Attributes
    ----------
    head : DumpHead
        What stands before the records.
    complete : bool
        False if the file ends in the middle; the records before that are there.

    Raises
    ------
    DumpReadError
        As `read_head`.
    """

    def __init__(self, path: str | Path, most: int | None = None) -> None:
        self.head = read_head(path)
        self.complete = False
        self._offsets = array("Q")
        self._lengths = array("Q")
        self.name_hashes = array("q")
        self._file: IO[bytes] = self.head.path.open("rb")
        self._block = b""
        self._block_start = 0
        self._scan(most)

    def __len__(self) -> int:
        return len(self._offsets)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def raw(self, number: int) -> bytes:
        """Return the bytes of a record, ``"name":{...}``. Cheapest in the order of the file."""
        offset, length = self._offsets[number], self._lengths[number]
        start = offset - self._block_start
        if start < 0 or start + length > len(self._block):
            self._file.seek(offset)
            self._block = self._file.read(max(_BLOCK, length))
            self._block_start = offset
            start = 0
        return self._block[start : start + length]

    def name(self, number: int) -> str:
        """Return the name of a record."""
        return name_of(self.raw(number))

    def record(self, number: int) -> tuple[str, Any]:
        """Return name and content of a record."""
        ((name, content),) = loads_json(b"{" + self.raw(number) + b"}").items()
        return name, content

    def _scan(self, most: int | None) -> None:
        splitter = _Splitter(self._file, self.head.start)
        last = b""
        for offset, member in islice(splitter.spans(), most):
            self._offsets.append(offset)
            self._lengths.append(len(member))
            self.name_hashes.append(hash(_name_bytes(member)))
            last = member
        self.complete = splitter.complete
        if last and not self.complete and not _is_whole(last):
            self._offsets.pop()
            self._lengths.pop()
            self.name_hashes.pop()


class _Splitter:
    """Splits an object into its members without decoding them.

    Parameters
    ----------
    file
        Open for reading bytes.
    start
        Offset after the brace that opens the object.
    """

    def __init__(self, file: IO[bytes], start: int) -> None:
        self.complete = False
        self._file = file
        self._start = start

    def spans(self) -> Iterator[tuple[int, bytes]]:
        """Yield offset and bytes of each member, ``"name":value``; the last one may be cut off."""
        self._file.seek(self._start)
        opening = self._file.read(8)
        self._file.seek(self._start)
        if opening.startswith((b'\n"', b"\n}")):
            return self._lines()
        return self._indented() if opening.startswith(b'\n  "') else self._free()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Ours: one record per line."""
        offset = self._start
        for line in self._file:
            member = line.rstrip(b"\r\n\0 ")
            if member.startswith(b"}"):
                self.complete = True
                return
            if member.startswith(b'"'):
                yield offset, member.removesuffix(b",")
            offset += len(line)

    def _indented(self) -> Iterator[tuple[int, bytes]]:
        """As ``json.dump(..., indent=1)`` writes: a record begins two blanks in, what is in it further in."""
        offset, buffer = self._start, b""
        while True:
            chunk = self._file.read(_CHUNK)
            buffer += chunk
            begin = 0
            while (end := _end_of_indented(buffer, begin)) >= 0:
                yield _span(buffer, begin, end, offset)
                begin = end
                if buffer[begin : begin + 3] != b"\n  ":
                    self.complete = True
                    return
            offset, buffer = offset + begin, buffer[begin:]
            if not chunk:
                if buffer.strip():
                    yield _span(buffer, 0, len(buffer), offset)
                return

    def _free(self) -> Iterator[tuple[int, bytes]]:
        """Any JSON: follow braces and brackets outside strings."""
        offset, buffer, place, depth, begin = self._start, b"", 0, 0, 0
        while chunk := self._file.read(_CHUNK):
            buffer = buffer[begin:] + chunk
            offset, place, begin = offset + begin, place - begin, 0
            while token := _TOKEN.search(buffer, place):
                sign = buffer[token.start()]
                if sign == 0x22:
                    if not token.group(1):
                        break
                elif sign in b"{[":
                    depth += 1
                elif sign in b"}]":
                    depth -= 1
                if depth <= 0 and sign in b",}":
                    if depth < 0 or sign == 0x2C:
                        if buffer[begin : token.start()].strip():
                            yield _span(buffer, begin, token.start(), offset)
                        begin = token.end()
                    if depth < 0:
                        self.complete = True
                        return
                place = token.end()
            else:
                place = len(buffer)
        if buffer[begin:].strip():
            yield _span(buffer, begin, len(buffer), offset)


def iter_members(file: Path) -> Iterator[bytes]:
    """Yield the members of a file that holds one object, ``"name":value`` each; the last one may be cut off.

    Raises
    ------
    DumpReadError
        The file does not begin with a brace.
    OSError
        It cannot be read.
    """
    with file.open("rb") as stream:
        opening = stream.read(64)
        start = len(opening) - len(opening.lstrip())
        if opening[start : start + 1] != b"{":
            raise DumpReadError(f"{file}: holds no JSON object; is it a file of a dump?")
        for _, member in _Splitter(stream, start + 1).spans():
            yield member


def first_records(path: str | Path, most: int) -> Iterator[tuple[str, Any]]:
    """Yield names and contents of the first records of a dump.

    Raises
    ------
    DumpReadError
        As `read_head`.
    """
    index = MemberIndex(path, most)
    try:
        for number in range(len(index)):
            yield index.record(number)
    finally:
        index.close()


def name_of(member: bytes) -> str:
    """Return the name of a record given as ``"name":{...}``."""
    name = _name_bytes(member)
    if b"\\" in name:
        return str(loads_json(b'["' + name + b'"]')[0])
    return name.decode("utf-8", "replace")


def body_of(member: bytes) -> bytes:
    """Return what follows the name."""
    return member[len(_name_bytes(member)) + 2 :]


def _name_bytes(member: bytes) -> bytes:
    match = _NAME.match(member)
    return match.group(1) if match else member


def _is_whole(member: bytes) -> bool:
    try:
        loads_json(b"{" + member + b"}")
    except ValueError:
        return False
    return True


def _span(buffer: bytes, begin: int, end: int, offset: int) -> tuple[int, bytes]:
    """Offset and bytes of a member without blanks and comma around it."""
    text = buffer[begin:end]
    lead = len(text) - len(text.lstrip())
    return offset + begin + lead, text[lead:].rstrip().removesuffix(b",").rstrip()


def _end_of_indented(buffer: bytes, begin: int) -> int:
    """Offset of the line break before the next member or the closing brace; -1 if it is not in the buffer."""
    following = buffer.find(b'\n  "', begin + 1)
    closing = buffer.find(b"\n }", begin + 1, following if following >= 0 else len(buffer))
    return closing if closing >= 0 else following
