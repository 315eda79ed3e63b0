/* SPDX-License-Identifier: MIT */
/* Delays that are a part of each call's duration. */
#ifndef SB_PART_H
#define SB_PART_H

#include "native/session.h"

struct sb_place;

/*
 * Whether calls of the function at @place, which @text names, have a duration. 0 and the
 * *@offset of its breakpoint; 1: it has none, and is only one of those that @text matches;
 * -1 with errno and a message.
 */
int sb_part_place(struct sb_elf *elf, const struct sb_place *place, const char *text,
		  uint64_t *offset, struct sb_error *err);
/* -1 with EINVAL and a message if exceptions may leave functions of the file. */
int sb_part_check_file(struct sb_elf *elf, const char *text, struct sb_error *err);
/*
 * Give targets whose delay is a part the cost of their breakpoints, which is measured once
 * in a session. 0, or -1 with errno and a message.
 */
int sb_part_prepare(struct sb_session *session, struct sb_target *targets, size_t count,
		    struct sb_error *err);
/* A delay of "5%", for a message. */
const char *sb_part_text(uint32_t ppm, char buf[16]);

#endif
