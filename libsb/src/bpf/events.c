// SPDX-License-Identifier: MIT
/*
 * Calls of targets that have ended, each as an event: rings that the programs fill. A ring
 * keeps the oldest events; those that found no room are counted with the durations.
 */
#include <errno.h>

#include <bpf/libbpf.h>

#include "bpf/operations.h"
#include "bpf/session.h"
#include "libsb-provisional.h"

/* What take() returns when there is no more room; the event was taken. */
#define FULL (-ENOSPC)

static int take(void *context, void *data, size_t size)
{
	const struct sb_bpf_event *event = data;
	struct sb_bpf_events *events = context;

	if (size < sizeof(*event))
		return 0;
	events->to[events->count++] = (struct sb_call_event){
		.begin_ns = event->begin_ns,
		.duration_ns = event->duration_ns,
		.id = (uint64_t)events->session << 32 | event->id,
		.pid = event->tgid,
	};
	return events->count < events->room ? 0 : FULL;
}

int sb_bpf_events_open(struct sb_bpf_bank_own *bank, int fd)
{
	bank->events.ring = ring_buffer__new(fd, take, &bank->events, NULL);
	return bank->events.ring ? 0 : -1;
}

void sb_bpf_events_close(struct sb_bpf_bank_own *bank)
{
	ring_buffer__free(bank->events.ring);
	bank->events.ring = NULL;
}

static uint64_t count_lost(const struct sb_bpf_bank_own *bank)
{
	const struct sb_bpf_durations *durations = bank->durations.at;
	uint64_t lost = 0;

	for (uint32_t i = 0; i < bank->records; i++)
		lost += __atomic_load_n(&durations[i].lost, __ATOMIC_RELAXED);
	return lost;
}

int sb_bpf_events(struct sb_backend *backend, struct sb_call_event *events, size_t room,
		  size_t *count, uint64_t *lost)
{
	struct sb_bpf *bpf = to_bpf(backend);
	int ret;

	*count = 0;
	*lost = 0;
	for (uint32_t i = 0; i < bpf->bank_count; i++) {
		struct sb_bpf_bank_own *bank = bpf->banks[i];
		struct sb_bpf_events *from = &bank->events;

		if (!bank->has_events)
			continue;
		*lost += count_lost(bank);
		if (*count == room)
			continue;
		from->session = bpf->id;
		from->to = events + *count;
		from->room = room - *count;
		from->count = 0;
		ret = ring_buffer__consume(from->ring);
		*count += from->count;
		if (ret < 0 && ret != FULL) {
			errno = -ret;
			return -1;
		}
	}
	return 0;
}
