/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Differences of older kernels.  All other files are written for the newest kernel.
 * Kbuild runs the script "interfaces", which finds out by compiling what the kernel
 * provides; the versions in these comments are those of the kernel's own releases.
 */
#ifndef BUMP_COMPAT_H
#define BUMP_COMPAT_H

#include <linux/err.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/coredump.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uprobes.h>

#ifndef BUMP_HAS_UPROBES
#error "the kernel's interfaces could not be determined: see driver/interfaces"
#endif

#ifdef BUMP_HAS_EXEC_STATE
#include <linux/sched/exec_state.h>
#endif

/*
 * 6.12: uprobe_register() returns the uprobe, unregistering is two steps of which the
 * second can be shared.  Before, a uprobe was identified by inode and offset, and one
 * call did both steps under the uprobe's own lock.
 */
#ifndef BUMP_HAS_UPROBE_TWO_STEPS
#define BUMP_DELAYS_HOLD_NO_LOCK	false

struct uprobe {
	struct inode *inode;
	loff_t offset;
};

static inline struct uprobe *compat_uprobe_register(struct inode *inode, loff_t offset,
						    loff_t ref_ctr_offset,
						    struct uprobe_consumer *uc)
{
	struct uprobe *uprobe;
	int err;

	uprobe = kmalloc(sizeof(*uprobe), GFP_KERNEL_ACCOUNT);
	if (!uprobe)
		return ERR_PTR(-ENOMEM);
	uprobe->inode = inode;
	uprobe->offset = offset;
	err = uprobe_register_refctr(inode, offset, ref_ctr_offset, uc);
	if (err) {
		kfree(uprobe);
		return ERR_PTR(err);
	}
	return uprobe;
}

static inline void compat_uprobe_unregister_nosync(struct uprobe *uprobe,
						   struct uprobe_consumer *uc)
{
	uprobe_unregister(uprobe->inode, uprobe->offset, uc);
	kfree(uprobe);
}

static inline void compat_uprobe_unregister_sync(void)
{
}

#define uprobe_register compat_uprobe_register
#define uprobe_unregister_nosync compat_uprobe_unregister_nosync
#define uprobe_unregister_sync compat_uprobe_unregister_sync
#else
#define BUMP_DELAYS_HOLD_NO_LOCK	true
#endif

/*
 * Callbacks whose prototype has changed are defined with these macros, from a function
 * that takes the arguments that all versions pass.
 */

/* 6.13: the handler gets a word of data that it shares with the return handler. */
#ifdef BUMP_HAS_UPROBE_HANDLER_DATA
#define DEFINE_UPROBE_HANDLER(fn)							\
static int uprobe_##fn(struct uprobe_consumer *uc, struct pt_regs *regs, __u64 *data)	\
{											\
	return fn(uc);									\
}
#else
#define DEFINE_UPROBE_HANDLER(fn)							\
static int uprobe_##fn(struct uprobe_consumer *uc, struct pt_regs *regs)			\
{											\
	return fn(uc);									\
}
#endif

/*
 * The same where registers are needed, and for the return handler.  The kernel ignores what
 * the latter returns.
 */
#ifdef BUMP_HAS_UPROBE_HANDLER_DATA
#define DEFINE_UPROBE_ENTRY(fn)								\
static int uprobe_##fn(struct uprobe_consumer *uc, struct pt_regs *regs, __u64 *data)	\
{											\
	return fn(uc, regs);								\
}

#define DEFINE_UPROBE_RETURN(fn)							\
static int uprobe_##fn(struct uprobe_consumer *uc, unsigned long func,			\
		       struct pt_regs *regs, __u64 *data)				\
{											\
	fn(uc, regs);									\
	return 0;									\
}
#else
#define DEFINE_UPROBE_ENTRY(fn)								\
static int uprobe_##fn(struct uprobe_consumer *uc, struct pt_regs *regs)			\
{											\
	return fn(uc, regs);								\
}

#define DEFINE_UPROBE_RETURN(fn)							\
static int uprobe_##fn(struct uprobe_consumer *uc, unsigned long func,			\
		       struct pt_regs *regs)						\
{											\
	fn(uc, regs);									\
	return 0;									\
}
#endif

/* 6.13: a handler can say that it does not need the return of the call. */
#ifndef UPROBE_HANDLER_IGNORE
#define UPROBE_HANDLER_IGNORE	0
#endif

/* 6.12: the filter no longer gets the reason for the call. */
#ifdef BUMP_HAS_UPROBE_FILTER_MM
#define DEFINE_UPROBE_FILTER(fn)							\
static bool uprobe_##fn(struct uprobe_consumer *uc, struct mm_struct *mm)			\
{											\
	return fn(uc, mm);								\
}
#else
#define DEFINE_UPROBE_FILTER(fn)							\
static bool uprobe_##fn(struct uprobe_consumer *uc, enum uprobe_filter_ctx ctx,	\
			struct mm_struct *mm)						\
{											\
	return fn(uc, mm);								\
}
#endif

