// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * /sys/kernel/speed_bump: the module's own, persistent targets for shell scripts.
 *
 * All users may read the settings.  Targets and counts are for root, as on the device:
 * reading them, and any write, requires the file's permission, which root has, and
 * CAP_SYS_ADMIN.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/kobject.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/stat.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include <linux/speed_bump.h>

#include "call.h"
#include "command.h"
#include "compat.h"
#include "elf.h"
#include "listing.h"
#include "main.h"
#include "policy.h"
#include "scope.h"
#include "session.h"
#include "stats.h"
#include "sysfs.h"
#include "target.h"

static_assert(BUMP_COMMAND_MAX_SYMBOL <= BUMP_ELF_MAX_SYMBOL);
static_assert(BUMP_COMMAND_MAX_PATH + 1 + BUMP_COMMAND_MAX_SYMBOL <= SPEED_BUMP_MAX_LABEL);

static struct kobject *directory;

/* --- enabled, default_delay_ns, stats --- */

static ssize_t enabled_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", READ_ONCE(bump_persistent.enabled));
}

static ssize_t enabled_store(struct kobject *kobj, struct kobj_attribute *attr,
			     const char *buf, size_t count)
{
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (sysfs_streq(buf, "0"))
		WRITE_ONCE(bump_persistent.enabled, false);
	else if (sysfs_streq(buf, "1"))
		WRITE_ONCE(bump_persistent.enabled, true);
	else
		return -EINVAL;
	return count;
}

static ssize_t default_delay_ns_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", READ_ONCE(bump_default_delay_ns));
}

static ssize_t default_delay_ns_store(struct kobject *kobj, struct kobj_attribute *attr,
				      const char *buf, size_t count)
{
	u64 ns;
	int err;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	err = kstrtou64(buf, 10, &ns);
	if (err)
		return err;
	if (ns > SPEED_BUMP_MAX_DELAY_NS)
		return -ERANGE;
	WRITE_ONCE(bump_default_delay_ns, ns);
	return count;
}

/* After a chmod, users other than root can open the file. */
static bool was_opened_by_admin(const struct file *file)
{
	return file_ns_capable(file, &init_user_ns, CAP_SYS_ADMIN);
}

static ssize_t stats(struct file *file, char *buf, loff_t pos, size_t count)
{
	u64 hits, delay_ns;
	char text[256];
	int len;

	if (!was_opened_by_admin(file))
		return -EPERM;
	bump_stats_totals(&hits, &delay_ns);
	len = scnprintf(text, sizeof(text),
			"enabled %d\n"
			"targets %u\n"
			"total_hits %llu\n"
			"total_delay_ns %llu\n"
			"persistent %u\n"
			"sessions %u\n"
			"max_targets %u\n",
			READ_ONCE(bump_persistent.enabled), bump_target_count(), hits,
			delay_ns, bump_target_count_of(&bump_persistent), bump_session_count(),
			READ_ONCE(bump_max_targets));
	return memory_read_from_buffer(buf, count, &pos, text, len);
}

DEFINE_BIN_ATTRIBUTE_READ(stats)

/* --- targets --- */

/* A place in a file, and the label of its targets. */
struct place {
	struct file *file;	/* NULL: only the label is known */
	u64 offset;
	char *label;
};

/*
 * A file whose contents are generated when it is read is not a program.  Reading such a
 * file of sysfs in a write to another would also nest locks of the same kind.
 */
static bool can_be_program(const struct file *file)
{
	const struct inode *inode = file_inode(file);

	return S_ISREG(inode->i_mode) && !(inode->i_sb->s_iflags & SB_I_NOEXEC) &&
	       ((file->f_mode & FMODE_PATH) ||
		(file->f_op->read_iter && !file->f_op->read));
}

static struct file *file_open_if_program(const char *path, int flags)
{
	struct file *file = filp_open(path, flags, 0);

	if (IS_ERR(file) || can_be_program(file))
		return file;
	filp_close(file, NULL);
	return ERR_PTR(-ENOEXEC);
}

