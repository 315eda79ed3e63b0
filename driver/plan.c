// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The plan of an experiment: memory that is shared with user space, in which each hit of
 * a planned target looks up whether it is to be delayed, and counts what it did.
 *
 * Any process that has the memory may write anything there at any moment, so a value read
 * from it is used only as far as it was checked: offsets are constants of the module,
 * indices are bounded, delays are limited as for any target, and no loop depends on the
 * memory for its length.
 */
#include <linux/anon_inodes.h>
#include <linux/atomic.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/irqflags.h>
#include <linux/kernel_stat.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include <linux/speed_bump.h>

#include "compat.h"
#include "plan.h"
#include "policy.h"
#include "session.h"
#include "target.h"

#define SLOTS	SPEED_BUMP_PLAN_SLOTS
#define CELLS	SPEED_BUMP_PLAN_CELLS

/* A cell's word: 16 bits of the slot's number, then what is counted. */
#define TAG_SHIFT	48
#define AMOUNT_MASK	GENMASK_ULL(TAG_SHIFT - 1, 0)

/* Attempts to reset a word of a cell: each fails only if another task has changed it. */
#define TRIES	8

/**
 * struct bump_plan - the memory and the positions of its parts
 * @ref:	the session's and the file's, which a mapping holds
 * @size:	bytes, whole pages
 * @head:	the memory
 * @schedule:	in it
 * @ends:	in it
 * @targets:	in it
 * @cells:	in it
 */
struct bump_plan {
	struct kref ref;
	size_t size;
	struct speed_bump_plan *head;
	__u64 *schedule;
	struct speed_bump_slot *ends;
	struct speed_bump_plan_target *targets;
	struct speed_bump_cell *cells;
};

static void plan_free(struct kref *ref)
{
	struct bump_plan *plan = container_of(ref, struct bump_plan, ref);

	vfree(plan->head);
	kfree(plan);
}

void bump_plan_put(struct bump_plan *plan)
{
	if (plan)
		kref_put(&plan->ref, plan_free);
}

/* --- the memory --- */

static u32 take(size_t *end, size_t bytes)
{
	size_t at = ALIGN(*end, SMP_CACHE_BYTES);

	*end = at + bytes;
	return at;
}

static struct bump_plan *plan_alloc(u32 count)
{
	struct bump_plan *plan = kzalloc(sizeof(*plan), GFP_KERNEL_ACCOUNT);
	u32 schedule, ends, targets, cells;
	struct speed_bump_plan *head;
	size_t size = 0;

	if (!plan)
		return NULL;
	take(&size, sizeof(*head));
	schedule = take(&size, SLOTS * sizeof(*plan->schedule));
	ends = take(&size, SLOTS * sizeof(*plan->ends));
	targets = take(&size, count * sizeof(*plan->targets));
	cells = take(&size, (size_t)count * CELLS * sizeof(*plan->cells));

	plan->size = PAGE_ALIGN(size);
	head = __vmalloc(plan->size, GFP_USER_MAPPED | __GFP_ZERO | __GFP_NOWARN);
	if (!head) {
		kfree(plan);
		return NULL;
	}
	kref_init(&plan->ref);
	plan->head = head;
	plan->schedule = (void *)head + schedule;
	plan->ends = (void *)head + ends;
	plan->targets = (void *)head + targets;
	plan->cells = (void *)head + cells;
	*head = (struct speed_bump_plan) {
		.size = sizeof(*head),
		.targets = count,
		.schedule = schedule,
		.ends = ends,
		.target = targets,
		.cells = cells,
		.changes = 1,
	};
	return plan;
}

static vm_fault_t plan_fault(struct vm_fault *vmf)
{
	struct bump_plan *plan = vmf->vma->vm_private_data;
	struct page *page;

	if (vmf->pgoff >= plan->size >> PAGE_SHIFT)
		return VM_FAULT_SIGBUS;
	page = vmalloc_to_page((void *)plan->head + (vmf->pgoff << PAGE_SHIFT));
	get_page(page);
	vmf->page = page;
	return 0;
}

static const struct vm_operations_struct plan_vm_ops = {
	.fault = plan_fault,
};

static int plan_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct bump_plan *plan = file->private_data;

	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff ||
	    vma->vm_end - vma->vm_start > plan->size)
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	vm_flags_clear(vma, VM_MAYEXEC);
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &plan_vm_ops;
	vma->vm_private_data = plan;
	return 0;
}

static int plan_release(struct inode *inode, struct file *file)
{
	bump_plan_put(file->private_data);
	return 0;
}

