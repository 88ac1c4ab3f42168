# make demo        train a small Llama with the debugger around it, show what was recorded, and find a planted bug
# make test        lint, type-check and all tests, those of the lanes included
#
# make test-triton the Triton kernels without a GPU: interpreted, and compiled for CUDA and HIP
# make test-npu    the NPU side without an NPU: the real torch_npu on a fake CANN
# make test-mindspore  the MindSpore side, on the CPU build of MindSpore
# make gpu-check   values and bandwidth on a CUDA device
# make bench       what recording costs, beside other tools; writes docs/benchmarks.md (20 minutes; BENCH="--quick" to try)
# make bench-gate  fails where recording has clearly become slower; two minutes
# make fuzz        hostile configurations, names and dump files, and 100,000 steps: longer than in make test
#
# Each makes the virtual environment it needs. Set PYTHON to choose the interpreter (3.10 or newer; the lanes: 3.11).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
NATIVE := setup.py pyproject.toml $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h)
PIP    := -m pip install --quiet --disable-pip-version-check

# A lane without native kernels must not need a compiler; those with them must not fall back silently.
LANE_INSTALL := MSPROBE_NO_NATIVE=1

.PHONY: demo test lint types unit test-triton test-npu test-mindspore gpu-check bench bench-gate fuzz clean

demo: $(STAMP)
	$(BIN)/python examples/train_llama.py

test: lint types unit test-triton test-npu test-mindspore

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	@command -v chromedriver >/dev/null || echo "No chromedriver: tests of HTML pages in a browser are skipped (apt-get install chromium chromium-driver)"
	$(BIN)/python -m pytest --ignore tests/triton --ignore tests/mindspore

test-triton: .venv-triton/.installed
	.venv-triton/bin/python -m pytest tests/triton

test-npu: .venv-npu/.installed
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 MSPROBE_REQUIRE_NPU=1 .venv-npu/bin/python -m pytest tests/npu

test-mindspore: .venv-mindspore/.installed
	MSPROBE_REQUIRE_MINDSPORE=1 .venv-mindspore/bin/python -m pytest tests/mindspore

gpu-check: .venv-triton/.installed
	.venv-triton/bin/python benchmarks/gpu_check.py

# TorchLens is optional: without its environment its rows are left out, and the page says so.
bench: $(STAMP) .venv-peer/.installed
	-$(MAKE) .venv-torchlens/.installed
	$(BIN)/python benchmarks/suite.py --publish --peer-python .venv-peer/bin/python \
		$$(test -e .venv-torchlens/.installed && echo --torchlens-python .venv-torchlens/bin/python) $(BENCH)

bench-gate: $(STAMP)
	$(BIN)/python benchmarks/gate.py

fuzz: $(STAMP)
	MSPROBE_FUZZ_EXAMPLES=20000 timeout 900 $(BIN)/python -m pytest tests/faults/test_fault_hostile_files.py
	MSPROBE_FUZZ_EXAMPLES=20000 timeout 900 $(BIN)/python -m pytest tests/faults/test_fault_fuzzed_commands.py
	MSPROBE_FAULT_STEPS=100000 timeout 900 $(BIN)/python -m pytest tests/faults/test_fault_surroundings.py -k flat

$(STAMP): requirements/run.txt requirements/torch.txt requirements/dev.txt $(NATIVE)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -r requirements/dev.txt
	MSPROBE_REQUIRE_NATIVE=$${MSPROBE_REQUIRE_NATIVE:-1} $(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $(STAMP)

.venv-triton/.installed: requirements/triton.txt pyproject.toml
	test -d .venv-triton || $(PYTHON) -m venv .venv-triton
	.venv-triton/bin/python $(PIP) -r requirements/triton.txt
	$(LANE_INSTALL) .venv-triton/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

.venv-npu/.installed: requirements/npu.txt pyproject.toml
	test -d .venv-npu || $(PYTHON) -m venv .venv-npu
	.venv-npu/bin/python $(PIP) -r requirements/npu.txt
	$(LANE_INSTALL) TORCH_DEVICE_BACKEND_AUTOLOAD=0 .venv-npu/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

.venv-mindspore/.installed: requirements/mindspore.txt $(NATIVE)
	test -d .venv-mindspore || $(PYTHON) -m venv .venv-mindspore
	.venv-mindspore/bin/python $(PIP) -r requirements/mindspore.txt
	MSPROBE_REQUIRE_NATIVE=$${MSPROBE_REQUIRE_NATIVE:-1} .venv-mindspore/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

.venv-peer/.installed .venv-torchlens/.installed: .venv-%/.installed: requirements/%.txt
	test -d .venv-$* || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP) -r $<
	touch $@

clean:
	rm -rf .venv .venv-triton .venv-npu .venv-mindspore .venv-peer .venv-torchlens build *.egg-info demo_output kernels/*.so kernels/npu/*.so
