# Entry points for people; CMake does the work. `make help` lists them.
MAKEFLAGS += --no-print-directory
JOBS ?= $(shell nproc)
DOCUMENT ?= /usr/share/common-licenses/GPL-3
QUESTION ?= Summarise the document in three sentences.
FUZZ_SECONDS ?= 60
PEER ?= llama-cpp-python==0.3.36
# ccache does not know precompiled headers.
CMAKE_FLAGS ?= $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON) $(if $(CI),-DREPRISE_WERROR=ON)
CPP_FILES = $(shell find include src tests examples tools \
  -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')
FUZZ_TARGETS = $(basename $(notdir $(wildcard tests/fuzz/fuzz_*.cc)))

.DEFAULT_GOAL := help
.PHONY: help run test debug bench peer fuzz docs format lint setup setup-dev model configure build \
  clean

help:  ## list the targets
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || \
	  sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  \1: \2/p' Makefile

run: configure model  ## set up, build, fetch the model, then read a long document and answer
	@cmake --build build -j $(JOBS) --target reprise
	build/reprise run -f "$(DOCUMENT)" -p "$(QUESTION)" --repeat-penalty 1.1 -n 160

test: build  ## build and run all tests
	@tools/fetch_model.py || echo "tests that need the default model will be skipped"
	ctest --test-dir build --output-on-failure -j $(JOBS)

debug: setup-dev model  ## the whole test suite under AddressSanitizer and UBSan
	cmake --preset debug $(CMAKE_FLAGS)
	cmake --build build-debug -j $(JOBS)
	ctest --test-dir build-debug --output-on-failure -j $(JOBS)

bench: build model  ## measure this machine and the engine on it
	build/reprise bench

peer: setup  ## install llama.cpp for `reprise bench --peer llama.cpp` (compiles for minutes)
	test -x .venv-peer/bin/python || python3 -m venv .venv-peer
	CMAKE_ARGS=-DGGML_NATIVE=ON .venv-peer/bin/pip install "$(PEER)"

fuzz: setup-dev  ## run every fuzz target for FUZZ_SECONDS (60), in parallel
	cmake --preset fuzz $(CMAKE_FLAGS)
	cmake --build build-fuzz -j $(JOBS) --target $(FUZZ_TARGETS)
	tools/fuzz.sh build-fuzz $(FUZZ_SECONDS) $(JOBS)

docs: build  ## write the policies' options into docs/policies.md
	@sed -i -e '/^<!-- begin/,/^<!-- end/{//!d}' docs/policies.md
	@build/reprise policies --markdown | sed -i '/^<!-- begin/r /dev/stdin' docs/policies.md

format: setup-dev  ## format all C++ files in place
	@clang-format -i $(CPP_FILES)

lint: setup-dev  ## clang-format, and clang-tidy (not of CUDA code); every finding is an error
	clang-format --dry-run -Werror $(CPP_FILES)
	cmake --preset lint
	find src examples tests tools -name '*.cc' -not -path '*/cuda/*' -not -path '*/gpu/*' \
	  -print0 | \
	  xargs -0 -n 1 -P $(JOBS) clang-tidy -p build-lint --quiet

setup:  ## install the packages that the build needs
	@tools/setup.sh

setup-dev:  ## also install clang, its tools and redis-server (for tests)
	@tools/setup.sh --dev

model: setup  ## fetch the default model into the cache
	@tools/fetch_model.py

configure: setup
	@test -f build/build.ninja || cmake --preset release $(CMAKE_FLAGS)

build: configure  ## build the release version into build/
	@cmake --build build -j $(JOBS)

clean:  ## remove everything that was built
	rm -rf build build-debug build-fuzz build-lint build-tsan .venv .venv-peer
