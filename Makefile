# SPDX-License-Identifier: Apache-2.0
# Every target works directly after a clone. Tools are pinned in requirements.txt and installed in
# .venv when needed.
#
#   make install PREFIX=/usr/local   also DESTDIR
#   make test FAMILY=rows            tests of one family; TESTS="tests/cpu -k gelu" selects tests
#   make test KF_LEVEL=2             1 (default, CI), 2, 3: all tests of a level
#   make level2 WORKERS=16           before a release: tests all functions and records the results;
#                                    KF_FAMILIES="row map" selects families. For many cores or
#                                    GPUs: tests/support/level2/run.py, docs/testing.md
#   make robust LOG=FILE             on a GPU: properties besides numerical results
#   make demo NVCC=                  without nvcc
#   make ... PYTHON=python3.12       Python (3.11 or newer) for .venv
PREFIX ?= /usr/local
KF_LEVEL ?= 1
TESTS ?= tests
WORKERS ?= 2
ifeq ($(origin CC),default)
CC := gcc
endif
# Finds nvcc in the CUDA toolkit's default directory if it is not in PATH.
ifeq ($(origin NVCC),undefined)
NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
endif
ifeq ($(origin PYTHON),undefined)
PYTHON := $(firstword $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; \
    done) python3)
endif

VENV := .venv
# kfgen only needs jinja2: from the virtual environment if it exists, else from the system.
HAS_JINJA := -c 'import jinja2, sys; v = jinja2.__version__.split("."); \
    sys.exit((int(v[0]), int(v[1])) < (3, 1))' 2>/dev/null
KFPYTHON = $$([ -e $(VENV)/demo.stamp ] && echo $(VENV)/bin/python || echo $(PYTHON))
KFGEN = $(KFPYTHON) gen/bin/kfgen
PIP = $(VENV)/bin/python -m pip --quiet --disable-pip-version-check install
FAIL = { echo "kf: $(1)" >&2; exit 1; }
# Compiles for this machine, with OpenMP if the compiler supports it.
CPU_FLAGS = -O3 $$(for f in -march=native -fopenmp; do echo 'int main(void) { return 0; }' | \
    $(CC) $$f -xc - -o build/probe 2>/dev/null && echo $$f; done)

# Uses the system's Python if it has PyTorch, which benchmarks compare with.
BENCH_PYTHON ?= $$($(PYTHON) -c 'import sys, importlib.util as u; \
    sys.exit(not all(map(u.find_spec, ("torch", "numpy", "scipy", "jinja2"))))' && \
    echo $(PYTHON) || echo $(VENV)/bin/python)

# A release archive contains the installed files and their list: it needs neither Python nor kfgen.
INSTALLED := share/kf/installed.txt
READY := $(wildcard $(INSTALLED))
# A relative prefix is relative to make's directory, as in kfgen.
TREE = $(DESTDIR)$(if $(filter /%,$(firstword $(PREFIX))),,$(CURDIR)/)$(PREFIX)

.PHONY: help demo headers install uninstall dist test check update frontends level2 robust bench \
    format clean python cc cxx jinja

help:
	@echo 'make demo                  compile and run a few kernels, on the GPU or on the CPU'
	@echo 'make test                  generator, pages, Python, a thin cover of numbers; FAMILY=rows'
	@echo 'make check                 the rest of what continuous integration runs'
	@echo 'make update                regenerate lists of ops in docs, README and the ABI'
	@echo 'make frontends             install PyTorch into .venv, for tests of the package'
	@echo 'make level2                test at KF_LEVEL=2 and record the results'
	@echo 'make robust LOG=FILE       on a GPU: graphs, streams, repeats, 2^31 elements'
	@echo 'make install PREFIX=DIR    install headers, for -I DIR/include'
	@echo 'make uninstall PREFIX=DIR  remove installed files'
	@echo 'make dist                  build/dist: release archive, and kf as single files'
	@echo 'make headers               generate headers into build/include'
	@echo 'make bench                 benchmark against a copy and, if installed, PyTorch'
	@echo 'make format                format and lint'
	@echo 'make clean                 remove build (the tools stay in .venv)'

demo: headers cc
	@echo "Compiling examples/demo_cpu.c$(if $(NVCC), and examples/demo_cuda.cu)"
	@$(CC) $(CPU_FLAGS) -isystem include -isystem build/include examples/demo_cpu.c \
	    -o build/demo_cpu -lm
	@if [ -z "$(NVCC)" ]; then \
	    echo "No nvcc in PATH or in /usr/local/cuda: the demo runs on the CPU."; build/demo_cpu; \
	elif ! $(NVCC) -O3 -arch=native -isystem include -isystem build/include examples/demo_cuda.cu \
	        -o build/demo_cuda >build/demo_cuda.log 2>&1; then \
	    echo "nvcc cannot compile the demo (build/demo_cuda.log): it runs on the CPU."; \
	    build/demo_cpu; \
	else \
	    build/demo_cuda; status=$$?; \
	    if [ $$status = 77 ]; then build/demo_cpu; else exit $$status; fi; \
	fi

headers: jinja
	@mkdir -p build && $(KFGEN) render --out build/include --stamp build/headers.stamp

install: $(if $(READY),,jinja)
ifeq ($(READY),)
	@$(KFGEN) install --prefix "$(PREFIX)" --destdir "$(DESTDIR)"
