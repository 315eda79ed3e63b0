# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2034 # used by those who source this
#
# The cache of the laboratory. Sourced.
#
# An object of the cache is complete or absent: it is made under a lock in a directory
# beside its place, and moved there when it is complete. Two runs at once wait for each
# other, and an object that a killed run left incomplete is made again.

shopt -s inherit_errexit

# Messages depend on the locale otherwise, and some of them are parsed here.
export LC_ALL=C
# modprobe and similar programs are not on every user's path.
PATH=$PATH:/usr/sbin:/sbin

me=${0##*/}
guest=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$guest/../.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speed-bump

say() {
	printf '%s: %s\n' "$me" "$*" >&2
}

die() {
	say "$*"
	exit 1
}

usage_error() {
	say "$*"
	printf 'try %s -h\n' "$0" >&2
	exit 2
}

need_root() {
	[[ $EUID -eq 0 ]] || die "$1 needs root"
}

# with_lock NAME COMMAND...: run COMMAND while holding the lock NAME
with_lock() {
	local lock
	mkdir -p "$cache/locks"
	exec {lock}> "$cache/locks/${1//\//-}"
	flock -n "$lock" || {
		say "waiting for another run that is working on $1"
		flock "$lock"
	}
	shift
	"$@"
	exec {lock}>&-
}

# cached OBJECT COMMAND...: make OBJECT (relative to the cache) with "COMMAND... TEMP"
# unless it exists. Prints nothing. Call this as a statement: if the caller tests its
# result, COMMAND does not stop at an error.
cached() {
	[[ -e $cache/$1 ]] || with_lock "$1" make_object "$@"
}

make_object() {
	local object=$cache/$1 temp
	temp=${object%/*}/.${object##*/}.new
	[[ ! -e $object ]] || return 0
	mkdir -p "${object%/*}"
	# Mounts that a killed mmdebstrap left must not lead into another file system.
	rm -rf --one-file-system "$temp"
	shift
	"$@" "$temp"
	mv -T "$temp" "$object"
}
