// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * speed_bump: put a known delay into chosen functions of user programs.
 */
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>

#include "chardev.h"
#include "compat.h"
#include "main.h"
#include "scope.h"
#include "sysfs.h"
#include "target.h"

unsigned int bump_max_targets = 65536;
module_param_named(max_targets, bump_max_targets, uint, 0644);
MODULE_PARM_DESC(max_targets, "how many targets there may be (65536)");

unsigned int bump_max_unprivileged_targets = 1024;
module_param_named(max_unprivileged_targets, bump_max_unprivileged_targets, uint, 0644);
MODULE_PARM_DESC(max_unprivileged_targets,
		 "largest number of targets of a user without capabilities (1024)");

unsigned int bump_max_unprivileged_targets_per_file = 2048;
module_param_named(max_unprivileged_targets_per_file,
		   bump_max_unprivileged_targets_per_file, uint, 0644);
MODULE_PARM_DESC(max_unprivileged_targets_per_file,
		 "largest number of targets of users without capabilities in one file (2048)");

unsigned int bump_unprivileged_budget_ms = 1000;
module_param_named(unprivileged_budget_ms, bump_unprivileged_budget_ms, uint, 0644);
MODULE_PARM_DESC(unprivileged_budget_ms,
		 "longest time, in ms, of all delays of users without capabilities on one hit (1000)");

/* Before 6.12 a delay holds a lock of the uprobe, which unrelated users would share. */
static int unprivileged_set(const char *text, const struct kernel_param *param)
{
	bool value = true;
	int err = text ? kstrtobool(text, &value) : 0;

	if (err)
		return err;
	if (value && !BUMP_DELAYS_HOLD_NO_LOCK) {
		pr_err("speed_bump: this kernel is too old for unprivileged=1\n");
		return -EOPNOTSUPP;
	}
	return param_set_bool(text, param);
}

static const struct kernel_param_ops unprivileged_ops = {
	.flags = KERNEL_PARAM_OPS_FL_NOARG,
	.set = unprivileged_set,
	.get = param_get_bool,
};

bool bump_unprivileged;
module_param_cb(unprivileged, &unprivileged_ops, &bump_unprivileged, 0644);
__MODULE_PARM_TYPE(unprivileged, "bool");
MODULE_PARM_DESC(unprivileged,
		 "whether users without capabilities can delay their own processes, if the device's permissions allow it (0)");

u64 bump_default_delay_ns = 1000;

static int __init speed_bump_init(void)
{
	int err;

	bump_scope_init(bump_targets_renew);
	err = bump_targets_init();
	if (err)
		goto err_targets;
	err = bump_sysfs_init();
	if (err)
		goto err_sysfs;
	/*
	 * Last: from here on sessions can be open, and an open session can't be undone.
	 */
	err = bump_chardev_init();
	if (err)
		goto err_chardev;
	return 0;

err_chardev:
	bump_sysfs_exit();
err_sysfs:
	bump_targets_exit();
err_targets:
	bump_scope_exit();
	return err;
}

/* No session is open: its file holds the module. */
static void __exit speed_bump_exit(void)
{
	bump_chardev_exit();
	bump_sysfs_exit();
	bump_targets_exit();
	bump_scope_exit();
}

module_init(speed_bump_init);
module_exit(speed_bump_exit);

MODULE_DESCRIPTION("Delays in chosen functions of user programs, by uprobes");
MODULE_AUTHOR("The speed-bump authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("1.0.0rc1");
