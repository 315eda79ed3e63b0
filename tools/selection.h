/* SPDX-License-Identifier: MIT */
/* Existing persistent targets that a command line names. */
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
 * Select the targets at PATH:SYMBOL, only those of process @pid if it is not 0. Any path of
 * the file will do; a target whose file is gone is found by its label. 0, or the exit
 * status after a message if there is no such target.
 */
int select_targets(struct sb_session *session, const char *text, pid_t pid,
		   struct selection *selection, struct sb_error *err);

#endif
