# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2034,SC2154 # cache and others are of cache.sh; some are for the scripts that source this
#
# Systems of Debian's releases to build packages in and to install them in. Each is made
# once, kept, and never changed: work is done in a layer above it that is thrown away.
# Sourced after cache.sh, suite.sh and root.sh of selftests/guest.

releases=(bookworm trixie sid)

# release_of NAME: the code name of a release, from any of its names
release_of() {
	case $1 in
	12 | bookworm) echo bookworm ;;
	13 | trixie) echo trixie ;;
	unstable | sid) echo sid ;;
	*) usage_error "'$1' is not a release: 12, 13 or unstable" ;;
	esac
}

# choose_releases [NAME...]: set chosen
choose_releases() {
	local name
	chosen=()
	for name; do
		chosen+=("$(release_of "$name")")
	done
	[[ ${#chosen[@]} -gt 0 ]] || chosen=("${releases[@]}")
}

# The build dependencies in debian/control: names only, the first of alternatives, without
# those of dpkg-dev.
build_depends() {
	sed -n '/^Build-Depends:/,/^[^ ]/p' "$repo/debian/control" |
		sed -e 's/^Build-Depends://' -e '/^[A-Z]/d' | tr ',' '\n' |
		sed -e 's/|.*//' -e 's/([^)]*)//' -e 's/<[^>]*>//' -e 's/[[:space:]]//g' |
		sed -e '/^$/d' -e 's/^debhelper-compat$/debhelper/' | sort
}

# build_system RELEASE: set root to a system for building the packages
build_system() {
	local key
	need_root "a chroot of $1"
	need_tool mmdebstrap
	key=$(build_depends | sha256sum | head -c 8)
	cached "systems/$1-build-$key" make_build_system "$1"
	root=$cache/systems/$1-build-$key
}

make_build_system() {
	say "making a system of $1 to build packages in (a minute or two)"
	system_of "$1" "$2" --variant=buildd \
		--include="$(build_depends | paste -sd,),lintian,rsync"
}

# plain_system RELEASE: set root to a typical system: a kernel that is not the newest if
# there are several, its headers, systemd, DKMS
plain_system() {
	need_root "a chroot of $1"
	need_tool mmdebstrap
	cached "systems/$1" make_plain_system "$1"
	root=$cache/systems/$1
}

make_plain_system() {
	local release
	suite_update "$1"
	release=$(releases_with_image "$1" | sed -n '1p;2p' | tail -n 1)
	[[ -n $release ]] || die "$1: no cloud kernel with headers"
	say "making a system of $1 with kernel $release (two or three minutes)"
	# No guest uses the kernel's own initramfs, so it is kept small.
	system_of "$1" "$2" --variant=apt \
		--essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" &&
			printf "MODULES=list\nCOMPRESS=gzip\n" > "$1/etc/initramfs-tools/conf.d/small"' \
		--include="linux-image-$release,linux-headers-$release" \
		--include=dkms,systemd-sysv,udev,kmod,python3,procps,gcc,libc6-dev,pkgconf
	printf '%s\n' "$release" > "$2/etc/speed-bump-kernel"
}

# both_systems RELEASE: make both, and set root to the plain one. They are made in
# parallel: neither downloading nor unpacking uses two processors fully.
both_systems() {
	local other
	(build_system "$1") &
	other=$!
	plain_system "$1"
	wait "$other"
}

# releases_with_image SUITE: kernels of the suite's own version, newest first
releases_with_image() {
	local version
	version=$(suite_apt "$1" apt-cache depends linux-headers-cloud-amd64 |
		sed -n 's/.*Depends: linux-headers-\([0-9]*\.[0-9]*\).*/\1/p' | sed 1q)
	releases "$1" "$version" cloud-amd64
}

# system_of RELEASE TEMP OPTIONS...
system_of() {
	local suite=$1 temp=$2
	shift 2
	debootstrap "$suite" "$temp" --aptopt='Apt::Install-Recommends "false"' "$@"
	echo guest > "$temp/etc/hostname"
	printf '127.0.0.1 localhost guest\n' > "$temp/etc/hosts"
}

# layer_above ROOT DIR: make DIR/system show ROOT, with all changes kept in DIR. The
# caller must have a mount namespace of its own.
layer_above() {
	mkdir -p "$2"/{system,changed,work}
	# A file system that can't be an upper layer gets a copy.
	mount -t overlay -o "lowerdir=$1,upperdir=$2/changed,workdir=$2/work" overlay "$2/system" 2> /dev/null ||
		cp -a --reflink=auto "$1/." "$2/system/"
}

# copy_tree DIR: the files of the repository, including those to be committed
copy_tree() {
	mkdir -p "$1"
	(cd "$repo" && git ls-files -z --cached --others --exclude-standard |
		xargs -0 sh -c 'for file; do [ ! -e "$file" ] || printf "%s\0" "$file"; done' sh |
		xargs -0 cp --parents -t "$1")
}
