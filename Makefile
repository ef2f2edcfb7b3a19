# `make demo` and `make test` do all set-up: they need Python >= 3.11, make and a C++ compiler.

PYTHON ?= python3
CUDA ?= cuda13
# What `make test-all` installs and `make test` does not. Torch without CUDA (200 MB), for tests of its
# tensors in host memory: where the package index lacks this build, it comes from torch's own, which
# serves torch alone: what torch needs comes from yours, as everything else. For torch on a GPU pass
# TORCH=torch.
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
# The environments grow: demo, test, everything.
INSTALLED := $(VENV)/.installed
TEST_INSTALLED := $(VENV)/.test-installed
DEMO_INSTALLED := $(VENV)/.demo-installed
TEST_READY := $(or $(wildcard $(INSTALLED)),$(TEST_INSTALLED))
DEMO_READY := $(or $(wildcard $(INSTALLED)),$(wildcard $(TEST_INSTALLED)),$(DEMO_INSTALLED))
# Python compiles what is imported; pip would compile all of torch and transformers, 20 s of a core.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL_TORCH = $(PIP) "$(TORCH)" \
	|| { $(PIP) --no-deps --index-url $(TORCH_INDEX) "$(TORCH)" && $(PIP) "$(TORCH)"; }

MEMCHECKED := $(addprefix tests/parity/test_,attention.py batched_matmul.py conv2d.py copies.py \
	grouped_matmul.py matmul.py matmul_epilogues.py matmul_split_k.py matmul_types.py paged_attention.py \
	ragged.py ragged_heads.py scaled_matmul.py)

.PHONY: demo quick test test-all test-triton test-gpu check docs format clean venv memcheck false-alarms peers record

# It needs no formatter, linter, type checker or test: where those are installed it takes that
# environment, and otherwise a smaller one, with CuPy and NVRTC only where there is an NVIDIA driver.
demo: $(DEMO_READY)
	$(BIN)/python -m tmaasync demo

# Without bytecode on disk each worker, and each Python that a test starts, compiles all modules.
# NumPy has one thread in each: others wait busily, which was a fifth of the time of convolutions.
PYTEST = PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# Tests on a GPU, and tests with packages that `make test` does not install.
WITHOUT_GPU := --ignore tests/gpu
WITHOUT_EXTRAS := $(WITHOUT_GPU) $(addprefix --ignore ,tmaasync/torch tests/with_torch \
	tests/benchmarks/test_attention_peer.py \
	$(addprefix tests/parity/test_,cutlass.py flash_attn.py torch_signatures.py))

# tests/parity/test_limits.py runs these with a compiler that traps where an integer overflows.
RUN_BY_ANOTHER := --ignore tests/parity/test_wrong_tables.py

# The layers without a compiler, and one kernel of each family.
QUICK := tests/arrays tests/tensormap tests/wgmma $(addprefix tests/,$(addsuffix .py, \
	lint/test_ptx kernel/test_prepared_launch package/test_errors package/test_public_names \
	source/test_sources $(addprefix tiles/test_,barrier graph_tiles im2col pipeline ragged registers \
	split swizzle tile tile_array) $(addprefix ops/test_,allocation call_cache conv2d paged_attention \
	ragged scaled_matmul split_kv))) \
	$(addprefix tests/parity/test_, \
	attention.py::test_a_result_of_its_own \
	attention_backward.py::test_head_dims_and_types \
	conv2d.py::test_relu_hands_nan_on \
	copies.py::test_windows_of_every_rank \
	grouped_matmul.py::test_a_neighbours_nan_stays_with_the_neighbour \
	k_grouped_matmul.py::test_operands_that_tma_cannot_read_are_staged \
	matmul.py::test_tiles_whose_columns_fill_no_line \
	ragged.py::test_random_batches_move_and_nothing_else_does \
	reduce_add.py::test_windows_of_a_stack_are_added_again \
	scaled_matmul.py::test_either_fp8_type_goes_with_either)

quick: $(TEST_READY)
	$(PYTEST) -m "not gpu and not slow" $(QUICK)

test: $(TEST_READY)
	$(PYTEST) -m "not gpu and not slow" $(WITHOUT_EXTRAS)

# Where a package is missing, it fails instead of skipping tests.
test-all: $(INSTALLED)
	TMAASYNC_REQUIRE_EXTRAS=1 $(PYTEST) -m "not gpu" $(WITHOUT_GPU) $(RUN_BY_ANOTHER)
	$(MAKE) test-triton

