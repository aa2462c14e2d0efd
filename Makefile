# make demo    set up .venv and compare algorithms on a task made on the spot
# make test    set up .venv and run what CI runs: lint, types, tests, doctests
# make test-all  the same, then what is slow or needs more: extras, Flower, Ray, the wheel, the notebook, the site
# make docs    build the documentation site below site/, warnings are errors
# make attack  kill, damage and fuzz for about two hours, and count what became of it: docs/reliability.md
# make bench   set up .venv, install other frameworks beside it, and measure: docs/speed.md

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all extras flower ray docs attack bench lint types clean

demo: $(STAMP)
	$(BIN)/fedkeel run synthetic fedavgcm fedavgcm+gel fedavgcm:server_lr=match-gel fedprox+gel fedyogi+gel \
		--lr 0.005 --rounds 250 --seeds 5 --target 0.85 --overwrite --out runs/demo

test: lint types $(STAMP)
	$(BIN)/pytest -q -n 2 -m "not study and not extra and not flower and not ray"

test-all: test extras flower ray docs

extras: $(STAMP)
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[hf,onnx,notebook]"
	$(BIN)/pytest -q -n 2 -m extra tests

flower: $(STAMP)
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[flower-simulation]"
	$(BIN)/pytest -q -m flower tests

ray: $(STAMP)
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[ray,slurm]"
	$(BIN)/pytest -q -m ray tests

docs: $(STAMP)
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

attack: $(STAMP)
	$(BIN)/python attack/run.py

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt torch numpy
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) site benchmarks/.venvs benchmarks/.data runs .mypy_cache .ruff_cache .hypothesis
