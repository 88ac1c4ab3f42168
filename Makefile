# make demo   train a small Llama with the debugger around it, and show what was recorded
# make test   lint, type-check and all tests
# Each makes .venv if it is missing. Set PYTHON to choose the interpreter (3.10 or newer).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
NATIVE := setup.py pyproject.toml $(wildcard kernels/cpu/*.cpp kernels/cpu/*.c kernels/cpu/*.h)

.PHONY: demo test lint types unit bench-overhead clean

demo: $(STAMP)
	$(BIN)/python examples/train_llama.py

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest

bench-overhead: $(STAMP)
	$(BIN)/python benchmarks/overhead.py

# A build for the tests must not fall back silently: a compiler is there, so the native kernels are required.
$(STAMP): requirements/run.txt requirements/torch.txt requirements/dev.txt $(NATIVE)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	MSPROBE_REQUIRE_NATIVE=$${MSPROBE_REQUIRE_NATIVE:-1} $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info demo_output kernels/*.so
