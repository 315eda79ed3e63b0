# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-only OR MIT
#
# Common parts of tests that are shell scripts: results as TAP, and the files of the text
# interface. Sourced.
# shellcheck disable=SC2034 # used by those who source this

dir=/sys/kernel/speed_bump
here=$(cd "${OUTPUT:-$(dirname "$0")}" && pwd)
lib=$here/libsbfixture.so
number=0 failed=0

# skip REASON: skip all tests
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

# finish: print the plan and exit with the status of all tests
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

# field LABEL KEY: the value in the target's line of the list
field() {
	awk -v label="$1" -v key="$2" '$1 == label {
		for (i = 2; i <= NF; i++)
			if (index($i, key "=") == 1)
				print substr($i, length(key) + 2)
	}' $dir/targets_list
}

# The commands of the usage guide use sudo, which this test does not need: it runs as
# root.
sudo() {
	"$@"
}

echo "TAP version 13"
