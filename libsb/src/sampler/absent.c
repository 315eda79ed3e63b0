// SPDX-License-Identifier: MIT
/* Replaces the sampler if it could not be built. */
#include <errno.h>

#include "error.h"
#include "libsb-provisional.h"

struct sb_sampler *sb_sampler_new(struct sb_error *err)
{
	sb_error_set(err, ENOSYS,
		     "libsb was built without libdw: build it again with its headers "
		     "installed (Debian: libdw-dev; Fedora: elfutils-devel)");
	return NULL;
}

void sb_sampler_free(struct sb_sampler *sampler)
{
	(void)sampler;
}

int sb_sampler_add_function(struct sb_sampler *sampler, struct sb_elf *elf,
			    uint64_t offset, struct sb_error *err)
{
	(void)sampler;
	(void)elf;
	(void)offset;
	return sb_error_set(err, ENOSYS, "libsb was built without libdw");
}

int sb_sampler_add_process(struct sb_sampler *sampler, pid_t pid)
{
	(void)sampler;
	(void)pid;
	errno = ENOSYS;
	return -1;
}

int sb_sampler_leave_out_thread(struct sb_sampler *sampler, pid_t tid)
{
	(void)sampler;
	(void)tid;
	errno = ENOSYS;
	return -1;
}

int sb_sampler_run(struct sb_sampler *sampler, uint64_t ns, struct sb_error *err)
{
	(void)sampler;
	(void)ns;
	return sb_error_set(err, ENOSYS, "libsb was built without libdw");
}

void sb_sampler_stop(struct sb_sampler *sampler)
{
	(void)sampler;
}

uint64_t sb_sampler_self_ns(const struct sb_sampler *sampler, int number)
{
	(void)sampler;
	(void)number;
	return 0;
}

uint64_t sb_sampler_looks(const struct sb_sampler *sampler, int number)
{
	(void)sampler;
	(void)number;
	return 0;
}

uint64_t sb_sampler_value(const struct sb_sampler *sampler, enum sb_sampler_value value)
{
	(void)sampler;
	(void)value;
	return 0;
}

void sb_sampler_keep_stacks(struct sb_sampler *sampler, bool keep)
{
	(void)sampler;
	(void)keep;
}

size_t sb_sampler_stack_count(const struct sb_sampler *sampler)
{
	(void)sampler;
	return 0;
}

uint64_t sb_sampler_stack(const struct sb_sampler *sampler, size_t index,
			  enum sb_stack_value value)
{
	(void)sampler;
	(void)index;
	(void)value;
	return 0;
}

const char *sb_sampler_frame(const struct sb_sampler *sampler, size_t index, size_t frame,
			     uint64_t *offset)
{
	(void)sampler;
	(void)index;
	(void)frame;
	(void)offset;
	return NULL;
}
