# `make demo` and `make test` do all set-up: they need Python >= 3.11, make and a C++ compiler.

PYTHON ?= python3
EXTRAS ?= cuda13,test,dev
# Torch without CUDA (200 MB), for tests of its tensors in host memory. Where the package index lacks
# this build, it comes from torch's own, which serves torch alone: what torch needs comes from yours,
# as everything else. For torch on a GPU pass TORCH=torch.
TORCH ?= torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Hugging Face's models (130 MB with what it needs), for the tests of their attention.
TRANSFORMERS ?= transformers==5.23.0
# CUTLASS and CuTe (6 MB of headers), for the tests of kernels that include them.
CUTLASS ?= nvidia-cutlass==4.2.0.0
JOBS ?= auto
GPU_JOBS ?= 12

comma := ,
VENV := .venv
BIN := $(VENV)/bin
TEST_PYTHON ?= $(BIN)/python
INSTALLED := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.demo-installed

MEMCHECKED := $(addprefix tests/parity/test_,attention.py batched_matmul.py conv2d.py copies.py \
	grouped_matmul.py matmul.py matmul_epilogues.py matmul_split_k.py matmul_types.py paged_attention.py \
	ragged.py ragged_heads.py scaled_matmul.py)

.PHONY: demo test test-gpu check docs format clean venv memcheck false-alarms peers record

# It needs no formatter, linter, type checker or test: where those are installed it takes that
# environment, and otherwise a smaller one, with CuPy and NVRTC only where there is an NVIDIA driver.
demo: $(or $(wildcard $(INSTALLED)),$(DEMO_INSTALLED))
	$(BIN)/python -m tmaasync demo

# Without bytecode on disk each worker, and each Python that a test starts, compiles all modules.
# NumPy has one thread in each: others wait busily, which was a fifth of the time of convolutions.
test: $(INSTALLED)
	PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 \
		$(BIN)/python -m pytest -m "not gpu" -n $(JOBS) --dist worksteal

# Tests of peers have the GPUs for themselves: a fault in memory of a peer ends the contexts of other
# processes on both GPUs.
PEERS := tests/gpu/test_peers.py tests/gpu/test_symmetric_memory.py

# Where there is a Hopper GPU, in about 10 minutes. With `TEST_PYTHON=python3` nothing is installed:
# that Python has tmaasync's dependencies (pyelftools too), CuPy, torch, pytest, hypothesis,
# pytest-timeout and better pytest-xdist, without which tests run one after the other. JAX would
# take three quarters of the GPU's memory when it is first used, and NumPy's threads would wait
# busily: there is a worker for nearly every core. Where that Python has pytest-benchmark, its
# warning about workers would be an error.
test-gpu: $(if $(filter $(BIN)/python,$(TEST_PYTHON)),$(INSTALLED))
	$(TEST_PYTHON) -c 'import xdist' && jobs='-n $(GPU_JOBS) --dist worksteal' || jobs=; \
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" TMAASYNC_REQUIRE_GPU=1 \
		XLA_PYTHON_CLIENT_PREALLOCATE=false OPENBLAS_NUM_THREADS=1 \
		$(TEST_PYTHON) -m pytest -m gpu $$jobs -p no:benchmark --durations 20 $(addprefix --ignore ,$(PEERS)) && \
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" \
		$(TEST_PYTHON) -m pytest -m gpu -p no:benchmark $(PEERS)

# On a machine with two GPUs or more, in some minutes and without a question: the tests of peers, the
# benchmark of all sizes of world, and the tables of docs/benchmarks.md. Every wait has a budget.
peers: $(if $(filter $(BIN)/python,$(TEST_PYTHON)),$(INSTALLED))
	export PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}"; \
		timeout 600 $(TEST_PYTHON) -m pytest -m gpu -p no:benchmark $(PEERS); failed=$$?; \
		timeout 330 $(TEST_PYTHON) benchmarks/bench_peers.py && $(TEST_PYTHON) tools/write_tables.py && exit $$failed

# On a machine with a Hopper GPU: the benchmarks in this order, each for at most LIMIT_S seconds, of
# which it records the rows that it has; then the tables and pictures of the documents.
LIMIT_S ?= 300
ROUNDS ?= 3
RECORDED := attention_backward attention matmul matmul_epilogue split scaled_matmul grouped conv \
	decode reduce_add ragged copy

record: $(if $(filter $(BIN)/python,$(TEST_PYTHON)),$(INSTALLED))
	export PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}"; \
		for one in $(RECORDED); do \
			timeout $(LIMIT_S) $(TEST_PYTHON) benchmarks/bench_$$one.py --rounds $(ROUNDS); \
		done; \
		timeout $(LIMIT_S) $(TEST_PYTHON) benchmarks/bench_host.py; \
		$(TEST_PYTHON) tools/write_tables.py && $(TEST_PYTHON) tools/plot_results.py

# Lookups of driver functions that this driver lacks are no errors of ours.
memcheck: $(INSTALLED)
	TMAASYNC_REQUIRE_GPU=1 compute-sanitizer --tool memcheck --report-api-errors no --target-processes all \
		--error-exitcode 9 $(BIN)/python -m pytest -q -m gpu -n 8 $(MEMCHECKED)

# Shipped kernels, examples and documents, every launch under 200 schedules: nothing may be reported.
false-alarms: $(INSTALLED)
	$(BIN)/python tools/search_false_alarms.py --seeds 200

check:
	.ci/run

# All pages are written (-a): Sphinx forgets the index entries of pages that it leaves out, and the
# search of the site finds terms by them.
docs: $(VENV)/.docs-installed
	$(BIN)/python -m sphinx -a -W --keep-going -q -j auto -b html docs build/docs

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	find . -name '.?*' -prune -o \( -name '*.cu' -o -name '*.cuh' -o -name '*.hpp' -o -name '*.cpp' \) -print0 \
		| xargs -0 -r $(BIN)/clang-format -i

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	install="$(BIN)/python -m pip install --quiet --disable-pip-version-check"; \
		$$install "$(TORCH)" \
		|| { $$install --no-deps --index-url $(TORCH_INDEX) "$(TORCH)" && $$install "$(TORCH)"; } \
		|| echo "$(TORCH) is in no package index: tests of torch tensors will be skipped"; \
		$$install "$(TRANSFORMERS)" \
		|| echo "$(TRANSFORMERS) is in no package index: tests of its models will be skipped"; \
		$$install --no-deps "$(CUTLASS)" \
		|| echo "$(CUTLASS) is in no package index: tests of its kernels will be skipped"
	touch $@

# The driver's major CUDA version, 12 or 13; nothing where there is no driver.
DRIVER = $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')

$(DEMO_INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	extras=cpu$(patsubst %,$(comma)cuda%,$(filter 12 13,$(DRIVER))); \
		echo "installing tmaasync[$$extras] into $(VENV)"; \
		$(BIN)/python -m pip install --disable-pip-version-check -e ".[$$extras]"
	touch $@

$(VENV)/.docs-installed: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