static const struct file_operations plan_fops = {
	.owner = THIS_MODULE,
	.mmap = plan_mmap,
	.release = plan_release,
	.llseek = noop_llseek,
};

static void rule(const struct bump_plan_targets *of)
{
	u32 i;

	for (i = 0; i < of->count; i++)
		of->targets[i]->plan_place = i + 1;
	for (i = 0; i < of->unit_count; i++)
		of->units[i]->is_unit = true;
	for (i = 0; i < of->count; i++)
		bump_policy_plan(&of->targets[i]->policy);
	for (i = 0; i < of->unit_count; i++)
		bump_policy_plan(&of->units[i]->policy);
}

/**
 * bump_plan_make() - create the plan of a session
 * @session:	a session without a plan
 * @of:		its targets, none twice in a list
 * @size:	[out] bytes of the memory
 *
 * Return: a descriptor of the memory, or a negative errno.
 */
int bump_plan_make(struct bump_session *session, const struct bump_plan_targets *of,
		   u64 *size)
{
	struct bump_plan *plan;
	struct file *file;
	int fd;

	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		return fd;
	plan = plan_alloc(of->count);
	if (!plan) {
		put_unused_fd(fd);
		return -ENOMEM;
	}
	*size = plan->size;
	file = anon_inode_getfile("[speed_bump_plan]", &plan_fops, plan, O_RDWR);
	if (IS_ERR(file)) {
		put_unused_fd(fd);
		bump_plan_put(plan);
		return PTR_ERR(file);
	}
	kref_get(&plan->ref);	/* the session's; the first is the file's */
	if (cmpxchg(&session->plan, NULL, plan)) {
		put_unused_fd(fd);
		bump_plan_put(plan);
		fput(file);
		return -EEXIST;
	}
	rule(of);
	fd_install(fd, file);
	return fd;
}

/* --- units, slots --- */

/**
 * struct lag - the lag of the scheduler's clock of a CPU
 * @least_ns:	the smallest lag behind local_clock() seen
 * @seen_ns:	time of the last reading; 0: never
 */
struct lag {
	s64 least_ns;
	u64 seen_ns;
};

static DEFINE_PER_CPU(struct lag, lags);

/* The scheduler updates a running task more often than that, also without a tick. */
#define UPDATED_NS	(2 * (s64)NSEC_PER_SEC)

/* Time in interrupts, where the kernel does not charge it to the task. */
static u64 interrupt_ns(void)
{
	const u64 *stat = kcpustat_this_cpu->cpustat;
	u64 ns = 0;

	if (IS_ENABLED(CONFIG_IRQ_TIME_ACCOUNTING))
		ns += stat[CPUTIME_IRQ] + stat[CPUTIME_SOFTIRQ];
	if (IS_ENABLED(CONFIG_PARAVIRT_TIME_ACCOUNTING))
		ns += stat[CPUTIME_STEAL];
	return ns;
}

/*
 * CPU time of the running task.  The scheduler updates it at ticks and at context
 * switches, and its function for an update is not exported: the time since the last
 * update is added here.  The scheduler's clock lags by a constant and by that time, so
 * the smallest lag seen is the constant, and only differences matter.  In case it is not
 * constant (interrupts that are accounted for in another way), the smallest lag is raised
 * by a 64th of the time that passes.
 */
static u64 cpu_time(void)
{
	unsigned long flags;
	struct lag *lag;
	u64 now, ns;
	s64 behind;

	local_irq_save(flags);
	lag = this_cpu_ptr(&lags);
	now = local_clock();
	behind = now - current->se.exec_start - interrupt_ns();
	ns = current->se.sum_exec_runtime;
	lag->least_ns += (now - lag->seen_ns) >> 6;
	if (!lag->seen_ns || behind < lag->least_ns || behind - lag->least_ns > UPDATED_NS)
		lag->least_ns = behind;
	lag->seen_ns = now;
	ns += behind - lag->least_ns;
	local_irq_restore(flags);
	return ns;
}

static void end_slot(struct bump_plan *plan, u64 units)
{
	struct speed_bump_plan *head = plan->head;
	u64 now = ktime_get_ns(), cpu_ns = cpu_time(), number;
	struct speed_bump_slot *end;

	number = atomic64_fetch_inc((atomic64_t *)&head->number);
	atomic64_fetch_inc_release((atomic64_t *)&head->changes);
	end = &plan->ends[number % SLOTS];
	WRITE_ONCE(end->tag, 0);
	smp_wmb();	/* the new values are not taken for the old slot's */
	WRITE_ONCE(end->end_ns, now);
	WRITE_ONCE(end->units, units);
	WRITE_ONCE(end->cpu_ns, cpu_ns);
	WRITE_ONCE(end->wait_ns, task_wait_ns(current));
	WRITE_ONCE(end->tid, task_pid_nr(current));
	smp_store_release(&end->tag, number + 1);	/* pairs with user space */
}

