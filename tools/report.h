/* SPDX-License-Identifier: MIT */
/* Targets and what they did, for people and as JSON. */
#ifndef REPORT_H
#define REPORT_H

#include <stdio.h>

#include "json.h"
#include "libsb.h"
#include "selection.h"

/*
 * The targets as a table; @only restricts it or is NULL. @enabled is the global switch,
 * which decides about persistent targets.
 */
void report_targets(FILE *out, const struct sb_target_list *list,
		    const struct selection *only, bool enabled);
/* What each target did, as a table. */
void report_statistics(FILE *out, const struct sb_target_list *list);
/* "targets": [...] with all that is known. */
void report_json(struct json *json, const struct sb_target_list *list,
		 const struct selection *only);

/* Everything, persistent targets and those of sessions. */
#define LIST_ALL (SB_LIST_SESSION | SB_LIST_PERSISTENT | SB_LIST_OTHERS)

#endif
