# SPDX-License-Identifier: MIT
# The usual commands. Each target installs what it needs; the work is done in build-aux/,
# meson.build, driver/Kbuild and selftests/guest/.

prefix ?= /usr/local

.PHONY: all demo check check-all check-debug check-pythons check-sanitize check-torture check-packages check-cluster check-attach check-frameworks \
	build docs deb wheels bench bench-rank bench-peers bench-others bench-honest install module help

all: build

help:
	@echo 'make demo     slow functions of a real program, Python and native, and see which matter'
	@echo 'make check    every test; the module is tested in guests with stock kernels'
	@echo 'make check-all    the module on every kernel, x86_64 and arm64 (long)'
	@echo 'make check-debug  the module on a kernel with KASAN, lockdep and other checks'
	@echo 'make check-pythons   the Python package with every CPython from 3.10 to 3.15'
	@echo 'make check-sanitize  the Python package under sanitizers; leaks'
	@echo 'make check-torture   CPython'\''s own tests with the hook in force'
	@echo 'make check-cluster   jobs of many ranks by torchrun, Open MPI, Slurm and Ray Train, on two'
	@echo '                     hosts made of namespaces; RUNS=20: each known answer so many times'
	@echo 'make check-attach    attaching to running programs, 1,000 times each (takes hours)'
	@echo 'make check-frameworks  the unit of work of each framework, with the real packages'
	@echo 'make check-packages  the packages in fresh systems of Debian 12, 13 and unstable'
	@echo 'make build    libsb, sbctl and the unit tests in build/'
	@echo 'make docs     the documentation as a site with search, in build/docs/html'
	@echo 'make deb      Debian packages for 12, 13 and unstable in build/deb/'
	@echo '              RELEASES="12 13": only these, also for check-packages'
	@echo 'make wheels   an sdist and manylinux wheels in build/wheels/, x86_64 and aarch64, tested on'
	@echo '              Debian 11, 12 and 13'
	@echo 'make bench    the costs of a hit and a call, compared with the minimum; then bench-rank'
	@echo 'make bench-rank   how often rank is right (takes hours; RUNS=1: each program once)'
	@echo 'make bench-peers  rank compared with py-spy, Scalene, perf and Coz (takes hours; RUNS=1: once)'
	@echo 'make bench-others rank without any option on programs of pyperformance, a minute each'
	@echo 'make bench-honest functions of real programs made faster: is the gain what rank predicts?'
	@echo 'make module   the kernel module for the running kernel'
	@echo 'make install  libsb and sbctl below prefix ($(prefix))'
	@echo 'pip install . the Python package'

demo check check-all check-debug check-pythons check-sanitize check-torture check-cluster check-attach check-frameworks build docs wheels bench bench-rank bench-peers bench-others bench-honest:
	@build-aux/$@

deb check-packages:
	@build-aux/$@ $(RELEASES)

module:
	$(MAKE) -C driver

install:
	@prefix=$(prefix) build-aux/install