# Triton (200 MB) lies in a folder of its own: where it is installed, torch and `check` import it.
TRITON ?= triton==3.9.0
TRITON_FOLDER ?= $(VENV)/triton

$(TRITON_FOLDER): $(INSTALLED)
	$(PIP) --no-deps --target $@ "$(TRITON)"

test-triton: $(TRITON_FOLDER)
	PYTHONPATH="$(TRITON_FOLDER)" $(PYTEST) -q -p no:benchmark \
		tests/emulate/test_triton_programs.py tests/emulate/test_gluon_programs.py \
		tests/documents/test_notebooks.py

# These tests have the GPUs for themselves: a fault in memory of a peer ends the contexts of other
# processes on both GPUs, large arrays leave them no memory, and a hang is timed.
PEERS := tests/gpu/test_peers.py tests/gpu/test_symmetric_memory.py tests/gpu/test_ops_of_ranks.py
ALONE := $(PEERS) tests/gpu/test_large_arrays.py tests/gpu/test_hangs.py

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
		$(TEST_PYTHON) -m pytest -m gpu $$jobs -p no:benchmark --durations 20 $(addprefix --ignore ,$(ALONE)) && \
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" \
		$(TEST_PYTHON) -m pytest -m gpu -p no:benchmark $(ALONE)

# On a machine with two GPUs or more, in some minutes and without a question: the tests of peers, the
# benchmark of all sizes of world, and the figures in the documents. Every wait has a budget.
peers: $(if $(filter $(BIN)/python,$(TEST_PYTHON)),$(INSTALLED))
	export PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}"; \
		timeout 900 $(TEST_PYTHON) -m pytest -m gpu -p no:benchmark $(PEERS); failed=$$?; \
		timeout 330 $(TEST_PYTHON) benchmarks/bench_peers.py && \
		timeout 530 $(TEST_PYTHON) benchmarks/bench_rank_matmuls.py && \
		timeout 530 $(TEST_PYTHON) benchmarks/bench_rank_scaled.py && \
		timeout 230 $(TEST_PYTHON) benchmarks/bench_torch_group.py && $(TEST_PYTHON) tools/write_tables.py && exit $$failed

# On a machine with a Hopper GPU: the benchmarks in this order, each for at most LIMIT_S seconds, of
# which it records the rows that it has; then the tables of the documents.
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
		$(TEST_PYTHON) tools/write_tables.py

# Lookups of driver functions that this driver lacks are no errors of ours.
memcheck: $(INSTALLED)
	TMAASYNC_REQUIRE_GPU=1 compute-sanitizer --tool memcheck --report-api-errors no --target-processes all \
		--error-exitcode 9 $(BIN)/python -m pytest -q -m gpu -n 8 $(MEMCHECKED)

# Shipped kernels, examples and documents, every launch under 200 schedules: nothing may be reported.
false-alarms: $(INSTALLED)
	$(BIN)/python tools/search_false_alarms.py --seeds 200

check:
	.ci/run

# The reference imports tmaasync.torch. All pages are written (-a): Sphinx forgets the index entries of
# pages that it leaves out, and the search of the site finds terms by them.
docs: $(VENV)/.docs-installed
	$(BIN)/python -m sphinx -a -W --keep-going -q -j auto -b html docs build/docs

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	find . -name '.?*' -prune -o \( -name '*.cu' -o -name '*.cuh' -o -name '*.hpp' -o -name '*.cpp' \) -print0 \
		| xargs -0 -r $(BIN)/clang-format -i

venv: $(INSTALLED)

$(TEST_INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[$(CUDA),test]"
	touch $@

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[$(CUDA),test,dev]"
	$(INSTALL_TORCH)
	$(PIP) "$(TRANSFORMERS)"
	$(PIP) --no-deps "$(CUTLASS)"
	touch $@

# The driver's major CUDA version, 12 or 13; nothing where there is no driver.
DRIVER = $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')

$(DEMO_INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	extras=cpu$(patsubst %,$(comma)cuda%,$(filter 12 13,$(DRIVER))); \
		echo "installing tmaasync[$$extras] into $(VENV)"; \
		$(BIN)/python -m pip install --disable-pip-version-check -e ".[$$extras]"
	touch $@

$(VENV)/.docs-installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[docs]"
	$(INSTALL_TORCH)
	touch $@

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
