/* SPDX-License-Identifier: MIT */
/* Persistent targets that are there, found by what a command line names. */
#ifndef SELECTION_H
#define SELECTION_H

#include "libsb.h"

struct selection {
	uint64_t *ids; /* ascending, each once */
	size_t count, room;
};

void selection_free(struct selection *selection);
void selection_add(struct selection *selection, uint64_t id);
bool selection_has(const struct selection *selection, uint64_t id);

/*
 * Select the targets at PATH:SYMBOL, only those of process @pid where it is not 0. The
 * file itself is what counts, not how its path is spelt; a target whose file is gone
 * is found by its label. 0, or the exit status after a message where there is none.
 */
int select_targets(struct sb_session *session, const char *text, pid_t pid,
		   struct selection *selection, struct sb_error *err);

#endif
