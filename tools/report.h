/* SPDX-License-Identifier: MIT */
/* Targets and their counts, as tables and as JSON. */
#ifndef REPORT_H
#define REPORT_H

#include <stdio.h>

#include "json.h"
#include "libsb.h"
#include "selection.h"

/* "emulated" or "stepped". */
const char *hit_name(enum sb_hit_kind kind);

/* The cost of a hit of a target, apart from the delay. */
struct hit {
	enum sb_hit_kind kind; /* 0: unknown, the file can't be read */
	uint64_t cost_ns; /* 0: unknown */
};

struct hits {
	struct hit *hit; /* in the order of the list */
};

/* Measure the costs, which takes a moment. The caller calls hits_free() in any case. */
void hits_measure(struct hits *hits, struct sb_session *session,
		  const struct sb_target_list *list);
void hits_free(struct hits *hits);

/*
 * Print the targets as a table: those in @only, or all if it is NULL. @enabled is the
 * global switch, which applies to persistent targets. @hits may be NULL.
 */
void report_targets(FILE *out, const struct sb_target_list *list,
		    const struct selection *only, const struct hits *hits, bool enabled);
/* The delay of the @i th target as it is given: "10us" or "5%". */
const char *report_delay(const struct sb_target_list *list, size_t i, char buf[32]);
/* Print the counts of each target as a table. */
void report_statistics(FILE *out, const struct sb_target_list *list,
		       const struct hits *hits);
/* "targets": [...] with every counter; @hits may be NULL. */
void report_json(struct json *json, const struct sb_target_list *list,
		 const struct selection *only, const struct hits *hits);

/* Persistent targets and those of all sessions. */
#define LIST_ALL (SB_LIST_SESSION | SB_LIST_PERSISTENT | SB_LIST_OTHERS)

#endif
