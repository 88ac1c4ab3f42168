"""The typed model of config.json: every key with its type, default and meaning, in the order of the reference.

The model knows what a key accepts on its own, both as a check and as JSON Schema
(:mod:`msprobe.core.config_schema`). What keys demand of each other, and what a framework takes, is in
:mod:`msprobe.core.config_rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from msprobe.core import config_schema as schema
from msprobe.core import config_values as values
from msprobe.core.config_record import CheckMode, Device, FileFormat, Level, Precision, RiskLevel, SummaryMode, Task

Boolean = Annotated[bool, PlainValidator(values.boolean), WithJsonSchema(schema.BOOLEAN)]
PathText = Annotated[str, PlainValidator(values.path_text), WithJsonSchema(schema.TEXT)]
Spans = Annotated[
    list[Annotated[range, PlainValidator(values.span)]],
    BeforeValidator(values.a_list('[0, 2, "4-6"]')),
    WithJsonSchema(schema.SPANS),
]
Names = Annotated[
    list[Annotated[str, PlainValidator(values.text)]],
    BeforeValidator(values.a_list('["relu"]')),
    WithJsonSchema(schema.NAMES),
]
Scope = Annotated[
    list[Annotated[str, PlainValidator(values.full_name)]],
    BeforeValidator(values.a_list('["Tensor.add.0.forward", "Functional.relu.2.forward"]')),
    AfterValidator(values.two_names),
    WithJsonSchema(schema.TWO_NAMES),
]
DataWords = Annotated[
    list[Annotated[str, PlainValidator(values.data_word)]],
    BeforeValidator(values.a_list('["forward", "input"]')),
    AfterValidator(values.all_alone),
    WithJsonSchema(schema.DATA_MODE),
]
Summary = Annotated[Any, PlainValidator(values.summary), WithJsonSchema(schema.SUMMARY_MODE)]

_SCOPE = "two full record names: collect from the first to the last, both included"
_LIST = "full names, or parts of names, of what to collect; empty collects everything"
_TENSOR_LIST = "parts of names (any case) whose full tensors are stored too"
_DATA_MODE = 'which passes and sides to collect: "all", or any of "forward", "backward", "input", "output"'
_SUMMARY = (
    '"statistics", "md5" (a CRC-32 beside them), "xor" or "hash" (a checksum instead of them); '
    "MindSpore graph mode: also a list of statistics"
)


class Section(BaseModel):
    """Base of the top level and of every task section: null means "use the default", unknown keys are kept aside."""

    model_config = ConfigDict(frozen=True, extra="allow")

    null_refused: ClassVar[frozenset[str]] = frozenset()
    empty_is_default: ClassVar[frozenset[str]] = frozenset({"summary_mode"})

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if not cls._means_default(key, value)}

    @classmethod
    def _means_default(cls, key: str, value: object) -> bool:
        if value is None:
            return key in cls.model_fields and key not in cls.null_refused
        return value == "" and key in cls.empty_is_default


class StatisticsSection(Section):
    """Keys of task ``statistics``."""

    scope: Scope = Field(default=[], description=_SCOPE)
    list: Names = Field(default=[], description=_LIST)
    tensor_list: Names = Field(default=[], description=_TENSOR_LIST)
    data_mode: DataWords = Field(default=["all"], description=_DATA_MODE)
    summary_mode: Summary = Field(default=SummaryMode.STATISTICS, description=_SUMMARY)
    device: Annotated[Device, PlainValidator(values.one_of(Device)), WithJsonSchema(schema.one_of(Device))] = Field(
        default=Device.HOST, description="where statistics are computed; MindSpore graph mode, jit_level O0 and O1 only"
    )


class TensorSection(Section):
    """Keys of task ``tensor``."""

    null_refused: ClassVar[frozenset[str]] = frozenset({"diff_nums"})

    scope: Scope = Field(default=[], description=_SCOPE)
    list: Names = Field(default=[], description=_LIST)
    data_mode: DataWords = Field(default=["all"], description=_DATA_MODE)
    summary_mode: Summary = Field(default=SummaryMode.STATISTICS, description=_SUMMARY)
    file_format: Annotated[
        FileFormat, PlainValidator(values.one_of(FileFormat)), WithJsonSchema(schema.one_of(FileFormat))
    ] = Field(default=FileFormat.NPY, description='"npy" or "bin"; MindSpore graph mode at level L2 only')
    bench_path: PathText | None = Field(
        default=None,
        description="an earlier md5 dump to compare with while running; real tensors are stored where it differs",
    )
    diff_nums: Annotated[int, PlainValidator(values.difference_count), WithJsonSchema(schema.DIFFERENCE_COUNT)] = Field(
        default=1, description="with bench_path: stop collecting after this many differences; -1 never stops"
    )


class NanCheckSection(Section):
    """Keys of task ``nan_check``."""

    scope: Scope = Field(default=[], description=_SCOPE)
    list: Names = Field(default=[], description=_LIST)
    tensor_list: Names = Field(
        default=[],
        description="parts of API names (any case) that on overflow raise and store their tensors under extra-info/",
    )
    data_mode: Annotated[
        DataWords, AfterValidator(values.includes_output), WithJsonSchema(schema.DATA_MODE_WITH_OUTPUT)
    ] = Field(default=["all"], description=_DATA_MODE)


class AccCheckSection(Section):
    """Keys of task ``acc_check``."""

    white_list: Names = Field(default=[], description="names of the only APIs to collect; empty means all")
    black_list: Names = Field(default=[], description="names of APIs not to collect")
    error_data_path: PathText = Field(
        default="./", description="folder for inputs and outputs of APIs that fail the check"
    )


class OverflowCheckSection(Section):
    """Keys of task ``overflow_check``."""

    check_mode: Annotated[
        CheckMode, PlainValidator(values.one_of(CheckMode)), WithJsonSchema(schema.one_of(CheckMode))
    ] = Field(default=CheckMode.ALL, description='which overflow to look for: "all", "aicore" or "atomic"')


class EmptySection(Section):
    """Tasks ``structure`` and ``exception_dump`` have no keys of their own."""


class ConfigFile(Section):
    """The top level of config.json."""

    null_refused: ClassVar[frozenset[str]] = frozenset(
        {"async_dump", "extra_info", "precision", "exact", "self_check", *(task.value for task in Task)}
    )
    empty_is_default: ClassVar[frozenset[str]] = frozenset({"task", "level", "risk_level", "dump_path"})

    task: Annotated[Task, PlainValidator(values.one_of(Task)), WithJsonSchema(schema.one_of(Task))] = Field(
        default=Task.STATISTICS, description="what to collect; its section below has the task's own keys"
    )
    dump_path: PathText | None = Field(default=None, description="folder to write to (required)")
    rank: Spans = Field(
        default=[], description='ranks to collect on, e.g. [1, "4-6"]; [] means all, and is required on one card'
    )
    step: Spans = Field(default=[], description='steps to collect, e.g. [0, 1, "4-6"]; [] means all')
    level: Annotated[Level, PlainValidator(values.one_of(Level)), WithJsonSchema(schema.one_of(Level))] = Field(
        default=Level.L1,
        description='"L0" modules, "L1" APIs, "mix" both, "L2" kernels, "debug" only what save() is given',
    )
    async_dump: Boolean = Field(
        default=False, description="no device synchronisation and no file writing before the step ends"
    )
    dump_enable: Boolean | None = Field(
        default=None, description="if present: re-read this file at step borders, and collect only while true"
    )
    extra_info: Boolean = Field(default=True, description="write stack.json and construct.json")
    precision: Annotated[
        Precision, PlainValidator(values.one_of(Precision)), WithJsonSchema(schema.one_of(Precision))
    ] = Field(default=Precision.LOW, description='type of statistics: "low" the tensor\'s own, "high" float32 or wider')
    risk_level: Annotated[
        RiskLevel, PlainValidator(values.one_of(RiskLevel)), WithJsonSchema(schema.one_of(RiskLevel))
    ] = Field(
        default=RiskLevel.FOCUS,
        description='PyTorch, L1 and mix: "ALL" APIs, "FOCUS" without shape and copy APIs, "CORE" only',
    )
    exact: Boolean = Field(
        default=False,
        description="torch.compile: have Inductor compute the same bits with probes as without, in bfloat16 too",
    )
    self_check: Boolean = Field(
        default=False,
        description="torch.compile: run each graph without probes, too, and tell whether the results are bitwise equal",
    )

    statistics: StatisticsSection = StatisticsSection()
    tensor: TensorSection = TensorSection()
    acc_check: AccCheckSection = AccCheckSection()
    overflow_check: OverflowCheckSection = OverflowCheckSection()
    nan_check: NanCheckSection = NanCheckSection()
    structure: EmptySection = EmptySection()
    exception_dump: EmptySection = EmptySection()

    def section(self, task: Task) -> Section:
        """Return the section of one task."""
        section = getattr(self, task.value)
        assert isinstance(section, Section)  # noqa: S101 - tells the type checker what the fields above say
        return section


SECTIONS: dict[str, type[Section]] = {
    "statistics": StatisticsSection,
    "tensor": TensorSection,
    "acc_check": AccCheckSection,
    "overflow_check": OverflowCheckSection,
    "nan_check": NanCheckSection,
    "structure": EmptySection,
    "exception_dump": EmptySection,
}
"""Section models by their key."""

COMMON_KEYS = tuple(key for key in ConfigFile.model_fields if key not in SECTIONS)
"""Keys of the top level that are not sections."""
