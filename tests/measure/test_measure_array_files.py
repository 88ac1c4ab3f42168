"""Arrays have the checksums of tensors with the same content, and files that numpy reads."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from msprobe.measure.array_checksums import checksum_array
from msprobe.measure.array_files import ArrayFile
from msprobe.measure.checksums import checksum_cpu

VALUES = np.random.default_rng(0).standard_normal((3, 4, 5))
ARRAYS = {
    "float32": VALUES.astype(np.float32),
    "transposed": VALUES.astype(np.float16).transpose(2, 0, 1),
    "every second": VALUES[:, ::2],
    "int64": VALUES.astype(np.int64),
    "bool": VALUES > 0,
    "0-dim": np.array(1.5),
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize("mode", ["md5", "xor", "hash"])
@pytest.mark.parametrize("case", ARRAYS)
def test_an_array_has_the_checksum_of_the_tensor(case: str, mode: str) -> None:
    array = ARRAYS[case]
    assert checksum_array(mode, array) == checksum_cpu(mode, (torch.from_numpy(array),))


@pytest.mark.parametrize("mode", ["md5", "xor", "hash"])
def test_checksums_are_the_same_without_native_kernels(mode: str) -> None:
    code = (
        "import numpy as np; from msprobe.measure.array_checksums import checksum_array as check; "
        f"print(check({mode!r}, np.arange(30, dtype=np.float32).reshape(5, 6).T))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"MSPROBE_NO_NATIVE": "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == checksum_array(mode, np.arange(30, dtype=np.float32).reshape(5, 6).T)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("case", ARRAYS)
def test_numpy_reads_the_file(case: str, held: bool, tmp_path: Path) -> None:
    array = ARRAYS[case].copy()
    content = ArrayFile(array)
    if held:
        content.hold()
        array[...] = 0  # what is held does not change with the tensor
    content(tmp_path / "value.npy")
    loaded = np.load(tmp_path / "value.npy")
    assert (loaded.dtype, loaded.shape) == (ARRAYS[case].dtype, ARRAYS[case].shape)
    assert np.array_equal(loaded, ARRAYS[case])


def test_equal_contents_have_equal_fingerprints_and_a_released_one_cannot_be_written() -> None:
    first, second = ArrayFile(np.ones(4)), ArrayFile(np.ones(4))
    assert first.fingerprint() == second.fingerprint() is not None
    assert first.fingerprint() != ArrayFile(np.ones((2, 2))).fingerprint()
    first.release()
    with pytest.raises(ValueError, match="released"):
        first(io.BytesIO())


def test_whoever_waits_for_a_lost_file_is_told() -> None:
    told: list[str] = []
    content = ArrayFile(np.ones(2))
    content.when_lost(lambda: told.append("first"))
    content.lose()
    content.when_lost(lambda: told.append("at once"))
    assert told == ["first", "at once"]
