"""The golden files: one configuration each, and what MindSpore is given for it. Shared with the MindSpore lane."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe.core.config_load import load_config
from msprobe.core.support import Mode
from msprobe.ms_static.acceptance import MODE_WORDS, mode_of_jit_level
from msprobe.ms_static.kernel_dump import KernelDump, Target, plan_kernel_dump
from msprobe.ms_static.tap_dump import plan_tap_statistics
from msprobe.ms_static.versions import parse_version

FILES = sorted((Path(__file__).parent / "golden").glob("*.json"))


@dataclass(frozen=True, slots=True)
class Golden:
    """Content of one golden file."""

    config: dict[str, Any]
    mode: str
    mindspore: str
    device_target: str
    file: str
    env: dict[str, str | None]
    json: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> Golden:
        return cls(**json.loads(file.read_text()))

    def plan(self, folder: Path, **config: Any) -> KernelDump:
        """What is planned for the configuration, with some keys replaced."""
        mode = Mode.DYNAMIC if self.mode == "PYNATIVE" else mode_of_jit_level(self.mode)
        file = folder / "config.json"
        file.write_text(json.dumps({**self.config, **config}))
        loaded = load_config(file, framework=MODE_WORDS[mode])
        target, version = Target.from_word(self.device_target), parse_version(self.mindspore)
        if loaded.level == "L0":
            return plan_tap_statistics(loaded, mode, version=version, environ={})
        return plan_kernel_dump(loaded, mode, target=target, version=version, environ={})
