# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# Upstream sources, of CPython and of libraries, as Debian's source packages have them.
# Sourced after cache.sh and suite.sh of selftests/guest.

# fetch_source SUITE PACKAGE DIR: its upstream tarball
fetch_source() {
	local options=(-qq -o "Dir::State::lists=$3/lists" -o "Dir::Etc::sourcelist=$3/sources")
	mkdir -p "$3/lists/partial"
	cached "apt/$1" make_suite "$1"
	sources_of "$1" | sed 's/^deb /deb-src /' > "$3/sources"
	suite_apt "$1" apt-get "${options[@]}" update &&
		(cd "$3" && suite_apt "$1" apt-get "${options[@]}" source --download-only --tar-only "$2")
}

# unpack_source VERSION TARBALL DIR [FILE...]: to DIR/source; '' is the mirror's
unpack_source() {
	local version=${1%t} tarball=$2 work=$3 suite
	shift 3
	mkdir -p "$work/source"
	# A mirror may lack for a while what its index of sid names already.
	for suite in sid testing trixie bookworm; do
		[[ -z $tarball ]] || break
		fetch_source "$suite" "python$version" "$work" >&2 || continue
		tarball=$(ls "$work"/*.orig.tar.*)
	done
	[[ -n $tarball ]] || die "the source of Python $version can't be had from the mirror"
	tar -xf "$tarball" -C "$work/source" --strip-components=1 --wildcards "$@"
}
