/* SPDX-License-Identifier: MIT */
/* Targets and what they did, for people and as JSON. */
#ifndef REPORT_H
#define REPORT_H

#include <stdio.h>

#include "json.h"
#include "libsb.h"
#include "selection.h"

/* "emulated" or "stepped". */
const char *hit_name(enum sb_hit_kind kind);

/* What a hit of each target costs beside its delay. */
struct hits {
	struct {
		enum sb_hit_kind kind; /* 0: not known, its file can't be read */
		uint64_t cost_ns; /* 0: not known */
	} *hit; /* in the order of the list */
};

/* Find them out, which takes a moment. hits_free() in any case. */
void hits_measure(struct hits *hits, struct sb_session *session,
		  const struct sb_target_list *list);
void hits_free(struct hits *hits);

/*
 * The targets as a table; @only restricts it or is NULL. @enabled is the global switch,
 * which decides about persistent targets. @hits, or NULL, is shown too.
 */
void report_targets(FILE *out, const struct sb_target_list *list,
		    const struct selection *only, const struct hits *hits, bool enabled);
/* What each target did, as a table. */
void report_statistics(FILE *out, const struct sb_target_list *list,
		       const struct hits *hits);
/* "targets": [...] with all that is known; @hits may be NULL. */
void report_json(struct json *json, const struct sb_target_list *list,
		 const struct selection *only, const struct hits *hits);

/* Everything, persistent targets and those of sessions. */
#define LIST_ALL (SB_LIST_SESSION | SB_LIST_PERSISTENT | SB_LIST_OTHERS)

#endif
