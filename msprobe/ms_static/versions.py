"""MindSpore releases, compared as numbers: as text, "2.10.0" would come before "2.7.0"."""

from __future__ import annotations

import re
from importlib import metadata
from typing import TypeAlias

from msprobe.core.errors import ConfigError, Problem

Version: TypeAlias = tuple[int, int, int]

HASH_IS_MD5_UNTIL: Version = (2, 7, 0)
"""Last release in which the dump knows one hash, MD5, under the name ``md5``. Later ones: ``hash:md5`` and SHA1."""
CHECK_MODE_UNTIL: Version = (2, 3, 0)
"""First release that looks for every kind of overflow, whatever ``op_debug_mode`` asks for."""
ASSUMED: Version = (2, 10, 0)
"""Where no MindSpore is installed."""

_NUMBERS = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?")


def parse_version(text: str) -> Version:
    """Return the release part of a version; what follows (``rc1``, ``.post2``, ``+cpu``) does not count.

    Raises
    ------
    ConfigError
        If the text does not begin with a number.
    """
    match = _NUMBERS.match(text.strip())
    if match is None:
        raise ConfigError([Problem("mindspore version", text, 'numbers such as "2.7.0"', origin="argument")])
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def installed_version() -> Version:
    """Return the version of the installed MindSpore without importing it; the newest known one if there is none."""
    try:
        return parse_version(metadata.version("mindspore"))
    except metadata.PackageNotFoundError:
        return ASSUMED


def version_text(version: Version) -> str:
    """Return ``2.10.0``."""
    return ".".join(map(str, version))