/* 6.16: sched_process_exit passes whether the thread is the last one. */
#ifdef BUMP_HAS_EXIT_GROUP_DEAD
#define DEFINE_SCHED_PROCESS_EXIT(fn)							\
static void trace_##fn(void *data, struct task_struct *task, bool group_dead)			\
{											\
	fn(task);									\
}
#else
#define DEFINE_SCHED_PROCESS_EXIT(fn)							\
static void trace_##fn(void *data, struct task_struct *task)					\
{											\
	fn(task);									\
}
#endif

/* 6.16: a binary attribute is const. */
#ifdef BUMP_HAS_CONST_BIN_ATTRIBUTE
#define DEFINE_BIN_ATTRIBUTE_READ(fn)							\
static ssize_t bin_##fn(struct file *file, struct kobject *kobj,				\
			const struct bin_attribute *attr, char *buf, loff_t pos, size_t count)	\
{											\
	return fn(file, buf, pos, count);						\
}
#else
#define DEFINE_BIN_ATTRIBUTE_READ(fn)							\
static ssize_t bin_##fn(struct file *file, struct kobject *kobj,				\
			struct bin_attribute *attr, char *buf, loff_t pos, size_t count)	\
{											\
	return fn(file, buf, pos, count);						\
}
#endif

/*
 * 7.2: whether a task may be dumped (and debugged) is stored in the task, not in its mm.
 */
#ifdef BUMP_HAS_EXEC_STATE
static inline bool task_is_dumpable(struct task_struct *task, struct mm_struct *mm)
{
	struct task_exec_state *state = rcu_dereference(task->exec_state);

	return READ_ONCE(state->dumpable) == TASK_DUMPABLE_OWNER;
}
#else
static inline bool task_is_dumpable(struct task_struct *task, struct mm_struct *mm)
{
	return get_dumpable(mm) == SUID_DUMP_USER;
}
#endif

/* 6.13: copy_struct_to_user() */
#ifndef BUMP_HAS_COPY_STRUCT_TO_USER
static inline int compat_copy_struct_to_user(void __user *dst, size_t usize, const void *src,
					     size_t ksize, bool *ignored_trailing)
{
	size_t size = min(ksize, usize);

	if (usize > ksize && clear_user(dst + size, usize - ksize))
		return -EFAULT;
	if (ignored_trailing)
		*ignored_trailing = usize < ksize && memchr_inv(src + size, 0, ksize - size);
	if (copy_to_user(dst, src, size))
		return -EFAULT;
	return 0;
}

#define copy_struct_to_user compat_copy_struct_to_user
#endif

/* 6.3: the flags of a mapping are changed by functions. */
#ifndef BUMP_HAS_VM_FLAGS_SET
static inline void compat_vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void compat_vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}

#define vm_flags_set compat_vm_flags_set
#define vm_flags_clear compat_vm_flags_clear
#endif

/* 5.11: a page that is accounted as kernel memory can be mapped to user space. */
#ifdef BUMP_HAS_MAPPED_KERNEL_PAGES
#define GFP_USER_MAPPED	GFP_KERNEL_ACCOUNT
#else
#define GFP_USER_MAPPED	GFP_KERNEL
#endif

/*
 * Time that a runnable task has waited for a CPU, ns; 0 if the kernel does not record it.
 */
static inline u64 task_wait_ns(const struct task_struct *task)
{
#ifdef CONFIG_SCHED_INFO
	return READ_ONCE(task->sched_info.run_delay);
#else
	return 0;
#endif
}

/*
 * A turn of a spin reschedules, and is a quiescent state of RCU Tasks.  Before 7.0
 * cond_resched_tasks_rcu_qs() does more: it treats a reader of RCU Tasks Trace, such as
 * the handler of a uprobe, as blocked.  That takes a lock in this turn and another at the
 * end of the reader, which is after the delay and not measured.
 */
static inline void spin_rest(void)
{
#ifdef rcu_tasks_classic_qs
	rcu_tasks_classic_qs(current, false);
	cond_resched();
#else
	cond_resched_tasks_rcu_qs();
#endif
}

/*
 * With CONFIG_PROVE_RCU_LIST newer kernels check here for a lock that they do not export.
 * All users are under RCU.
 */
#undef __for_each_thread
#define __for_each_thread(signal, t)							\
	list_for_each_entry_rcu(t, &(signal)->thread_head, thread_node)

#endif /* BUMP_COMPAT_H */
