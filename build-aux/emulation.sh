# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2154 # cache is of cache.sh
#
# Programs of another architecture, by qemu's user-mode emulation. Sourced after cache.sh,
# suite.sh and root.sh.

# The first 20 bytes of an ELF file: 64 bits, little-endian, a program or a shared object.
# The mask leaves out the ABI's number and the bit in which the last two differ.
elf_magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00'
elf_mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'

# emulate ARCH: let the kernel run programs of that architecture by qemu, here and in
# chroots, until the machine is booted again. Installing Debian's qemu-user-binfmt has the
# same effect.
emulate() {
	local number
	case $1 in
	"$(uname -m)") return 0 ;;
	aarch64) number='\xb7\x00' ;;
	x86_64) number='\x3e\x00' ;;
	*) die "programs of $1 can't be emulated" ;;
	esac
	# qemu's default CPU, "max", has SME, with vectors of 256 bits. On a CPU with SME, OpenBLAS
	# 0.3.34 (numpy 2.5.5) multiplies matrices in dgemm_sme_compute_16x16_tile, which takes
	# vectors to have 512 bits and never asks. Of 2,816 small products three in four were wrong
	# with 128, 256 and 1,024 bits; none was with 512 bits, with sme=off, or on any CPU without
	# SME. The emulation is right, but the CPU should be one that people have.
	[[ $1 != aarch64 ]] || export QEMU_CPU=${QEMU_CPU:-neoverse-n1}
	need_root "emulating programs of $1"
	cached emulator make_emulator
	with_lock emulator register_emulator "$1" "$number"
}

# Debian 12's qemu is too old for programs of Debian 13 and for new kernels.
make_emulator() {
	mkdir "$1"
	suite_update trixie
	suite_download trixie "$1/debs" qemu-user
	dpkg-deb -x "$1"/debs/*.deb "$1/files"
	cp "$1"/files/usr/bin/qemu-{aarch64,x86_64} "$1/"
	rm -r "$1/debs" "$1/files"
}

# register_emulator ARCH NUMBER: unless it is. F: the emulator is opened now, so that it
# works in chroots; P: programs get the argv[0] that they were started with.
register_emulator() {
	local misc=/proc/sys/fs/binfmt_misc
	# As systemd does. Linux 6.7 and later forget what is registered when it is unmounted.
	[[ -e $misc/register ]] || mount -t binfmt_misc binfmt_misc "$misc"
	[[ -e $misc/speed-bump-$1 ]] ||
		printf '%s' ":speed-bump-$1:M::$elf_magic$2:$elf_mask:$cache/emulator/qemu-$1:FP" > "$misc/register"
}
