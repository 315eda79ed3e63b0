// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * speed_bump: put a known delay into chosen functions of user programs.
 */
#include <linux/module.h>

#include "chardev.h"
#include "main.h"
#include "scope.h"
#include "sysfs.h"
#include "target.h"

unsigned int sb_max_targets = 65536;
module_param_named(max_targets, sb_max_targets, uint, 0644);
MODULE_PARM_DESC(max_targets, "how many targets there may be (65536)");

unsigned int sb_max_unprivileged_targets = 1024;
module_param_named(max_unprivileged_targets, sb_max_unprivileged_targets, uint, 0644);
MODULE_PARM_DESC(max_unprivileged_targets,
		 "how many targets a session without CAP_PERFMON may have (1024)");

u64 sb_default_delay_ns = 1000;

static int __init speed_bump_init(void)
{
	int err;

	err = sb_scope_init();
	if (err)
		return err;
	err = sb_targets_init();
	if (err)
		goto err_targets;
	err = sb_sysfs_init();
	if (err)
		goto err_sysfs;
	/* Last: a session that somebody has opened can't be taken back. */
	err = sb_chardev_init();
	if (err)
		goto err_chardev;
	return 0;

err_chardev:
	sb_sysfs_exit();
err_sysfs:
	sb_targets_exit();
err_targets:
	sb_scope_exit();
	return err;
}

/* No session is open: its file holds the module. */
static void __exit speed_bump_exit(void)
{
	sb_chardev_exit();
	sb_sysfs_exit();
	sb_targets_exit();
	sb_scope_exit();
}

module_init(speed_bump_init);
module_exit(speed_bump_exit);

MODULE_DESCRIPTION("Delays in chosen functions of user programs, by uprobes");
MODULE_AUTHOR("The speed-bump authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1.0");