/*
 * Opening a FIFO or a device has side effects, and takes locks under which sysfs is read
 * elsewhere: so at first only the path is opened.
 */
static struct file *file_open(const char *path)
{
	struct file *file = file_open_if_program(path, O_PATH);

	if (IS_ERR(file))
		return file;
	filp_close(file, NULL);
	return file_open_if_program(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_LARGEFILE);
}

static void place_release(struct place *place)
{
	if (place->file)
		filp_close(place->file, NULL);
	kfree(place->label);
}

/*
 * Finds the file and the function in it, with the permissions of the writer.  On failure
 * @place has the label only.
 */
static int place_find(struct place *place, const struct bump_command *command)
{
	struct file *file;
	int err;

	*place = (struct place) {
		.label = kasprintf(GFP_KERNEL_ACCOUNT, "%s:%s", command->path, command->symbol),
	};
	if (!place->label)
		return -ENOMEM;
	file = file_open(command->path);
	if (IS_ERR(file))
		return PTR_ERR(file);
	err = bump_elf_find(file, command->symbol, &place->offset);
	if (err) {
		filp_close(file, NULL);
		return err;
	}
	place->file = file;
	return 0;
}

static int add(const struct bump_command *command)
{
	struct bump_target_config config = { .settings = { .every = 1, .enabled = true } };
	struct bump_target **targets, *t;
	struct place place;
	int err;

	targets = kmalloc(sizeof(struct bump_target *), GFP_KERNEL_ACCOUNT);
	if (!targets)
		return -ENOMEM;
	err = place_find(&place, command);
	if (err)
		goto out;

	if (command->delay_ppm) {
		config.ends = bump_ends_alloc(false);
		if (IS_ERR(config.ends)) {
			err = PTR_ERR(config.ends);
			goto out;
		}
	}
	config.path = &place.file->f_path;
	config.offset = place.offset;
	config.settings.delay_ns = command->has_delay ? command->delay_ns :
				   READ_ONCE(bump_default_delay_ns);
	if (command->delay_ppm)
		config.settings.delay_ppm = command->delay_ppm;
	config.scope.type = command->pid ? SPEED_BUMP_SCOPE_TREE : SPEED_BUMP_SCOPE_SYSTEM;
	config.scope.id = command->pid;
	config.label = place.label;
	config.label_len = strlen(place.label);
	t = bump_target_add(&bump_persistent, &config);
	if (IS_ERR(t)) {
		bump_ends_free(config.ends);
		err = PTR_ERR(t);
		goto out;
	}
	place.label = NULL;	/* the target's now */
	targets[0] = t;
	err = bump_target_register(targets, 1, false);
	if (err == -EINTR)
		targets = NULL;	/* taken over */
	else if (err)
		bump_target_discard(targets, 1);
	else if (IS_ERR(targets[0]))
		err = PTR_ERR(targets[0]);
	else
		bump_target_publish(targets, 1);
out:
	place_release(&place);
	kfree(targets);
	return err;
}

struct selection {
	const struct place *place;
	const struct bump_command *command;
	size_t label_len;
};

/*
 * At that place, or with that label: a target may be in a file that has been replaced
 * since, or be one of several functions of that name.
 */
static bool is_selected(const struct bump_target *t, const void *arg)
{
	const struct selection *s = arg;
	const struct place *place = s->place;

	if (s->command->pid && (t->scope->type != SPEED_BUMP_SCOPE_TREE ||
				bump_scope_id(t->scope) != s->command->pid))
		return false;
	if (place->file && t->inode == bump_target_inode(&place->file->f_path) &&
	    t->offset == place->offset)
		return true;
	return t->label_len == s->label_len && !memcmp(t->label, place->label, s->label_len);
}

/*
 * Updates the selected targets, or only checks the update.  Returns how many, or a negative
 * errno of the check.  One that was added since and can't be updated is left as it is.
 */
