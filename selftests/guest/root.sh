# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2154 # cache, guest and repo are of cache.sh
#
# Complete systems of other Debian suites, for builds and for arm64 guests. Sourced after
# cache.sh and suite.sh.

need_tool() {
	command -v "$1" > /dev/null || die "no $1 here: run $guest/setup${2:+ $2}"
}

# root_of SUITE: set root to the directory of a system of that suite
root_of() {
	local suite=$1
	case $suite in
	experimental | forky) suite=sid ;;
	*-backports) suite=${suite%-backports} ;;
	esac
	need_root "a chroot of $suite"
	need_tool mmdebstrap
	cached "roots/$suite" make_root "$suite"
	root=$cache/roots/$suite
}

# debootstrap SUITE TEMP OPTIONS...
debootstrap() {
	local suite=$1 temp=$2 sources=$cache/apt/.${2##*/}
	shift 2
	mkdir -p "$cache/apt"
	sources_of "$suite" > "$sources"
	mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' \
		--aptopt='Acquire::Retries "3"' "$@" "$suite" "$temp" "$sources" >&2
	rm -f "$sources"
}

make_root() {
	say "making a system of $1 (a minute or two)"
	debootstrap "$1" "$2" --variant=apt \
		--include=gcc,libc6-dev,make,python3-dev,pahole,sparse,kmod
}

# arm64_root: set root to the system that arm64 guests use. Its packages are only
# unpacked, because this machine can't run programs of another architecture.
arm64_root() {
	need_root "a system of arm64"
	need_tool mmdebstrap
	cached roots/trixie-arm64 make_arm64_root
	root=$cache/roots/trixie-arm64
}

make_arm64_root() {
	local temp=$1
	say "making a system of arm64 (a minute or two)"
	debootstrap trixie "$temp" --variant=extract --architectures=arm64 \
		--include=base-files,base-passwd,bash,busybox-static,coreutils,dash,findutils,gawk \
		--include=grep,kmod,libc-bin,make,mount,perl-base,procps,sed,util-linux
	# What the packages' scripts would do
	cp "$temp/usr/share/base-passwd/passwd.master" "$temp/etc/passwd"
	cp "$temp/usr/share/base-passwd/group.master" "$temp/etc/group"
	echo '127.0.0.1 localhost' > "$temp/etc/hosts"
	ln -sf gawk "$temp/usr/bin/awk"
}

# in_root ROOT COMMAND...: mounts are made in a namespace of their own, which ends with
# the command. The root is a mount too, so that a guest can be booted from it.
in_root() {
	local root=$1 place=/ variable environment=()
	shift
	mkdir -p "$root$repo" "$root$cache"
	case $PWD/ in
	"$repo"/* | "$cache"/*) place=$PWD ;;
	esac
	# QEMU_CPU is the CPU of programs of another architecture.
	for variable in TERM CI QEMU_CPU "${!SPEED_BUMP_@}"; do
		[[ -z ${!variable+set} ]] || environment+=("$variable=${!variable}")
	done
	# shellcheck disable=SC2016 # expanded by the inner shell
	unshare --mount --propagation private --pid --fork --kill-child /bin/bash -euc '
		root=$1 repo=$2 cache=$3
		mount --bind "$root" "$root"
		mount --rbind /dev "$root/dev"
		mount -t proc proc "$root/proc"
		[ -z "$4" ] || mount -t sysfs -o ro sysfs "$root/sys"
		mount --bind "$repo" "$root$repo"
		mount --bind "$cache" "$root$cache"
		shift 4
		exec chroot "$root" /usr/bin/env -i "$@"
	' bash "$root" "$repo" "$cache" "${root_sys:-}" HOME=/root LC_ALL=C.UTF-8 XDG_CACHE_HOME="${cache%/*}" \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${environment[@]}" \
		/bin/sh -c 'cd "$0" && exec "$@"' "$place" "$@"
}

# cross_compiler ROOT: install arm64's compiler in that system ('' is this machine)
cross_compiler() {
	local compiler=usr/bin/aarch64-linux-gnu-gcc
	[[ ! -e $1/$compiler ]] || return 0
	[[ -n $1 ]] || die "no ${compiler##*/} here: run $guest/setup arm64"
	with_lock "roots/${1##*/}" install_in "$1" gcc-aarch64-linux-gnu
}

install_in() {
	local root=$1
	shift
	say "installing $* in the system of ${root##*/}"
	in_root "$root" apt-get -qq update > /dev/null
	in_root "$root" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 \
		install -y --no-install-recommends "$@" > /dev/null
}

# builds_here SUITE: whether this machine's tools can build for the suite's kernels.
# linux-kbuild of trixie and later needs a newer libc than bookworm's, and its kernels
# need a newer compiler.
builds_here() {
	[[ $(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}") == bookworm ]] || return 1
	[[ $1 == bullseye || $1 == bookworm ]]
}
