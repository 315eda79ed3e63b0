// SPDX-License-Identifier: MIT
/* Removal of breakpoints. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "bpf/link.h"
#include "free.h"

struct closing {
	pthread_t thread;
	int *fds;
	size_t count;
};

static void *close_some(void *arg)
{
	struct closing *closing = arg;

	for (size_t i = 0; i < closing->count; i++)
		close(closing->fds[i]);
	return NULL;
}

/*
 * The kernel waits when a link is closed. Kernels with multi links have few links; with
 * one link per breakpoint, several are closed in parallel.
 */
void sb_bpf_close_all(int *fds, size_t count)
{
	struct closing closings[32];
	size_t threads = count > 4 ? 32 : 1, share = (count + threads - 1) / threads;
	size_t started = 0, done = 0;

	for (; started < threads && done < count; started++) {
		struct closing *closing = &closings[started];
		size_t rest = count - done;

		*closing = (struct closing){ .fds = fds + done,
					     .count = rest < share ? rest : share };
		done += closing->count;
		if (threads == 1 ||
		    pthread_create(&closing->thread, NULL, close_some, closing)) {
			close_some(closing);
			closing->count = 0;
		}
	}
	for (size_t i = 0; i < started; i++)
		if (closings[i].count)
			pthread_join(closings[i].thread, NULL);
}

void sb_bpf_links_end(struct sb_bpf_link *links, size_t count)
{
	int *fds = calloc(count ? 2 * count : 1, sizeof(*fds));
	size_t open = 0;

	for (size_t i = 0; i < 2 * count; i++) {
		struct sb_bpf_link *link = &links[i / 2];
		int *fd = i % 2 ? &link->end_fd : &link->fd;

		if (*fd < 0)
			continue;
		if (fds)
			fds[open++] = *fd;
		else
			close(*fd);
		*fd = -1;
	}
	if (fds)
		sb_bpf_close_all(fds, open);
	sb_free(fds);
}