else
	@while read -r file; do \
	    mkdir -p "$(TREE)/$${file%/*}" && install -m 644 "$$file" "$(TREE)/$$file" || exit 1; \
	done < $(INSTALLED)
	@# -isystem /usr/include, a default path anyway, would break #include_next in C++'s headers.
	@[ "$(PREFIX)" != /usr ] || \
	    sed 's/ -isystem .*//' share/pkgconfig/kf.pc >"$(TREE)/share/pkgconfig/kf.pc"
endif
	@echo "Installed in $(TREE)/include/kf. Compile with -isystem $(PREFIX)/include," \
	    "C programs also with -lm."

uninstall:
	@[ -f "$(TREE)/$(INSTALLED)" ] || \
	    $(call FAIL,no kf is installed in $(TREE): $(INSTALLED) is not there)
	@cd "$(TREE)" && list=$$(cat $(INSTALLED)) && echo "$$list" | \
	    while read -r file; do rm -f "$$file"; done
	@cd "$(TREE)" && rmdir include/kf/core/*/ include/kf/any include/kf/ops include/kf/core \
	    include/kf/runtime include/kf share/cmake/kf share/kf 2>/dev/null || true

dist: jinja
	@$(KFPYTHON) gen/dist.py build/dist

# The tests of level 1 run in two tiers (tests/support/runs/tiers.py): test and check. A level, a
# choice of tests or a family of one's own runs as it is given. loadgroup sends one test at a time
# to an idle worker; by default xdist sends batches.
PYTEST = PATH="$(CURDIR)/$(VENV)/bin:$$PATH" KF_LEVEL=$(KF_LEVEL) KF_FAMILY=$(FAMILY) KF_TIER=$(1) \
    $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(TESTS)
test: $(VENV)/test.stamp cc cxx
	@$(call PYTEST,$(if $(filter 1tests,$(KF_LEVEL)$(TESTS)$(FAMILY)),quick))

check: $(VENV)/test.stamp cc cxx
	@$(call PYTEST,rest)

# The last command refuses changes that break compiled programs; it then writes nothing.
update: $(VENV)/test.stamp
	@$(VENV)/bin/python gen/bin/kfgen docs
	@KF_UPDATE=1 $(VENV)/bin/python -m pytest -q -n 0 -k "own or counted or launcher" \
	  tests/docs/test_readme.py tests/docs/test_which_function.py
	@KF_UPDATE_GOLDEN=1 $(VENV)/bin/python -m pytest -q -n 0 tests/gen/test_abi.py -k golden

# Installs PyTorch, which tests/frontends use if it is present.
frontends: $(VENV)/frontends.stamp

level2:
	@$(MAKE) --no-print-directory test KF_LEVEL=2
	@$(VENV)/bin/python tests/support/runs/promises.py build/promises.json

LOG ?= build/robust.txt
robust: $(VENV)/test.stamp
	@PATH="$(if $(NVCC),$(patsubst %/,%,$(dir $(NVCC))):)$$PATH" KF_LEVEL=$(KF_LEVEL) \
	    $(VENV)/bin/python tests/cuda/robust.py --log "$(LOG)"

bench: $(VENV)/bench.stamp headers cc
	@$(BENCH_PYTHON) bench/bench.py $(BENCH)

format: $(VENV)/test.stamp
	@$(VENV)/bin/ruff check --fix .
	@find include frontends tests examples bench -name '*.h' -o -name '*.c' -o -name '*.cu' \
	    -o -name '*.cuh' | xargs $(VENV)/bin/clang-format -i

clean:
	rm -rf build

# Required tools; each error names the command that installs the tool.
cc:
	@mkdir -p build
	@command -v $(CC) >/dev/null || $(call FAIL,$(CC) is missing: apt install gcc libc6-dev)
	@echo '#include <stdio.h>' | $(CC) -fsyntax-only -xc - 2>/dev/null || \
	    $(call FAIL,the C headers are missing: apt install libc6-dev)

cxx:
	@command -v g++ >/dev/null || $(call FAIL,g++ is missing: apt install g++)

python:
	@command -v $(PYTHON) >/dev/null || \
	    $(call FAIL,$(PYTHON) is missing: apt install python3 python3-venv)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    $(call FAIL,$$($(PYTHON) --version) is too old$(NEEDED))

comma := ,
NEEDED := $(comma) kf needs 3.11: apt install python3.11 python3.11-venv

jinja: python
	@$(PYTHON) $(HAS_JINJA) || $(MAKE) --no-print-directory $(VENV)/demo.stamp

$(VENV)/bin/python: | python
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    $(call FAIL,python3-venv is missing: apt install python3-venv)
	@$(PYTHON) -m venv $(VENV)

# Stamps: only a change of the pinned versions installs them again.
$(VENV)/demo.stamp: requirements.txt | $(VENV)/bin/python
	@$(PIP) $$(grep '^jinja2==' requirements.txt) || \
	    $(call FAIL,pip cannot install jinja2 (see above); instead: apt install python3-jinja2)
	@touch $@

$(VENV)/test.stamp: requirements.txt | $(VENV)/bin/python
	@echo "Installing the pinned tools of requirements.txt in $(VENV)"
	@$(PIP) -r requirements.txt || $(call FAIL,pip cannot install requirements.txt (see above))
	@touch $(VENV)/demo.stamp $@

$(VENV)/frontends.stamp: requirements-frontends.txt $(VENV)/test.stamp
	@$(PIP) -r requirements-frontends.txt || \
	    $(call FAIL,pip cannot install requirements-frontends.txt (see above))
	@touch $@

$(VENV)/bench.stamp: requirements-bench.txt $(VENV)/test.stamp
	@$(PIP) -r requirements-bench.txt || \
	    $(call FAIL,pip cannot install requirements-bench.txt (see above))
	@touch $@
