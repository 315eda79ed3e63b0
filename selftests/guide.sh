#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR MIT
# shellcheck source-path=SCRIPTDIR
#
# Runs the commands of the usage guide verbatim, with the files that they name. Missing
# files are created, so this runs only in a guest.
set -u
# shellcheck source=tap.sh
. "$(dirname "$0")/tap.sh"
[ -n "${SPEED_BUMP_GUEST:-}" ] || skip "makes files in /usr: only in a guest (SPEED_BUMP_GUEST)"

# printed LINE: check that the output has this line, as the guide shows it
printed() {
	local status=0 said
	said=$(eval "$1" 2>&1 > /dev/null) || status=$?
	[ $status -eq 0 ] && [ -z "$said" ] || echo "# $status: $said"
	check "$1" [ "$status$said" = 0 ]
}

# call LIBRARY: each of its functions once
call() {
	LD_PRELOAD=$1 /bin/true
}

targets() {
	grep -c owner=module $dir/targets_list
}

attr9=/usr/lib64/libpython3.9.so:PyObject_GetAttr
attr=/usr/bin/python3:PyObject_GetAttr
ensure=/usr/bin/python3:PyGILState_Ensure
launch=/usr/lib/libcuda.so:cudaLaunchKernel

mkdir -p /usr/lib64
for file in /usr/lib64/libpython3.9.so /usr/lib/libcuda.so /usr/bin/python3; do
	[ -e $file ] || install -m 644 "$here/libguide.so" $file
done
# Any process is suitable, but the guide has 12345.
if [ -w /proc/sys/kernel/ns_last_pid ]; then
	echo 12344 > /proc/sys/kernel/ns_last_pid
fi
sleep 1000 &
sleeper=$!
trap 'echo "-*" > $dir/targets; echo 0 > $dir/enabled; kill $sleeper' EXIT

# Quick start
printed 'echo "+/usr/lib64/libpython3.9.so:PyObject_GetAttr 10000000" | sudo tee /sys/kernel/speed_bump/targets'
printed 'echo 1 | sudo tee /sys/kernel/speed_bump/enabled'
call /usr/lib64/libpython3.9.so
check "it is delayed" at_least "$(field $attr9 total_delay_ns)" 10000000
printed 'echo 0 | sudo tee /sys/kernel/speed_bump/enabled'
printed 'echo "-*" | sudo tee /sys/kernel/speed_bump/targets'
check "all are gone" is "$(targets)" 0

# Add
printed 'echo "+/usr/lib/libcuda.so:cudaLaunchKernel 10000000" | sudo tee /sys/kernel/speed_bump/targets'
check "its delay" is "$(field $launch delay_ns)" 10000000
printed 'echo "+/usr/bin/python3:PyGILState_Ensure" | sudo tee /sys/kernel/speed_bump/targets'
check "the default delay" is "$(field $ensure delay_ns)" "$(cat $dir/default_delay_ns)"
printed 'echo "+/usr/bin/python3:PyObject_GetAttr 5000 pid=$$" | sudo tee /sys/kernel/speed_bump/targets'
check "the tree of this shell" is "$(field $attr pid)" $$
if [ -x /usr/bin/python3 ]; then
	/usr/bin/python3 -c pass
	check "a real program calls it" at_least "$(field $attr hits)" 1
fi

# Remove, update
printed 'echo "-/usr/lib/libcuda.so:cudaLaunchKernel" | sudo tee /sys/kernel/speed_bump/targets'
check "it is gone" is "$(field $launch delay_ns)" ""
check "the others stay" is "$(targets)" 2
printed 'echo "-*" | sudo tee /sys/kernel/speed_bump/targets'
echo "+$launch 1" > $dir/targets
printed 'echo "=/usr/lib/libcuda.so:cudaLaunchKernel 50000" | sudo tee /sys/kernel/speed_bump/targets'
check "its new delay" is "$(field $launch delay_ns)" 50000

# Processes. sleep has nanosleep from libc, and no code for it.
said=$( (echo "+/bin/sleep:nanosleep 1000000 pid=$$" | sudo tee /sys/kernel/speed_bump/targets) 2>&1 > /dev/null)
check "a function that is imported" is "${said##*: }" "No such file or directory"
if [ $sleeper -eq 12345 ]; then
	printed 'echo "+/usr/bin/python3:PyObject_GetAttr 5000 pid=12345" | sudo tee /sys/kernel/speed_bump/targets'
	check "that process" is "$(field $attr pid)" 12345
fi
check "a dead process" eval \
	'! { echo "+$attr 5000 pid=4194303" > $dir/targets; } 2> /dev/null'

# Status, use cases
for file in targets_list stats enabled; do
	check "cat $file" eval "cat $dir/$file > /dev/null"
done
printed 'echo "+/usr/lib64/libpython3.9.so:PyObject_GetAttr 10000000 pid=$$" | sudo tee /sys/kernel/speed_bump/targets'
printed 'echo 1 | sudo tee /sys/kernel/speed_bump/enabled'
call /usr/lib64/libpython3.9.so
check "a child is delayed" at_least "$(field $attr9 total_delay_ns)" 10000000
printed 'echo 0 | sudo tee /sys/kernel/speed_bump/enabled'
echo "-$launch" > $dir/targets
printed 'echo "+/usr/lib/libcuda.so:cudaLaunchKernel 100000" | sudo tee /sys/kernel/speed_bump/targets'
printed 'echo 1 | sudo tee /sys/kernel/speed_bump/enabled'
call /usr/lib/libcuda.so
check "a launch is delayed" is "$(field $launch delayed)" 1

# Unloading
printed 'echo 0 | sudo tee /sys/kernel/speed_bump/enabled'
printed 'echo "-*" | sudo tee /sys/kernel/speed_bump/targets'
if [ -n "${SPEED_BUMP_KO:-}" ]; then
	printed 'sudo rmmod speed_bump'
	insmod "$SPEED_BUMP_KO"
fi

finish
