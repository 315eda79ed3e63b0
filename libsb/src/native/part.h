/* SPDX-License-Identifier: MIT */
/* Delays that are a part of each call's duration. */
#ifndef SB_PART_H
#define SB_PART_H

#include "native/session.h"

struct sb_place;

/*
 * Whether the function at @place has calls with a duration. 0: it has, and its breakpoint is at
 * *@offset. 1: it has not, and @text is a pattern that only matches it. -1 with errno and a
 * message: it has not, and @text is its name.
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
