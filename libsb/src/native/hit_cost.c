// SPDX-License-Identifier: MIT
/*
 * What a hit costs beside its delay: the exception, the handler, and the instruction that
 * the kernel emulates or single-steps. It depends on the machine, above all on whether it is
 * a virtual one, and on what serves; so it is measured, with functions of our own.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "native/backend.h"
#include "error.h"
#include "elf/insn.h"
#include "native/session.h"

#define ROUNDS 16
#define CALLS  25

/* A function at offset 0 whose first instruction is emulated, one at STEPPED. */
#define STEPPED 64

#if defined(__x86_64__)
static const unsigned char emulated_code[] = { 0x53, 0x5b, 0xc3 }; /* push, pop, ret */
static const unsigned char stepped_code[] = { 0x89, 0xc0, 0xc3 }; /* mov %eax, %eax; ret */
#else
static const uint32_t emulated_code[] = { 0x14000001, 0xd65f03c0 }; /* b .+4; ret */
static const uint32_t stepped_code[] = { 0xaa0003e0, 0xd65f03c0 }; /* mov x0, x0; ret */
#endif

enum sb_hit_kind sb_hit_kind_at(int fd, uint64_t offset)
{
	unsigned char code[SB_INSN_MAX_LENGTH] = { 0 };
	ssize_t n = pread(fd, code, sizeof(code), (off_t)offset);

	return n > 0 && sb_insn_is_emulated(code, (size_t)n) ? SB_HIT_EMULATED :
							       SB_HIT_STEPPED;
}

enum sb_hit_kind sb_elf_hit_kind(const struct sb_elf *elf, uint64_t offset)
{
	return sb_hit_kind_at(sb_elf_fd(elf), offset);
}

/* The quickest of some rounds: what disturbs a call only makes it longer. */
static uint64_t time_calls(void (*function)(void))
{
	uint64_t best = UINT64_MAX;

	function();
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t start = sb_spin_ticks(), took;

		for (int k = 0; k < CALLS; k++)
			function();
		took = sb_spin_ticks_to_ns(sb_spin_ticks() - start);
		best = took < best ? took : best;
	}
	return best / CALLS;
}

static uint64_t measure(struct sb_backend *backend, int fd, char *code, uint64_t offset,
			struct sb_error *err)
{
	char label[] = "[the cost of a hit]";
	struct sb_target target = { .fd = fd,
				    .offset = offset,
				    .label = label,
				    .options = { .scope = SB_SCOPE_THREAD,
						 .scope_id = (int)syscall(SYS_gettid) } };
	uint64_t without, with;
	void (*function)(void);
	size_t failed;

	*(void **)&function = code + offset;
	without = time_calls(function);
	if (backend->problem)
		sb_error_set(backend->problem, 0, "%s", "");
	if (backend->ops->add(backend, &target, 1, &failed)) {
		bool is_known = backend->problem && sb_error_code(backend->problem) == errno;

		sb_error_set(err, errno, "the cost of a hit can't be measured: %s",
			     is_known ? sb_error_message(backend->problem) : strerror(errno));
		return 0;
	}
	with = time_calls(function);
	backend->ops->remove(backend, &target.id, 1, &failed);
	return with > without ? with - without : 1;
}

uint64_t sb_session_hit_cost_ns(struct sb_session *session, enum sb_hit_kind kind,
				struct sb_error *err)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t offset = kind == SB_HIT_STEPPED ? STEPPED : 0;
	uint64_t *known;
	char *code;
	int fd;

	if (kind != SB_HIT_EMULATED && kind != SB_HIT_STEPPED) {
		sb_error_set(err, EINVAL, "there is no kind %d of hits", kind);
		return 0;
	}
	known = &session->hit_cost_ns[kind == SB_HIT_STEPPED];
	if (*known)
		return *known;
	fd = memfd_create("speed_bump", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size) ||
	    pwrite(fd, emulated_code, sizeof(emulated_code), 0) < 0 ||
	    pwrite(fd, stepped_code, sizeof(stepped_code), STEPPED) < 0) {
		sb_error_set(err, errno, "the cost of a hit can't be measured: %s",
			     strerror(errno));
		goto out;
	}
	/* Private, for a breakpoint goes into no other memory. */
	code = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	if (code == MAP_FAILED) {
		sb_error_set(err, errno, "the cost of a hit can't be measured: %s",
			     strerror(errno));
		goto out;
	}
	*known = measure(session->backend, fd, code, offset, err);
	munmap(code, size);
out:
	if (fd >= 0)
		close(fd);
	return *known;
}
