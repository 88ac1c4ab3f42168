"""Task ``acc_check`` while data is collected: the statistics of task statistics, for the APIs that the lists name.

The replay makes inputs from these statistics, so no tensor is stored. What is looked at here is whether the names in
the lists mean something, and whether the replay will be able to keep what fails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from msprobe.core.api_lists import unknown_entries
from msprobe.core.config_record import Config
from msprobe.core.errors import ConfigError, Problem
from msprobe.dispatch.api_table import OPERATORS, REFLECTED, ApiTable
from msprobe.store.error_data import error_data_problem

_LOG = logging.getLogger("msprobe")


def check_acc_check(config: Config, table: ApiTable) -> None:
    """Check the keys of section ``acc_check`` against this machine and this PyTorch.

    Names that no API has are warned about: a custom operator may be registered later.

    Raises
    ------
    ConfigError
        If nothing can be written under ``error_data_path``.
    """
    problem = error_data_problem(config.error_data_path)
    if problem is not None:
        allowed = "a folder, or a path where one can be made"
        raise ConfigError([Problem("acc_check.error_data_path", str(config.error_data_path), allowed, problem)])
    for text in _unknown_names(config, table):
        _LOG.warning("msprobe: %s", text)


def _unknown_names(config: Config, table: ApiTable) -> Iterator[str]:
    dunders = (dunder for _, dunder in OPERATORS.values())
    names = {*table.names(), *(f"Tensor.{name}" for name in (*dunders, *REFLECTED.values()))}
    for key, entries in (("white_list", config.white_list), ("black_list", config.black_list)):
        for entry, closest in unknown_entries(entries, names):
            guess = f'did you mean "{closest}"?' if closest else "it matters only if a custom operator has that name"
            yield f'acc_check.{key}: no API of this PyTorch is called "{entry}"; {guess}'
