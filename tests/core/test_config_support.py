"""Task, level, framework: the contract's table, and the part of it that this version carries out."""

import itertools

import pytest

from msprobe.core.config_load import load_config
from msprobe.core.config_record import Level, Task
from msprobe.core.errors import ConfigError
from msprobe.core.support import Mode, check_supported, modes_of, supporting_modes

EVERY = "L0 L1 L2 mix debug"
DUMPING = "L0 L1 mix debug"
STATIC = {"statistics": "L0 L2", "tensor": "L0 L2", "exception_dump": "L2"}
CONTRACT = {
    "pytorch": {"statistics": EVERY, "tensor": EVERY, "structure": EVERY, "acc_check": "L1", "nan_check": "L1"},
    "mindspore/dynamic": {"statistics": EVERY, "tensor": EVERY, "structure": EVERY, "exception_dump": "L2"},
    "mindspore/O0": STATIC,
    "mindspore/O1": STATIC,
    "mindspore/O2": {"statistics": "L2", "tensor": "L2", "overflow_check": "L2"},
}


@pytest.mark.parametrize("framework", CONTRACT)
@pytest.mark.parametrize(("task", "level"), list(itertools.product(Task, Level)))
def test_pair_is_supported_exactly_as_the_contract_says(framework, task, level):
    if level.value in CONTRACT[framework].get(task.value, "").split():
        check_supported(task, level, framework)
        return
    with pytest.raises(ConfigError) as caught:
        check_supported(task, level, framework)
    assert f'task "{task}" with level "{level}"' in str(caught.value)


def test_wider_words_support_what_one_of_their_modes_supports():
    for task, level in itertools.product(Task, Level):
        assert set(supporting_modes(task, level)) == {
            mode for word in CONTRACT for mode in supporting_modes(task, level, word)
        }
    assert modes_of("any") == tuple(Mode)
    assert modes_of("mindspore") == (Mode.DYNAMIC, *modes_of("mindspore/static"))


WRONG_PAIRS = [
    ("nan_check", "L0", "pytorch", "level", 'for task "nan_check": PyTorch at level "L1"'),
    ("overflow_check", "L1", "mindspore", "level", 'MindSpore graph mode, jit_level O2 at level "L2"'),
    ("statistics", "L1", "mindspore/static", "level", 'jit_level O0/O1 at level "L0" or "L2"'),
    (
        "tensor",
        "mix",
        "mindspore/O1",
        "level",
        "needs a dynamic graph: mindspore.set_context(mode=mindspore.PYNATIVE_MODE)",
    ),
    ("statistics", "L0", "mindspore/O2", "level", 'jit_level O2 at level "L2"'),
    (
        "exception_dump",
        "L2",
        "pytorch",
        "task",
        "MindSpore dynamic graph (and MSAdapter), MindSpore graph mode, jit_level O0/O1 at",
    ),
    ("overflow_check", "L2", "pytorch", "task", 'on PyTorch use task "nan_check" at level "L1"'),
    ("nan_check", "L1", "mindspore", "task", 'task "nan_check" works on PyTorch at level "L1"'),
    ("acc_check", "L1", "mindspore", "task", 'task "acc_check" works on PyTorch at level "L1"'),
]


@pytest.mark.parametrize(("task", "level", "framework", "path", "text"), WRONG_PAIRS)
def test_refused_pair_says_what_would_work(task, level, framework, path, text):
    with pytest.raises(ConfigError) as caught:
        check_supported(task, level, framework)
    assert caught.value.problems[0].path == path
    assert text in str(caught.value)


def load(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text('{"dump_path": "out"' + (", " + text if text else "") + "}", encoding="utf-8")
    return load_config(path)


AVAILABLE = [
    "",
    *[f'"dump_enable": {switch}' for switch in ("true", "false", "null")],
    *[f'"task": "{task}", "level": "{level}"' for task in ("statistics", "tensor") for level in DUMPING.split()],
    *[f'"task": "{task}", "level": "L2", "{task}": {{"list": ["a"]}}' for task in ("statistics", "tensor")],
    *[f'"task": "structure", "level": "{level}"' for level in EVERY.split()],
    '"task": "nan_check"',
    '"task": "acc_check"',
    '"task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": "x"}',
    *[f'"statistics": {{"summary_mode": "{mode}"}}' for mode in ("statistics", "md5", "xor", "hash")],
    *[f'"async_dump": true, "level": "{level}"' for level in ("L0", "L1", "mix", "debug")],
    '"async_dump": true, "task": "tensor", "tensor": {"list": ["relu"]}',
]


@pytest.mark.parametrize("text", AVAILABLE)
def test_what_works_is_let_through(tmp_path, text):
    assert load(tmp_path, text).dump_path.name == "out"
