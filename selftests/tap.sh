# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-only OR MIT
#
# What the tests that are shell scripts have in common: results as TAP, and the files in
# which they see them. Sourced.
# shellcheck disable=SC2034 # used by those who source this

dir=/sys/kernel/speed_bump
here=$(cd "${OUTPUT:-$(dirname "$0")}" && pwd)
lib=$here/libsbfixture.so
number=0 failed=0

# skip REASON: all of it
skip() {
	echo "1..0 # SKIP $1"
	exit 4
}

# check NAME COMMAND...: one test
check() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@"; then
		echo "ok $number $name"
	else
		echo "not ok $number $name"
		failed=1
	fi
}

# finish: the plan, and the exit status of it all
finish() {
	echo "1..$number"
	exit "$failed"
}

is() {
	[ "$1" = "$2" ] || { echo "# '$1' is not '$2'"; return 1; }
}

at_least() {
	[ "$1" -ge "$2" ] || { echo "# $1 is less than $2"; return 1; }
}

below() {
	[ "$1" -lt "$2" ] || { echo "# $1 is not below $2"; return 1; }
}

# field LABEL KEY: from the target's line in the list
field() {
	awk -v label="$1" -v key="$2" '$1 == label {
		for (i = 2; i <= NF; i++)
			if (index($i, key "=") == 1)
				print substr($i, length(key) + 2)
	}' $dir/targets_list
}

# The usage guide's commands use sudo, which this test, as root, does not need.
sudo() {
	"$@"
}

echo "TAP version 13"
