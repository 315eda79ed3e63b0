// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Limits of a session without CAP_SYS_ADMIN: processes that its user could attach a
 * debugger to, and files that cannot hold up the kernel.
 *
 * ptrace_may_access() is not exported, so its rules are repeated here, for a caller
 * without capabilities: all user and group ids are the opener's, the process is dumpable
 * (not after a set-uid exec, and not if it has requested that), is in the opener's user
 * namespace and has no capability that the opener does not have.  Security modules are
 * consulted when the kernel opens /proc/PID/mem, which users without CAP_PERFMON must
 * pass; they are not consulted about later changes.
 */
#include <linux/blk_types.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/magic.h>
#include <linux/major.h>
#include <linux/mm_types.h>
#include <linux/pagemap.h>
#include <linux/rbtree.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/string.h>
#include <linux/uidgid.h>

#include "compat.h"
#include "guard.h"

static bool is_same_user(const struct cred *opener, const struct cred *cred)
{
	return uid_eq(cred->uid, opener->uid) && uid_eq(cred->euid, opener->uid) &&
	       uid_eq(cred->suid, opener->uid) && gid_eq(cred->gid, opener->gid) &&
	       gid_eq(cred->egid, opener->gid) && gid_eq(cred->sgid, opener->gid);
}

/**
 * bump_guard_allows() - may a task be delayed, or memory have a breakpoint?
 * @opener:	of the session
 * @task:	the task in question
 * @mm:		its memory
 *
 * Called at every hit and by every filter, so that it also covers a process that changes
 * its user later.  Under RCU.
 */
bool bump_guard_allows(const struct cred *opener, struct task_struct *task,
		       struct mm_struct *mm)
{
	const struct cred *cred = __task_cred(task);

	return is_same_user(opener, cred) && cred->user_ns == opener->user_ns &&
	       cap_issubset(cred->cap_permitted, opener->cap_permitted) &&
	       task_is_dumpable(task, mm);
}

/* The same for all threads of the process of @task. */
bool bump_guard_allows_process(const struct cred *opener, struct task_struct *task)
{
	struct mm_struct *mm = get_task_mm(task);
	struct task_struct *thread;
	bool allows = true;

	if (!mm)
		return false;
	rcu_read_lock();
	allows = bump_guard_allows(opener, task, mm);
	for_each_thread(task, thread)
		allows = allows && bump_guard_allows(opener, thread, mm);
	rcu_read_unlock();
	mmput(mm);
	return allows;
}

/**
 * bump_guard_is_memory_of() - is a file the opened memory of a process?
 * @mem:	supposed to be an open /proc/PID/mem, or NULL
 * @task:	of the process
 *
 * The kernel lets a task open it that could attach a debugger, and consults Yama and the
 * other security modules.  The pointer in the file is only compared.
 */
bool bump_guard_is_memory_of(const struct file *mem, struct task_struct *task)
{
	struct dentry *dentry;
	struct mm_struct *mm;
	bool is;

	if (!mem || file_inode(mem)->i_sb->s_magic != PROC_SUPER_MAGIC)
		return false;
	/*
	 * File names in procfs are the kernel's; "environ" can be opened with fewer
	 * permissions.
	 */
	dentry = mem->f_path.dentry;
	if (dentry->d_name.len != 3 || memcmp(dentry->d_name.name, "mem", 3))
		return false;
	mm = get_task_mm(task);
	if (!mm)
		return false;
	is = mem->private_data == mm;
	mmput(mm);
	return is;
}

/*
 * File systems whose reads are served by this machine's kernel, with any mount options.
 */
static bool is_local(const struct super_block *sb)
{
	unsigned int major = sb->s_bdev ? MAJOR(sb->s_bdev->bd_dev) : 0;

	/* The data of these can be anywhere, such as in a file on FUSE. */
	if (major == LOOP_MAJOR || major == NBD_MAJOR)
		return false;
	switch (sb->s_magic) {
	case EXT4_SUPER_MAGIC:	/* 2 and 3 too */
	case XFS_SUPER_MAGIC:
	case BTRFS_SUPER_MAGIC:
	case F2FS_SUPER_MAGIC:
	case SQUASHFS_MAGIC:
	case EROFS_SUPER_MAGIC_V1:
	case TMPFS_MAGIC:
	case RAMFS_MAGIC:
	case 0xca451a4e:	/* bcachefs */
	case 0x2fc12fc1:	/* ZFS */
		return true;
	default:
		return false;
	}
}

/*
 * Limit on the mappings that the kernel walks at each registration, while every fork
 * waits.
 */
#define MAX_MAPS	65536

static bool has_few_maps(struct address_space *mapping)
{
	unsigned int count = 0;
	struct rb_node *node;

	i_mmap_lock_read(mapping);
	for (node = rb_first_cached(&mapping->i_mmap); node && count <= MAX_MAPS;
	     node = rb_next(node))
		count++;
	i_mmap_unlock_read(mapping);
	return count <= MAX_MAPS;
}

/**
 * bump_guard_check_file() - may there be a target of an unprivileged user in a file?
 * @inode:	the file that really holds the code
 *
 * A registration reads it, and walks its mappings with a lock held that every fork takes.
 *
 * Return: 0; -EPERM: a read from its file system may never end; -ENOSPC: it is mapped too
 * often.
 */
int bump_guard_check_file(struct inode *inode)
{
	if (!is_local(inode->i_sb))
		return -EPERM;
	return has_few_maps(inode->i_mapping) ? 0 : -ENOSPC;
}
