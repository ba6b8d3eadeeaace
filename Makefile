# `make demo` trains ProtoFSSL on handwritten digits; `make test` checks everything.
# Both first build .venv from the pinned versions in requirements/.

PYTHON ?=
VENV := .venv
RUN := $(VENV)/bin/python
LOCK := uv pip compile --universal --python-version 3.9 --generate-hashes \
        --no-emit-index-url --no-annotate --no-header --quiet

REFERENCE_DIR ?=

.PHONY: demo test reference lint install lock clean

demo: install
	$(RUN) main.py --exp_name=demo --overwrite

test: lint
	$(RUN) -m pytest

# Holds runs of ours against recordings of the authors' program in REFERENCE_DIR.
reference: install
	$(RUN) -m pytest -m reference --reference-dir=$(REFERENCE_DIR)

lint: install
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

install: $(VENV)/installed

$(VENV)/installed: requirements/build.txt requirements/lock.txt setup.py scripts/install.sh
	@PYTHON="$(PYTHON)" bash scripts/install.sh $(VENV)

# Only for maintainers: pins anew what requirements/*.in ask for (needs uv).
lock:
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) requirements/runtime.in --override requirements/overrides.txt \
	        -o requirements/lock.txt

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
