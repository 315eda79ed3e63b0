# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2154 # cache and guest are of cache.sh
#
# Packages of other Debian suites, through an apt configuration of their own, so that the
# machine's is not changed. Sourced after cache.sh.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The mirrors that this machine uses: "URI RELEASE" lines of its configuration, so that a
# local mirror is used here too.
machine_repositories() {
	# shellcheck disable=SC2016 # the dollars are apt's
	apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | sort -u
}

# sources_of SUITE: the lines of a sources.list for it
sources_of() {
	local codename
	codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
	machine_repositories | awk -v suite="$1" -v codename="$codename" -v keyring="$keyring" '
		function line(uri, suite) {
			printf "deb [signed-by=%s] %s %s main\n", keyring, uri, suite
		}
		$2 ~ /-security$/ { if (security == "") security = $1; next }
		$2 == codename || $2 ~ /^(old|oldold)?stable$|^testing$|^unstable$|^sid$/ {
			if (main == "") main = $1
		}
		END {
			if (main == "")
				exit 1
			line(main, suite)
			if (security != "" && suite ~ /^(bullseye|bookworm|trixie)$/)
				line(security, suite "-security")
		}
	' || die "this machine's apt knows no Debian mirror (apt-get indextargets)"
}

# suite_apt SUITE COMMAND...: run an apt command that uses SUITE only. SUITE-arm64 is the
# same suite with the packages of that architecture in addition to the machine's own.
suite_apt() {
	local dir=$cache/apt/$1
	shift
	APT_CONFIG=$dir/apt.conf "$@"
}

make_suite() {
	local suite=$1 temp=$2 dir=$cache/apt/$1
	[[ -e $keyring ]] || die "no $keyring: run $guest/setup"
	mkdir -p "$temp"/{lists/partial,cache/archives/partial,parts}
	: > "$temp/status"
	sources_of "${suite%-arm64}" > "$temp/sources.list"
	# The InRelease file of a development suite may have expired. Its signature is
	# checked.
	cat > "$temp/apt.conf" <<-EOF
		Dir::State "$dir";
		Dir::State::status "$dir/status";
		Dir::Cache "$dir/cache";
		Dir::Etc::sourcelist "$dir/sources.list";
		Dir::Etc::sourceparts "$dir/parts";
		Dir::Etc::preferences "/dev/null";
		Dir::Etc::preferencesparts "$dir/parts";
		Acquire::Check-Valid-Until "false";
		Acquire::Languages "none";
		Acquire::Retries "3";
		APT::Sandbox::User "";
	EOF
	if [[ $suite == *-arm64 ]]; then
		printf 'APT::Architectures { "%s"; "arm64"; };\n' "$(dpkg --print-architecture)" \
			>> "$temp/apt.conf"
	fi
}

# suite_update SUITE: update the suite's package lists
suite_update() {
	cached "apt/$1" make_suite "$1"
	say "reading the package lists of $1"
	with_lock "apt/$1" suite_apt "$1" apt-get -qq update >&2
}

# suite_download SUITE DIR PACKAGE...: download the packages' files into DIR
suite_download() {
	local suite=$1 dir=$2
	shift 2
	mkdir -p "$dir"
	say "downloading $*"
	(cd "$dir" && suite_apt "$suite" apt-get -qq download "$@" >&2)
}
