#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR MIT
# shellcheck source-path=SCRIPTDIR
#
# Under kernel lockdown, an unsigned module is not loaded, and a loaded module keeps
# working (docs/explanation/security.md). Lockdown can only be ended by a reboot, so this
# runs only in a guest, as the last test.
set -u
# shellcheck source=tap.sh
. "$(dirname "$0")/tap.sh"

lockdown=/sys/kernel/security/lockdown

# works NAME: a target is added, hit and removed
works() {
	local hits
	echo "+$lib:fixture_plain 0 pid=$$" > $dir/targets || return
	"$here/fixture-loop" fixture_plain 7 > /dev/null
	hits=$(field "$lib:fixture_plain" hits)
	echo "-$lib:fixture_plain" > $dir/targets && [ "$hits" = 7 ]
}

# refused: the module is not loaded, and lockdown is the reason
refused() {
	local said
	said=$(insmod "$SPEED_BUMP_KO" 2>&1) && return 1
	echo "# $said"
	dmesg | tail -n 5 | grep -q 'Lockdown: .*insmod: unsigned module loading is restricted'
}

[ -n "${SPEED_BUMP_GUEST:-}" ] || skip "can't be undone: only in a guest (SPEED_BUMP_GUEST)"
[ -n "${SPEED_BUMP_KO:-}" ] || skip "SPEED_BUMP_KO is not set"
mountpoint -q /sys/kernel/security || mount -t securityfs none /sys/kernel/security
[ -e $lockdown ] || skip "this kernel has no lockdown"

check "works before" works
for mode in integrity confidentiality; do
	echo $mode > $lockdown
	check "$mode" grep -q "\[$mode\]" $lockdown
	check "$mode: an unsigned module is not loaded" refused
	check "$mode: what is loaded works" works
done

finish
