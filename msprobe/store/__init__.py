"""The only room that touches the disk: writing, reading and recovering dumps. Imports no framework."""

from msprobe.store.failures import Announcer
from msprobe.store.json_bytes import dumps_json, loads_json
from msprobe.store.layout import RunLayout
from msprobe.store.reader import Dump, DumpReadError, iter_records, read_dump
from msprobe.store.recover import FolderReport, RecoverReport, recover
from msprobe.store.tensor_files import safe_file_name
from msprobe.store.writer import StepWriter

__all__ = [
    "Announcer",
    "Dump",
    "DumpReadError",
    "FolderReport",
    "RecoverReport",
    "RunLayout",
    "StepWriter",
    "dumps_json",
    "iter_records",
    "loads_json",
    "read_dump",
    "recover",
    "safe_file_name",
]
