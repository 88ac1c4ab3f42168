"""What ``peer_parity.py`` runs: every scenario at every level, and other settings of the config on a few of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCENARIOS = tuple("llama gpt2 bert mixtral t5 resnet vit lstm autocast zoo recompute passes nonfinite".split())
LEVELS = ("L0", "L1", "mix")
EXACT = ("md5", "xor", "tensor")  # settings that record more than statistics of the elements


@dataclass(frozen=True, slots=True)
class Setting:
    """Changes to the config: keys of the top level, keys of the task's section."""

    top: Mapping[str, Any] = field(default_factory=dict)
    section: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One script to run under both tools: a scenario, a level, and a key of :data:`SETTINGS`."""

    scenario: str
    level: str
    setting: str = "default"

    @property
    def title(self) -> str:
        return f"{self.scenario} {self.level}" + ("" if self.setting == "default" else f" {self.setting}")

    def with_everything(self) -> Case:
        """The same without a setting: everything is recorded."""
        return Case(self.scenario, self.level)

    def at_l1(self) -> Case:
        """The same at level L1, where the peer changes no gradient, with the same checksums and files."""
        return Case(self.scenario, "L1", self.setting if self.setting in EXACT else "default")

    def config(self, dump_path: str) -> dict[str, Any]:
        """The config.json of the case."""
        setting = SETTINGS[self.setting]
        config = {
            "task": "statistics",
            "dump_path": dump_path,
            "rank": [],
            "step": [],
            "level": self.level,
            "risk_level": "ALL",
            **setting.top,
        }
        if config["task"] != "structure":
            section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
            config[config["task"]] = {**section, **setting.section}
        return config


SETTINGS: dict[str, Setting] = {
    "default": Setting(),
    "md5": Setting(section={"summary_mode": "md5"}),
    "xor": Setting(section={"summary_mode": "xor"}),
    "tensor": Setting({"task": "tensor"}),
    "structure": Setting({"task": "structure"}),
    "high": Setting({"precision": "high"}),
    "async": Setting({"async_dump": True}),
    "no extra_info": Setting({"extra_info": False}),
    "FOCUS": Setting({"risk_level": "FOCUS"}),
    "CORE": Setting({"risk_level": "CORE"}),
    "forward": Setting(section={"data_mode": ["forward"]}),
    "backward": Setting(section={"data_mode": ["backward"]}),
    "input": Setting(section={"data_mode": ["input"]}),
    "output": Setting(section={"data_mode": ["output"]}),
    "forward and output": Setting(section={"data_mode": ["forward", "output"]}),
    "backward and input": Setting(section={"data_mode": ["backward", "input"]}),
    "scope of modules": Setting(
        section={"scope": ["Module.blocks.0.qkv.Linear.forward.0", "Module.blocks.1.norm1.LayerNorm.forward.0"]}
    ),
    "scope of APIs": Setting(
        section={"scope": ["Functional.layer_norm.1.forward", "Functional.scaled_dot_product_attention.1.forward"]}
    ),
    "backward scope": Setting(
        section={"scope": ["Functional.gelu.1.backward", "Functional.scaled_dot_product_attention.0.backward"]}
    ),
    "list of names": Setting(section={"list": ["Functional.linear.2.forward", "Functional.gelu.0.backward"]}),
    "list of parts": Setting(section={"list": ["relu", "conv2d"]}),
    "list of modules": Setting(section={"list": ["Module.blocks.1.mlp.Sequential.forward.0"]}),
    "list of module parts": Setting(section={"list": ["blocks.0.mlp"]}),
    "tensor_list": Setting(section={"tensor_list": ["layer_norm", "GELU"]}),
}

_WITH_SETTING = """
    llama L1 md5 : resnet mix md5 : gpt2 L1 xor : vit mix xor : gpt2 L1 tensor : resnet mix tensor : autocast L1 tensor
    bert mix structure : autocast mix high : vit mix no extra_info
    llama mix FOCUS : gpt2 L1 FOCUS : zoo L1 FOCUS : gpt2 L1 CORE : zoo L1 CORE
    vit mix forward : vit mix backward : vit mix input : vit mix output : vit mix forward and output
    vit mix backward and input : vit L0 scope of modules : vit mix scope of modules : vit L1 scope of APIs
    vit mix scope of APIs : vit L1 backward scope : vit L1 list of names : resnet L1 list of parts
    resnet mix list of parts : vit mix list of modules : vit mix list of module parts : vit L1 tensor_list
    vit mix tensor_list : vit mix async
"""


def _cases(text: str) -> tuple[Case, ...]:
    entries = [entry for line in text.strip().splitlines() for entry in line.split(" : ")]
    return tuple(Case(*entry.strip().split(" ", 2)) for entry in entries)


CASES: tuple[Case, ...] = (
    *(Case(scenario, level) for scenario in SCENARIOS for level in LEVELS),
    *_cases(_WITH_SETTING),
)


def chosen(scenario: str, level: str, setting: str) -> list[Case]:
    """The cases that the command line asks for; ``all`` of any of the three leaves it open.

    A setting that has no case for the scenario and level asked for makes one.
    """
    found = [
        case
        for case in CASES
        if scenario in ("all", case.scenario) and level in ("all", case.level) and setting in ("all", case.setting)
    ]
    if found or "all" in (scenario, level):
        return found
    return [Case(scenario, level, setting)]
