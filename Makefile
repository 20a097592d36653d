# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH ?= 2.11.0

.PHONY: help setup demo test oldest docs lint types lock sbom clean

help:
	@echo "make demo   train, fold and compare a plain and a stepped network (two minutes, no GPU, no download)"
	@echo "make test   lint, types and the whole test suite"
	@echo "make oldest the test suite with the oldest torch that is supported, in .venv-oldest"
	@echo "make docs   the site, into build/site (needs no network)"
	@echo "make setup  only create .venv and install into it"
	@echo "make lock   write down the installed versions; make sbom: what is installed, as CycloneDX"

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("timestepper needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,test]'
	@touch $@

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/timestepper demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Three processes of one thread each keep two cores busy: one of them usually waits for a process that it watches.
test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

# An older torch compiles less than the newest one; TORCH=… takes another.
oldest:
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) --editable '.[all,test]'
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -n 3 --dist worksteal

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

# The versions that this very environment was tested with; `pip install -c requirements.lock .[all]` takes them again.
lock: $(STAMP)
	$(BIN)/python -c 'import platform as p; print("#", "Python", p.python_version() + ",", p.platform() + "; written by make lock")' > requirements.lock
	$(BIN)/python -m pip freeze --exclude-editable >> requirements.lock

# A software bill of materials (CycloneDX) of the installed environment, by a tool of its own that stays out of it.
sbom: $(STAMP)
	$(PYTHON) -m venv $(VENV)-sbom
	$(VENV)-sbom/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom
	$(VENV)-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible -o sbom.json $(BIN)/python

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-sbom build dist demo .mypy_cache .ruff_cache .pytest_cache
