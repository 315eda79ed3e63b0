# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2034 # used by those who source this
#
# The cache of the laboratory and how a thing gets into it. Sourced.
#
# An object of the cache is there or it is not: it is made under a lock beside
# its place and moved there when it is whole. Two runs at once wait for each
# other; what a killed run left half-made is made again.

shopt -s inherit_errexit

# Messages follow the locale otherwise, and some of them are read here.
export LC_ALL=C
# modprobe and its like are not on every user's path.
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

# with_lock NAME COMMAND...: run COMMAND while holding the lock called NAME
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

# cached OBJECT COMMAND...: unless OBJECT (relative to the cache) is there, have
# "COMMAND... TEMP" make it. Prints nothing. COMMAND must not be relied on to
# stop at an error where the caller tests the result: call this as a statement.
cached() {
	[[ -e $cache/$1 ]] || with_lock "$1" make_object "$@"
}

make_object() {
	local object=$cache/$1 temp
	temp=${object%/*}/.${object##*/}.new
	[[ ! -e $object ]] || return 0
	mkdir -p "${object%/*}"
	# What killed mmdebstrap left must never lead into another file system.
	rm -rf --one-file-system "$temp"
	shift
	"$@" "$temp"
	mv -T "$temp" "$object"
}
