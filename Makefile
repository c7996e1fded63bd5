# All tasks of a developer. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.SECONDEXPANSION:
.DEFAULT_GOAL := help

CACHE := .cache
CUDA  := $(CACHE)/cuda-13.0
# Debian's names of what is needed beside Rust and make.
PACKAGES_BUILD := gcc g++ libc6-dev python3 python3-venv ca-certificates
PACKAGES_DEMO := $(PACKAGES_BUILD) qemu-system-x86 busybox-static cpio kmod \
	xz-utils zstd pahole
PACKAGES_TEST := $(PACKAGES_DEMO) mmdebstrap
PACKAGES_KERNEL := $(PACKAGES_TEST) flex bison bc libelf-dev
PACKAGES_LINT := shellcheck git
PACKAGES_DEBIAN := $(PACKAGES_BUILD) build-essential debhelper dh-dkms dpkg-dev fakeroot lintian mmdebstrap
PACKAGES_IMAGES := mmdebstrap mtools fdisk dosfstools qemu-utils e2fsprogs dpkg-dev
VENV := $(CACHE)/venv
PYTHON := $(VENV)/bin/python3
# What the Python programs build and run: "release", or "dev" with its checks.
export PARAGPU_TEST_PROFILE ?= release
# For Python programs that run what `make build` made.
RELEASE := PARAGPU_TEST_BINARIES="$(CURDIR)/target/release" PARAGPU_TEST_LIBRARIES="$(CURDIR)/out/lib"
# As many jobs as there are cores, where the caller did not say how many.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- what the rest needs -----------------------------------------------------

.PHONY: packages-build packages-demo packages-test packages-lint packages-debian packages-images
packages-build packages-demo packages-test packages-lint packages-debian packages-images: packages-%:
	@tests/tools/install-packages.sh $(PACKAGES_$(shell tr a-z A-Z <<< $*))

.PHONY: vhost-vsock
vhost-vsock: packages-build ## the vhost-user daemon for the vsock of test VMs, into .cache/tools
	@tests/tools/install-vhost-vsock.sh

.PHONY: cuda
cuda: packages-build ## the CUDA 13.0 compiler and the runtimes of 12.9 and 13.5, from their wheels into .cache
	@tests/toolchain/fetch-cuda.sh
	@guest-frontend/redirect/fetch.sh .cache/runtimes 12.9.79 13.5.37

$(VENV)/.complete: tests/requirements.txt
	@$(MAKE) --no-print-directory packages-build
	rm -rf $(VENV)
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: build
build: packages-build ## host programs and guest libraries, into target/release and out/lib
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust, for example with rustup" >&2; exit 1; }
	@echo "== building host programs and guest libraries"
	cargo build --release --workspace
	@$(MAKE) --no-print-directory $(GUEST:%=out/lib/lib%)
	guest-frontend/link/link.sh libparagpu-redirect.so out

# Which targets of cargo `make tested` builds. With the examples, features are
# those of the tests, and nothing is compiled for each of both.
TESTED ?= --lib --bins --examples

.PHONY: tested
tested: packages-build programs ## what the tests run, with all checks, into target/debug and out/debug/lib
	cargo build --workspace $(TESTED)
	@$(MAKE) --no-print-directory $(GUEST:%=out/debug/lib/lib%)
	guest-frontend/link/link.sh libparagpu-redirect.so out/debug

GUEST := cuda.so.1 cudart.so.12 cudart.so.13 nvidia-ml.so.1
# The crate of each.
CRATE_cuda.so.1 := cuda
CRATE_cudart.so.12 := cudart12
CRATE_cudart.so.13 := cudart
CRATE_nvidia-ml.so.1 := nvml
out/lib/lib%: target/release/libparagpu_$$(CRATE_$$*).a guest-frontend/link/link.sh
	guest-frontend/link/link.sh lib$* out
out/debug/lib/lib%: target/debug/libparagpu_$$(CRATE_$$*).a guest-frontend/link/link.sh
	PROFILE=dev guest-frontend/link/link.sh lib$* out/debug

.PHONY: programs
programs: cuda ## the CUDA test programs, into out/programs
	@echo "== building the CUDA test programs"
	@$(MAKE) --no-print-directory -C tests/programs $(JOBS)