static void report_unit(struct bump_plan *plan)
{
	u64 units = atomic64_inc_return((atomic64_t *)&plan->head->units), rest;
	u64 length = READ_ONCE(plan->head->slot_units);

	if (!length)
		return;
	div64_u64_rem(units, length, &rest);
	if (!rest)
		end_slot(plan, units);
}

/* --- hits --- */

/*
 * Adds to a word of a cell, or resets it for slot @number.  A word that changes its slot
 * between two instructions here is 256 slots further, and then counts a hit too many.
 */
static void count(__u64 *word, u64 number, u64 amount)
{
	u64 tag = number << TAG_SHIFT;
	atomic64_t *at = (atomic64_t *)word;
	s64 seen = atomic64_read(at);
	int i;

	amount = min_t(u64, amount, AMOUNT_MASK);
	for (i = 0; i < TRIES; i++) {
		if (!(((u64)seen ^ tag) >> TAG_SHIFT)) {
			atomic64_add(amount, at);
			return;
		}
		if (atomic64_try_cmpxchg(at, &seen, tag | amount))
			return;
	}
}

static struct speed_bump_cell *cell_of(const struct bump_plan *plan, u32 index, u64 number)
{
	return &plan->cells[(size_t)index * CELLS + number % CELLS];
}

/* Switches the hit off, without a need to read the clock. */
static void be_off(struct bump_settings *settings)
{
	settings->enabled = false;
	settings->delay_ns = 0;
	settings->start_ns = 0;
	settings->end_ns = 0;
}

static void be_on(struct bump_settings *settings, const struct bump_plan *plan,
		  const struct speed_bump_plan_target *to, u32 level)
{
	u64 lease_ns = READ_ONCE(plan->head->lease_ns);

	settings->enabled = true;
	settings->every = max_t(u32, READ_ONCE(to->every[level]), 1);
	settings->delay_ns = min_t(u64, READ_ONCE(to->delay_ns[level]), SPEED_BUMP_MAX_DELAY_NS);
	settings->start_ns = lease_ns ? 1 : U64_MAX;
	settings->end_ns = lease_ns;
}

/**
 * bump_plan_begin() - a hit of a planned target
 * @target:	the target
 * @settings:	its own.  [out] those of the plan, which replace them
 *
 * Return: the slot, for bump_plan_end().
 */
u64 bump_plan_begin(struct bump_target *target, struct bump_settings *settings)
{
	struct bump_plan *plan = target->session->plan;
	u32 index = target->plan_place - 1, arm, level;
	const struct speed_bump_plan_target *to;
	u64 number, entry;

	if (target->is_unit)
		report_unit(plan);
	if (!target->plan_place)
		return 0;

	number = READ_ONCE(plan->head->number);
	count(&cell_of(plan, index, number)->calls, number, 1);

	to = &plan->targets[index];
	entry = READ_ONCE(plan->schedule[number % SLOTS]);
	arm = READ_ONCE(to->arm);
	level = entry >> 48 & 0xFF;
	if (entry >> 56 != ((number / SLOTS + 1) & 0xFF) || arm >= SPEED_BUMP_PLAN_ARMS ||
	    !(entry >> arm & 1) || level >= SPEED_BUMP_PLAN_LEVELS)
		be_off(settings);
	else
		be_on(settings, plan, to, array_index_nospec(level, SPEED_BUMP_PLAN_LEVELS));
	return number;
}

/**
 * bump_plan_end() - the delay of a hit is over
 * @target:	the target
 * @number:	as bump_plan_begin() returned it
 * @delivered_ns: how long the delay was; 0: there was none
 */
void bump_plan_end(struct bump_target *target, u64 number, u64 delivered_ns)
{
	struct bump_plan *plan = target->session->plan;

	if (!target->plan_place || !delivered_ns)
		return;
	/* Otherwise the cell belongs to another slot by now. */
	if (READ_ONCE(plan->head->number) - number < CELLS)
		count(&cell_of(plan, target->plan_place - 1, number)->delivered, number,
		      delivered_ns);
}
