#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR MIT
# shellcheck source-path=SCRIPTDIR
#
# The text interface from a shell: the commands of the usage guide, with the path of the
# fixture.
set -u
# shellcheck source=tap.sh
. "$(dirname "$0")/tap.sh"
[ "$(id -u)" -eq 0 ] && [ -d $dir ] || skip "needs root and $dir"

# refused WORDS TEXT: writing TEXT to "targets" fails with this message of libc
refused() {
	local message
	message=$( { echo "$2" > $dir/targets; } 2>&1) && return 1
	[[ $message == *"$1"* ]]
}

# milliseconds SYMBOL COUNT: the time of COUNT calls
milliseconds() {
	local ns
	read -r _ _ ns < <("$here/fixture-loop" "$1" "$2")
	echo $((ns / 1000000))
}

clean() {
	echo 0 > $dir/enabled
	echo 1000 > $dir/default_delay_ns
	local symbol
	for symbol in plain second nop step; do
		echo "-$lib:fixture_$symbol" > $dir/targets
	done 2> /dev/null
}
trap clean EXIT
clean

# Quick start.
echo "+$lib:fixture_plain 10000000" | sudo tee $dir/targets > /dev/null
check "a target is in the list" is "$(field "$lib:fixture_plain" delay_ns)" 10000000
check "no delay before it is enabled" below "$(milliseconds fixture_plain 20)" 200
echo 1 | sudo tee $dir/enabled > /dev/null
check "delays when enabled" at_least "$(milliseconds fixture_plain 20)" 200
check "hits are counted" is "$(field "$lib:fixture_plain" hits)" 40
check "so are the delayed ones" is "$(field "$lib:fixture_plain" delayed)" 20
check "cat enabled" is "$(cat $dir/enabled)" 1
check "stats" at_least "$(awk '$1 == "total_delay_ns" { print $2 }' $dir/stats)" 200000000
echo 0 | sudo tee $dir/enabled > /dev/null
check "no delay when disabled" below "$(milliseconds fixture_plain 20)" 200

# Add, with and without a delay and a process.
echo "+$lib:fixture_second" | sudo tee $dir/targets > /dev/null
check "the default delay" is "$(field "$lib:fixture_second" delay_ns)" "$(cat $dir/default_delay_ns)"
echo "+$lib:fixture_nop 5000 pid=$$" | sudo tee $dir/targets > /dev/null
check "a process tree" is "$(field "$lib:fixture_nop" pid)" $$
"$here/fixture-loop" fixture_nop 7 > /dev/null
check "a child is in the tree" is "$(field "$lib:fixture_nop" hits)" 7
echo "+$lib:fixture_step 0 pid=1" | sudo tee $dir/targets > /dev/null
"$here/fixture-loop" fixture_step 7 > /dev/null
# This shell is a descendant of process 1, unless process 1 is in another pid namespace.
check "the tree of process 1" is "$(field "$lib:fixture_step" pid)" 1

# Update.
echo "=$lib:fixture_nop 50000" | sudo tee $dir/targets > /dev/null
check "an update" is "$(field "$lib:fixture_nop" delay_ns)" 50000
check "an update keeps the process" is "$(field "$lib:fixture_nop" pid)" $$
check "an update keeps the counts" is "$(field "$lib:fixture_nop" hits)" 7

# Remove.
echo "-$lib:fixture_nop" | sudo tee $dir/targets > /dev/null
check "a removal" is "$(field "$lib:fixture_nop" hits)" ""
check "the others stay" is "$(field "$lib:fixture_second" hits)" 0
if [ "$(grep -c owner=module $dir/targets_list)" -eq 3 ]; then
	echo "-*" | sudo tee $dir/targets > /dev/null
	check "a removal of all" is "$(grep -c owner=module $dir/targets_list)" 0
fi

# Errors.
check "no separator" refused "Invalid argument" "+$lib"
check "no prefix" refused "Invalid argument" "$lib:fixture_plain"
check "no such file" refused "No such file" "+/no/such/file:main"
check "no such symbol" refused "No such file" "+$lib:no_such_symbol"
check "no ELF file" refused "Exec format error" "+/etc/passwd:main"
check "a long path" refused "File name too long" "+/$(printf '%256s' '' | tr ' ' x):main"
check "a long symbol" refused "File name too long" "+$lib:$(printf '%129s' '' | tr ' ' x)"
check "a long delay" refused "range" "+$lib:fixture_plain 10000000001"
echo "+$lib:fixture_plain" > $dir/targets
check "the same again" refused "File exists" "+$lib:fixture_plain"

# The list is read in pieces of any size, without concurrent calls.
sum=$(cat $dir/targets_list | md5sum)
check "dd with small blocks" is "$(dd if=$dir/targets_list bs=3 status=none | md5sum)" "$sum"
check "head" is "$(head -n 1 $dir/targets_list)" "$(sed -n 1p $dir/targets_list)"

finish
