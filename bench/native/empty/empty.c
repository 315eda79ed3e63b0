// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The minimum for comparison: uprobes whose consumer does nothing.
 *
 *   insmod empty.ko path=/some/file offset=0x1000 [count=N spacing=BYTES] [returns=1]
 *
 * The parameter took_ns can be read: the time that the kernel took to register all of them.
 */
#include <linux/dcache.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uprobes.h>
#include <linux/version.h>

static char *file_name;
module_param_named(path, file_name, charp, 0444);
MODULE_PARM_DESC(path, "the file");

static unsigned long offset;
module_param(offset, ulong, 0444);
MODULE_PARM_DESC(offset, "of the first instruction in it");

static unsigned int count = 1;
module_param(count, uint, 0444);
MODULE_PARM_DESC(count, "how many instructions (1)");

static unsigned int spacing;
module_param(spacing, uint, 0444);
MODULE_PARM_DESC(spacing, "bytes from one to the next");

static bool returns;
module_param(returns, bool, 0444);
MODULE_PARM_DESC(returns, "whether the returns of the functions are caught, too (0)");

static unsigned long took_ns;
module_param(took_ns, ulong, 0444);
MODULE_PARM_DESC(took_ns, "time that it took to register all of them");

static struct inode *inode;

/* A place with nothing but a uprobe in it */
struct empty {
	struct uprobe_consumer consumer;
	struct uprobe *uprobe;
};

static struct empty *empties;

#if KERNEL_VERSION(6, 13, 0) <= LINUX_VERSION_CODE
static int empty_handler(struct uprobe_consumer *uc, struct pt_regs *regs, __u64 *data)
{
	return 0;
}

static int empty_return(struct uprobe_consumer *uc, unsigned long func,
			struct pt_regs *regs, __u64 *data)
{
	return 0;
}
#else
static int empty_handler(struct uprobe_consumer *uc, struct pt_regs *regs)
{
	return 0;
}

static int empty_return(struct uprobe_consumer *uc, unsigned long func,
			struct pt_regs *regs)
{
	return 0;
}
#endif

static loff_t offset_of(unsigned int i)
{
	return offset + (loff_t)i * spacing;
}

#if KERNEL_VERSION(6, 12, 0) <= LINUX_VERSION_CODE
static int put_in(unsigned int i)
{
	empties[i].uprobe = uprobe_register(inode, offset_of(i), 0, &empties[i].consumer);
	return PTR_ERR_OR_ZERO(empties[i].uprobe);
}

static void take_out(unsigned int i)
{
	uprobe_unregister_nosync(empties[i].uprobe, &empties[i].consumer);
}

static void wait_for_handlers(void)
{
	uprobe_unregister_sync();
}
#else
static int put_in(unsigned int i)
{
	return uprobe_register(inode, offset_of(i), &empties[i].consumer);
}

static void take_out(unsigned int i)
{
	uprobe_unregister(inode, offset_of(i), &empties[i].consumer);
}

static void wait_for_handlers(void)
{
}
#endif

static void take_all_out(unsigned int made)
{
	while (made--) {
		take_out(made);
		cond_resched();
	}
	wait_for_handlers();
	kvfree(empties);
	iput(inode);
}

static int put_all_in(void)
{
	u64 begin = ktime_get_ns();
	unsigned int i;
	int err;

	for (i = 0; i < count; i++) {
		empties[i].consumer.handler = empty_handler;
		empties[i].consumer.ret_handler = returns ? empty_return : NULL;
		err = put_in(i);
		if (err) {
			take_all_out(i);
			return err;
		}
		cond_resched();
	}
	took_ns = ktime_get_ns() - begin;
	return 0;
}

static int __init empty_init(void)
{
	struct path path;
	int err;

	err = kern_path(file_name, LOOKUP_FOLLOW, &path);
	if (err)
		return err;
	inode = igrab(d_real_inode(path.dentry));
	path_put(&path);
	if (!inode)
		return -ENOENT;
	empties = kvcalloc(count, sizeof(*empties), GFP_KERNEL);
	if (!empties) {
		iput(inode);
		return -ENOMEM;
	}
	return put_all_in();
}

static void __exit empty_exit(void)
{
	take_all_out(count);
}

module_init(empty_init);
module_exit(empty_exit);

MODULE_DESCRIPTION("An empty uprobe consumer, to compare with");
MODULE_AUTHOR("The speed-bump authors");
MODULE_LICENSE("Dual MIT/GPL");
