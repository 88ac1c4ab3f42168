"""What tests do in a process of its own: MindSpore reads its dump configuration once per process.

Imports little, because every process imports it anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def parse(content: dict[str, Any], folder: str) -> str:
    """Have the parser read a file; what it says if it refuses."""
    from mindspore._c_expression import _set_init_iter

    file = Path(folder) / "dump.json"
    file.write_text(json.dumps(content))
    os.environ["MINDSPORE_DUMP_CONFIG"] = str(file)
    try:
        _set_init_iter(0)
    except RuntimeError as error:
        return str(error)
    return ""
