// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * /dev/speed_bump: from the numbers of the ioctls in uapi/linux/speed_bump.h to the
 * functions of ioctl.h, and the arguments there and back.
 */
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include <linux/speed_bump.h>

#include "chardev.h"
#include "compat.h"
#include "ioctl.h"
#include "session.h"

/*
 * From the range for local use.  With a fixed minor, opening the device node loads the
 * module.
 */
#define BUMP_MINOR	248

static_assert(sizeof(struct speed_bump_batch) == SPEED_BUMP_BATCH_SIZE_VER0);

union argument {
	struct speed_bump_query query;
	struct speed_bump_batch batch;
	struct speed_bump_list list;
	struct speed_bump_session session;
	struct speed_bump_global global;
	struct speed_bump_plan_request plan;
	struct speed_bump_durations durations;
};

/*
 * The argument of each command.  A batch is copied back to the caller on failure, too,
 * because it says which entry failed.
 */
static const struct command {
	int (*run)(struct bump_session *session, void *arg);
	u32 size;
	u32 min_size;
	bool answers_failure;
} commands[] = {
#define COMMAND(name, fn, type, min, failure) \
	[_IOC_NR(SPEED_BUMP_IOC_##name)] = { fn, sizeof(struct type), min, failure }
	COMMAND(QUERY, bump_ioctl_query, speed_bump_query, SPEED_BUMP_QUERY_SIZE_VER0, false),
	COMMAND(ADD, bump_ioctl_add, speed_bump_batch, SPEED_BUMP_BATCH_SIZE_VER0, true),
	COMMAND(UPDATE, bump_ioctl_update, speed_bump_batch, SPEED_BUMP_BATCH_SIZE_VER0, true),
	COMMAND(REMOVE, bump_ioctl_remove, speed_bump_batch, SPEED_BUMP_BATCH_SIZE_VER0, true),
	COMMAND(LIST, bump_ioctl_list, speed_bump_list, SPEED_BUMP_LIST_SIZE_VER0, false),
	COMMAND(STATS, bump_ioctl_stats, speed_bump_batch, SPEED_BUMP_BATCH_SIZE_VER0, true),
	COMMAND(SESSION, bump_ioctl_session, speed_bump_session,
		SPEED_BUMP_SESSION_SIZE_VER0, false),
	COMMAND(GLOBAL, bump_ioctl_global, speed_bump_global, SPEED_BUMP_GLOBAL_SIZE_VER0, false),
	COMMAND(PLAN, bump_ioctl_plan, speed_bump_plan_request,
		SPEED_BUMP_PLAN_REQUEST_SIZE_VER0, false),
	COMMAND(DURATIONS, bump_ioctl_durations, speed_bump_durations,
		SPEED_BUMP_DURATIONS_SIZE_VER0, false),
#undef COMMAND
};

static long device_ioctl(struct file *file, unsigned int cmd, unsigned long ptr)
{
	const struct command *command;
	void __user *user = (void __user *)ptr;
	u32 size = _IOC_SIZE(cmd);
	union argument arg;
	int err;

	if (_IOC_TYPE(cmd) != SPEED_BUMP_IOC_MAGIC || _IOC_DIR(cmd) != (_IOC_READ | _IOC_WRITE) ||
	    _IOC_NR(cmd) >= ARRAY_SIZE(commands))
		return -ENOTTY;
	command = &commands[_IOC_NR(cmd)];
	if (size < command->min_size)
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;

	err = copy_struct_from_user(&arg, command->size, user, size);
	if (err)
		return err;
	err = command->run(file->private_data, &arg);
	if (err && !command->answers_failure)
		return err;
	if (copy_struct_to_user(user, size, &arg, command->size, NULL))
		return -EFAULT;
	return err;
}

static int device_open(struct inode *inode, struct file *file)
{
	struct bump_session *session;

	session = bump_session_create();
	if (IS_ERR(session))
		return PTR_ERR(session);
	file->private_data = session;
	return 0;
}

static int device_release(struct inode *inode, struct file *file)
{
	bump_session_close(file->private_data);
	return 0;
}

static const struct file_operations device_fops = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = BUMP_MINOR,
	.name = SPEED_BUMP_DEVICE_NAME,
	.fops = &device_fops,
	.mode = 0600,
};

int bump_chardev_init(void)
{
	int err;

	err = misc_register(&device);
	if (err == -EBUSY) {
		device.minor = MISC_DYNAMIC_MINOR;
		err = misc_register(&device);
	}
	return err;
}

void bump_chardev_exit(void)
{
	misc_deregister(&device);
}

MODULE_ALIAS_MISCDEV(BUMP_MINOR);
MODULE_ALIAS("devname:" SPEED_BUMP_DEVICE_NAME);
