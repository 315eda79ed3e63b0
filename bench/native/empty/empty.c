// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The floor: a uprobe whose consumer does nothing.
 *
 *   insmod empty.ko path=/some/file offsets=0x1000,0x1010
 */
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/uprobes.h>
#include <linux/version.h>

#define MAX_PROBES	8

static char *file_name;
module_param_named(path, file_name, charp, 0444);
MODULE_PARM_DESC(path, "the file");

static unsigned long offsets[MAX_PROBES];
static unsigned int count;
module_param_array(offsets, ulong, &count, 0444);
MODULE_PARM_DESC(offsets, "of instructions in it");

static struct uprobe_consumer consumers[MAX_PROBES];
static struct inode *inode;

#if KERNEL_VERSION(6, 13, 0) <= LINUX_VERSION_CODE
static int empty_handler(struct uprobe_consumer *uc, struct pt_regs *regs, __u64 *data)
#else
static int empty_handler(struct uprobe_consumer *uc, struct pt_regs *regs)
#endif
{
	return 0;
}

#if KERNEL_VERSION(6, 12, 0) <= LINUX_VERSION_CODE
static struct uprobe *uprobes[MAX_PROBES];

static int put_in(unsigned int i)
{
	uprobes[i] = uprobe_register(inode, offsets[i], 0, &consumers[i]);
	return PTR_ERR_OR_ZERO(uprobes[i]);
}

static void take_out(unsigned int i)
{
	uprobe_unregister_nosync(uprobes[i], &consumers[i]);
	uprobe_unregister_sync();
}
#else
static int put_in(unsigned int i)
{
	return uprobe_register(inode, offsets[i], &consumers[i]);
}

static void take_out(unsigned int i)
{
	uprobe_unregister(inode, offsets[i], &consumers[i]);
}
#endif

static void take_out_all(void)
{
	while (count--)
		take_out(count);
	iput(inode);
}

static int __init empty_init(void)
{
	unsigned int wanted = count;
	struct path path;
	int err;

	err = kern_path(file_name, LOOKUP_FOLLOW, &path);
	if (err)
		return err;
	inode = igrab(d_real_inode(path.dentry));
	path_put(&path);
	for (count = 0; count < wanted; count++) {
		consumers[count].handler = empty_handler;
		err = put_in(count);
		if (err) {
			take_out_all();
			return err;
		}
	}
	return 0;
}

static void __exit empty_exit(void)
{
	take_out_all();
}

module_init(empty_init);
module_exit(empty_exit);

MODULE_DESCRIPTION("An empty uprobe consumer");
MODULE_LICENSE("Dual MIT/GPL");