static int update_selected(const struct selection *s, bool only_check)
{
	const struct speed_bump_update update = {
		.mask = SPEED_BUMP_UPDATE_DELAY,
		.delay_ns = s->command->delay_ns,
		.delay_ppm = s->command->delay_ppm,
	};
	struct bump_target *t;
	int count = 0;
	u64 after = 0;

	while (count >= 0 && (t = bump_target_next(after))) {
		after = t->id;
		if (t->session == &bump_persistent && is_selected(t, s)) {
			if (bump_target_takes(t, &update)) {
				if (!only_check)
					bump_policy_update(&t->policy, &t->turns, &update,
							   ktime_get_ns());
				count++;
			} else if (only_check) {
				count = -EOPNOTSUPP;
			}
		}
		bump_target_put(t);
		cond_resched();
	}
	return count;
}

static int change(const struct bump_command *command)
{
	struct selection s = { .command = command };
	struct place place;
	int count, err;

	err = place_find(&place, command);
	if (err == -ENOMEM || err == -EINTR)
		goto out;

	s.place = &place;
	s.label_len = strlen(place.label);
	if (command->verb == BUMP_COMMAND_REMOVE)
		count = bump_target_remove_if(&bump_persistent, is_selected, &s);
	else
		count = update_selected(&s, true);
	if (count > 0 && command->verb == BUMP_COMMAND_UPDATE)
		count = update_selected(&s, false);
	if (count)
		err = min(count, 0);
	else if (!err)
		err = -ENOENT;
out:
	place_release(&place);
	return err;
}

static int run(const struct bump_command *command)
{
	switch (command->verb) {
	case BUMP_COMMAND_ADD:
		return add(command);
	case BUMP_COMMAND_REMOVE_ALL:
		bump_target_remove_all(&bump_persistent);
		return 0;
	default:
		return change(command);
	}
}

static ssize_t targets_store(struct kobject *kobj, struct kobj_attribute *attr,
			     const char *buf, size_t count)
{
	struct bump_command *command;
	int err;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	/* sysfs splits a longer write, and would pass the rest as another command. */
	if (count >= PAGE_SIZE)
		return -ENAMETOOLONG;
	command = kmalloc(sizeof(*command), GFP_KERNEL);
	if (!command)
		return -ENOMEM;
	err = bump_command_parse(command, buf, count);
	if (!err)
		err = run(command);
	kfree(command);
	return err ?: count;
}

/* --- targets_list --- */

static ssize_t targets_list(struct file *file, char *buf, loff_t pos, size_t count)
{
	if (!was_opened_by_admin(file))
		return -EPERM;
	return bump_listing_read(file, buf, count, pos);
}

DEFINE_BIN_ATTRIBUTE_READ(targets_list)

/* --- the directory --- */

static struct kobj_attribute enabled = __ATTR_RW(enabled);
static struct kobj_attribute default_delay_ns = __ATTR_RW(default_delay_ns);
static struct kobj_attribute targets = __ATTR_WO(targets);

static struct attribute *attributes[] = {
	&enabled.attr,
	&default_delay_ns.attr,
	&targets.attr,
	NULL
};

static const struct attribute_group group = { .attrs = attributes };

static const struct bin_attribute list = {
	.attr = { .name = "targets_list", .mode = 0400 },
	.read = bin_targets_list,
};

static const struct bin_attribute numbers = {
	.attr = { .name = "stats", .mode = 0400 },
	.read = bin_stats,
};

int bump_sysfs_init(void)
{
	int err;

	directory = kobject_create_and_add("speed_bump", kernel_kobj);
	if (!directory)
		return -ENOMEM;
	err = sysfs_create_group(directory, &group);
	if (!err)
		err = sysfs_create_bin_file(directory, &list);
	if (!err)
		err = sysfs_create_bin_file(directory, &numbers);
	if (err)
		kobject_put(directory);
	return err;
}

/* Waits for reads and writes that are under way. */
void bump_sysfs_exit(void)
{
	sysfs_remove_bin_file(directory, &numbers);
	sysfs_remove_bin_file(directory, &list);
	sysfs_remove_group(directory, &group);
	kobject_put(directory);
	bump_listing_exit();
}