.PHONY: module
module: packages-demo ## the guest's kernel module, for Debian's cloud kernel
	@release=$$(vm-images/fetch-kernel.sh .cache); \
	$(MAKE) --no-print-directory -C kernel-module \
		KDIR="$(CURDIR)/.cache/kernel/$$release/headers" OUT="$(CURDIR)/out/module/$$release"; \
	echo "out/module/$$release/paragpu.ko"

.PHONY: packages
packages: packages-debian build ## Debian packages for guests and hosts, into out/packages
	vm-images/packages/build.sh

.PHONY: images
images: packages-images packages ## bootable images of Debian 12 and 13 with the packages, into out/images
	@for release in bookworm:12 trixie:13; do \
		vm-images/build-image.py --reuse $${release%:*} out/images/debian-$${release#*:}-paragpu.qcow2; \
	done

.PHONY: fingerprints
fingerprints: packages-build ## facts about NVIDIA's static runtimes, from their wheels into guest-frontend/redirect
	@guest-frontend/redirect/fingerprints.sh .cache/runtimes

# --- what judges a change ----------------------------------------------------

.PHONY: fmt
fmt: ## format the Rust code
	cargo fmt --all

.PHONY: lint
lint: packages-lint ## clippy, rustfmt, shellcheck, and cargo-deny where installed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --log-level error check bans licenses sources; \
	else echo "cargo-deny is not installed: dependencies not checked (cargo install --locked cargo-deny)"; fi

.PHONY: check
check: export PARAGPU_TEST_PROFILE = dev
check: packages-build cuda ## all that belongs to one crate: make check CRATE=worker; without CRATE, a list of them
	@tests/check.py $(CRATE)

.PHONY: test
test: export PARAGPU_TEST_PROFILE = dev
test: packages-test programs vhost-vsock $(VENV)/.complete ## everything that must hold, in 15 minutes on 2 cores
	@$(PYTHON) tests/run.py

.PHONY: demo
demo: packages-demo build programs vhost-vsock $(VENV)/.complete ## run CUDA programs in a VM and on the host, move the GPU of one, print one table
	@echo "== running the programs in a VM and on this host"
	@$(PYTHON) tests/demo/demo.py

.PHONY: coverage
coverage: packages-build ## which functions are served and where tested, into out/coverage.json and docs/coverage.md
	@mkdir -p out
	@cargo run -q -p paragpu-interface --example coverage -- out/coverage.json docs/coverage.md

.PHONY: bench-programs
bench-programs: cuda
	$(MAKE) -C tests/bench

.PHONY: bench-migrate
bench-migrate: build $(VENV)/.complete ## what recording, replaying and moving sessions cost, into out/bench-migrate.json, with a page
	status=0; python3 tests/bench/bench_migrate.py || status=$$?; $(PYTHON) tests/bench/page.py out/bench-migrate.json; exit $$status

.PHONY: plots
plots: $(VENV)/.complete ## the page of a benchmark from its JSON: make plots DATA=out/bench-gpu.json
	$(PYTHON) tests/bench/page.py $(DATA)

.PHONY: gallery
GALLERY := bench-gpu frameworks libraries bench-migrate experiments/experiments experiments/lammps
gallery: $(VENV)/.complete ## the pages of docs/results from their JSON, and gallery.md with all their plots
	$(PYTHON) tests/bench/page.py --gallery docs/results/gallery.md $(GALLERY:%=docs/results/%.json)

.PHONY: soak-migrate
soak-migrate: build ## 1,000 migrations in a row of a session under load
	cd tests && PARAGPU_TEST_MIGRATIONS=1000 python3 -m unittest end_to_end.test_migration.Migration.test_many_migrations_in_a_row

.PHONY: soak-faults
soak-faults: build ## every fault at every step of a migration
	cd tests && PARAGPU_TEST_FAULTS=all python3 -m unittest end_to_end.test_transfer_faults

.PHONY: soak-operators
soak-operators: build programs ## 3,000 orders of three operators at once, beside kills and cut connections; PARAGPU_TEST_SEED chooses them
	cd tests && PARAGPU_TEST_ACTIONS=1000 python3 -m unittest end_to_end.test_operators

.PHONY: soak-reconnect
soak-reconnect: ## cut connections under load 10,000 times at random bytes; PARAGPU_TEST_SEED says where
	PARAGPU_TEST_CUTS=3400 cargo test --release -p paragpu-worker --test reconnects -- --nocapture --test-threads=1 cut_at

.PHONY: soak-module
soak-module: packages-test build programs ## 1,000 killed users of the kernel module, unplugging and sleep under load, leaks
	tests/vm/soak.sh
	python3 -m unittest -v tests/vm/test_replug.py

.PHONY: test-module-debug
test-module-debug: ## the kernel module in VMs whose kernel has KASAN, lockdep and kmemleak; fetches and builds that kernel once, in a quarter of an hour
	@tests/tools/install-packages.sh $(PACKAGES_KERNEL)
	tests/vm/debug.sh

.PHONY: bench
bench: build bench-programs ## the promises of SPECIFICATION.md as ratios, into out/bench.json
	python3 tests/bench/bench.py

.PHONY: bench-vm
bench-vm: packages-demo build bench-programs vhost-vsock ## round trips and copies in a VM over pci, vsock and tcp, into out/bench-vm.json
	python3 tests/bench/vm_ways.py

.PHONY: bench-vms
bench-vms: packages-demo build bench-programs $(VENV)/.complete ## 1, 2, 4 and 8 VMs or sessions at once, on the GPU if there is one, into out/bench-vms
	status=0; python3 tests/bench/bench_vms.py || status=$$?; $(PYTHON) tests/bench/page.py out/bench-vms/bench-vms.json; exit $$status

.PHONY: experiments
experiments: build programs bench-programs lammps bench-cluster $(VENV)/.complete ## gVirtuS's, rCUDA's and mrCUDA's published experiments, into out/experiments
	python3 tests/bench/experiments.py
	$(PYTHON) tests/bench/page.py out/experiments/experiments.json

PACKAGES_CLUSTER := openmpi-bin libopenmpi-dev iproute2
.PHONY: bench-cluster
bench-cluster: build cuda $(VENV)/.complete ## gVirtuS's product of matrices under MPI, over nodes that share a GPU; network namespaces, root; into out/experiments
	@tests/tools/install-packages.sh $(PACKAGES_CLUSTER)
	$(MAKE) -C tests/bench cluster
	python3 tests/bench/mpi_cluster.py
	$(PYTHON) tests/bench/page.py out/experiments/cluster.json

.PHONY: test-gpu bench-gpu gpu-kit
gpu-kit: build programs bench-programs ## what a machine with a GPU but no compiler needs, into out/gpu-kit
	tests/bench/kit.sh

test-gpu: ## every program on this machine's NVIDIA GPU, compared with native bit for bit
	@tests/bench/gpu.sh test out

bench-gpu: ## speed on this machine's NVIDIA GPU beside native, into out/bench-gpu.json (`make plots` draws its page)
	@tests/bench/gpu.sh bench out

.PHONY: test-gpu-libraries test-frameworks test-suites bench-frameworks test-parity prototypes
prototypes: packages-build ## the prototypes of what is served, into out/prototypes.json
	@mkdir -p out
	@cargo run -q -p paragpu-interface --example prototypes -- out/prototypes.json

test-parity: ## every served function with good and bad arguments, natively and through paragpu; needs out/prototypes.json
	python3 tests/parity/test_parity.py

test-gpu-libraries: ## NVIDIA's libraries through PyTorch on this machine's GPU, compared with native bit for bit; moved while it holds their handles
	python3 tests/frameworks/test_gpu_frameworks.py libraries
	python3 tests/frameworks/test_gpu_frameworks.py --move libraries:handles

test-frameworks: ## PyTorch, JAX, CuPy, Triton, ONNX Runtime and vLLM as they are on this machine's GPU, compared with native; moved, and restored from a file, while they train
	python3 tests/frameworks/test_gpu_frameworks.py torch jax cupy onnx vllm
	python3 tests/frameworks/test_gpu_frameworks.py --move torch:gpt_training_step --restore torch:gpt_training_step

test-suites: ## the frameworks' own tests on this machine's GPU, natively and through paragpu, into out/suites.json
	@mkdir -p out
	python3 tests/frameworks/test_gpu_suites.py --output out/suites.json

bench-frameworks: ## their speed beside native, into out/frameworks.json and out/libraries.json
	@mkdir -p out
	python3 tests/frameworks/test_gpu_frameworks.py --rounds 7 --output out/frameworks.json
	python3 tests/frameworks/test_gpu_frameworks.py --rounds 7 --output out/libraries.json libraries

# --- heavier tiers -----------------------------------------------------------

.PHONY: test-hostile
test-hostile: build ## attacks on the daemon and its workers, into out/hostile.json
	python3 tests/hostile/run.py --output out/hostile.json

# How long, in seconds.
SOAK ?= 3600
.PHONY: soak-hostile
soak-hostile: build $(VENV)/.complete ## attackers beside honest tenants for an hour (SOAK=SECONDS), into out/soak-hostile.json
	$(PYTHON) tests/hostile/soak.py --seconds $(SOAK) --output out/soak-hostile.json

.PHONY: fuzz
fuzz: ## every decoder for FUZZ_SECONDS (600) each, two at a time
	tests/fuzz/run.sh

.PHONY: test-sanitized
test-sanitized: ## the tests of rings, client, worker and software GPU under the address and the thread sanitizer; of CRATES="worker …" the unit tests only
	tests/sanitized/run.sh address $(CRATES)
	tests/sanitized/run.sh thread $(CRATES)

.PHONY: libraries test-libraries
libraries: cuda
	@tests/toolchain/fetch-wheels.sh tests/libraries/libraries.txt .cache/libraries "NVIDIA's libraries (1.5 GB)"
	@$(MAKE) --no-print-directory -C tests/libraries/programs $(JOBS)

test-libraries: build libraries ## cuBLAS, cuDNN, cuFFT, cuRAND, cuSOLVER and cuSPARSE as they are on the software GPU; fetches 1.5 GB into .cache
	$(RELEASE) python3 tests/libraries/test_software_libraries.py

.PHONY: frameworks-software test-frameworks-software
frameworks-software:
	@[ -f .cache/frameworks/.complete ] && cmp -s tests/frameworks/software.txt .cache/frameworks/.complete || { \
		mkdir -p .cache/frameworks && rm -f .cache/frameworks/.complete && \
		python3 -m venv .cache/frameworks/venv && \
		.cache/frameworks/venv/bin/pip install --quiet --no-cache-dir --disable-pip-version-check \
			--requirement tests/frameworks/software.txt && \
		cp tests/frameworks/software.txt .cache/frameworks/.complete; }

test-frameworks-software: build frameworks-software ## stock PyTorch, Triton, CuPy and Numba on the software GPU; fetches 6 GB into .cache
	$(RELEASE) python3 tests/frameworks/test_software_frameworks.py

LLAMA := .cache/llama
.PHONY: llama test-llama
llama: build cuda libraries
	@tests/frameworks/build-llama.sh $(LLAMA)

test-llama: build llama $(VENV)/.complete ## llama.cpp's words, moved while it says them, on this machine's GPU or (DEVICE=software) the software GPU; builds it for half an hour
	$(RELEASE) $(PYTHON) tests/frameworks/test_llama.py --device $(or $(DEVICE),software)

LAMMPS := .cache/lammps
.PHONY: lammps test-lammps
lammps: cuda build ## LAMMPS with its GPU package from Debian's source package, into .cache; builds it for a quarter of an hour
	@tests/tools/install-packages.sh cmake ninja-build dpkg-dev
	@tests/frameworks/build-lammps.sh $(LAMMPS)

test-lammps: lammps $(VENV)/.complete ## LAMMPS's melt and copper, compared with its CPU code, between communicators and while they move, on this machine's GPU or (DEVICE=software) the software GPU
	$(RELEASE) $(PYTHON) tests/frameworks/test_lammps.py --device $(or $(DEVICE),software)

.PHONY: test-vfio-user
test-vfio-user: packages-test build programs ## the device over vfio-user, in VMs of QEMU 11.1 from Debian 13's backports
	tests/tools/fetch-qemu.sh
	PROTOCOL=vfio-user PARAGPU_QEMU="$(CURDIR)/.cache/qemu-vfio-user" tests/vm/run.sh out/vm-vfio-user
	cd tests && python3 -m unittest -v vfio_user.test_vfio_user

.PHONY: bench-vfio-user
bench-vfio-user: packages-demo build bench-programs ## copies through the window and straight from and to a VM's memory, into out/bench-vfio-user.json
	tests/tools/fetch-qemu.sh
	python3 tests/vfio_user/bench_copies.py

.PHONY: test-packages
test-packages: packages programs ## install, use, upgrade and purge the packages in bare Debians 12 and 13
	tests/packages/run.sh

.PHONY: test-images
test-images: images programs ## boot the images in VMs, run programs there; install into plain cloud images by user-data; hosts under systemd
	@tests/tools/install-packages.sh qemu-system-x86 ovmf
	@for release in bookworm:12 trixie:13; do \
		vm-images/build-image.py --reuse --plain --fetch out/images/debian-$${release#*:}-packages \
			$${release%:*} out/images/debian-$${release#*:}-plain.qcow2; \
	done
	cd tests && python3 -m unittest -v images.test_images

PACKAGES_POOL := $(PACKAGES_BUILD) slurmctld slurmd slurm-client slurmdbd mariadb-server-core munge iproute2 faketime
# A revision whose paragpud joins the pool, too: built once, in minutes.
OLDER ?=
.PHONY: test-pool
test-pool: RELEASE += $(if $(OLDER),PARAGPU_TEST_OLDER=$(CURDIR)/$(CACHE)/older)
test-pool: build ## a pool under Slurm: leases, drain, lost hosts; software GPUs, network namespaces, root; out/pool.json, out/shares.json; with OLDER=REVISION a daemon of that, too
	@tests/tools/install-packages.sh $(PACKAGES_POOL)
	@$(if $(OLDER),tests/tools/build-older.sh $(OLDER) $(CACHE)/older)
	@$(RELEASE) python3 tests/pool/run.py
	@$(RELEASE) python3 tests/pool/shares.py
	@python3 tests/pool/simulate.py out/pool.json

.PHONY: picture-of-dashboard
picture-of-dashboard: build $(VENV)/.complete ## docs/grafana.json as a pool under load fills it, drawn into docs/grafana.svg; Prometheus, Slurm, root
	@tests/tools/install-packages.sh $(PACKAGES_POOL) prometheus
	@$(RELEASE) $(PYTHON) tests/pool/dashboard.py

.PHONY: test-nvidia-smi
test-nvidia-smi: build ## Debian's nvidia-smi in a guest, on the software GPU; fetches it into .cache
	tests/nvml/fetch-nvidia-smi.sh
	@$(RELEASE) python3 tests/nvml/test_nvidia_smi.py

.PHONY: test-nvml-tools
test-nvml-tools: build ## nvtop, btop, gpustat, nvitop and others in a guest, on the software GPU; fetches them into .cache
	tests/nvml/fetch-nvidia-smi.sh
	tests/nvml/fetch-tools.sh
	@$(RELEASE) python3 tests/nvml/test_tools.py

PACKAGES_KUBERNETES := $(PACKAGES_BUILD) etcd-server openssl
.PHONY: test-kubernetes
test-kubernetes: build programs ## claims under a real control plane, built once with Go (minutes), without a kubelet; software GPUs, root; out/kubernetes.json
	@tests/tools/install-packages.sh $(PACKAGES_KUBERNETES)
	@tests/kubernetes/build.sh $(CURDIR)/$(CACHE)/kubernetes
	cargo build --release -p paragpu-kubernetes --example kubelet
	@$(RELEASE) python3 tests/kubernetes/run.py

.PHONY: test-libvirt
test-libvirt: packages-demo packages programs ## attach, run, detach, migrate under real libvirtds in bare Debians 12
	tests/libvirt/run.sh

.PHONY: clean
clean: ## everything built; keeps .cache
	rm -rf out
	cargo clean
