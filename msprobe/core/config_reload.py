"""Follow a config.json that changes while the program runs (key ``dump_enable``)."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from msprobe.core.config_load import json_keywords, resolve
from msprobe.core.config_record import Config
from msprobe.core.config_source import ConfigSource
from msprobe.core.errors import ConfigError
from msprobe.core.support import Framework

_LOG = logging.getLogger("msprobe")
_CLOCK_TICK_NS = 100_000_000
"""Two writes closer together than this may leave the same time of change (file systems count in ticks)."""

_Signature = tuple[int, int, int] | None


class ConfigWatch:
    """One configuration file that may be rewritten at any moment.

    A poll asks the file system for the file's time of change, size and inode number, and reads the file only if one of
    them is new, or if the file was changed less than a tenth of a second before it was last read. A file that cannot
    be used is named once in a warning, and the last good configuration stays.

    Parameters
    ----------
    path : str or path-like
    framework : str
    keywords : mapping of str to object
        Values that beat the file, as given to :func:`msprobe.core.config_load.load_config`.

    Attributes
    ----------
    config : Config
        The last good configuration. Relative paths in it are those of the working directory at construction.

    Raises
    ------
    ConfigError
        If the file cannot be used already at construction.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        framework: Framework,
        keywords: Mapping[str, object],
    ) -> None:
        self._folder = Path.cwd()
        self._path = self._folder / path
        self._framework: Framework = framework
        self._keywords = json_keywords(**keywords)
        self._signature: _Signature = self._look()
        self._settled = False
        self._text = ""
        self.config = self._load()

    def poll(self) -> Config | None:
        """Look whether the file has changed.

        Returns
        -------
        Config or None
            The new configuration; None if there is none, or none that can be used.
        """
        signature = self._look()
        if signature == self._signature and (self._settled or signature is None):
            return None
        changed = signature != self._signature
        self._signature = signature
        before = self._text
        try:
            config = self._load()
        except ConfigError as error:
            if changed or self._text != before:
                _LOG.warning("msprobe: the changed configuration cannot be used, the last good one stays. %s", error)
            return None
        if config == self.config:
            return None
        self.config = config
        return config

    def _look(self) -> _Signature:
        try:
            found = self._path.stat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):  # a pipe can be read once only
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self) -> Config:
        age = time.time_ns() - self._signature[0] if self._signature else 0
        self._settled = not 0 <= age < _CLOCK_TICK_NS
        self._text = ""  # of a file that cannot even be parsed
        source = ConfigSource.read(self._path)
        self._text = source.text
        config = resolve(source, self._framework, self._keywords)
        if config.dump_enable is None and hasattr(self, "config"):  # without the key, the switch stays where it is
            config = replace(config, dump_enable=self.config.dump_enable)
        bench = config.bench_path
        return replace(
            config,
            dump_path=self._absolute(config.dump_path),
            bench_path=self._absolute(bench) if bench is not None else None,
        )

    def _absolute(self, path: Path) -> Path:
        # os.path, since Path.expanduser raises for a user that does not exist
        return self._folder / os.path.expanduser(path)  # noqa: PTH111
