/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_COMMAND_H
#define BUMP_COMMAND_H

#include <linux/types.h>

#define BUMP_COMMAND_MAX_PATH	256
#define BUMP_COMMAND_MAX_SYMBOL	128

enum bump_command_verb {
	BUMP_COMMAND_ADD,		/* +PATH:SYMBOL [DELAY_NS | N%] [pid=N] */
	BUMP_COMMAND_REMOVE,	/* -PATH:SYMBOL [pid=N] */
	BUMP_COMMAND_REMOVE_ALL,	/* -* */
	BUMP_COMMAND_UPDATE,	/* =PATH:SYMBOL DELAY_NS | N% [pid=N] */
};

/**
 * struct bump_command - a line that was written to "targets"
 * @verb:	what to do
 * @has_delay:	@delay_ns or @delay_ppm was given
 * @delay_ns:	at most SPEED_BUMP_MAX_DELAY_NS
 * @delay_ppm:	instead: a part of the duration, at most SPEED_BUMP_MAX_DELAY_PPM; 0: none
 * @pid:	greater than 0, or 0 where none was given
 * @path:	absolute, NUL-terminated
 * @symbol:	not empty, NUL-terminated
 */
struct bump_command {
	enum bump_command_verb verb;
	bool has_delay;
	u64 delay_ns;
	u32 delay_ppm;
	s32 pid;
	char path[BUMP_COMMAND_MAX_PATH + 1];
	char symbol[BUMP_COMMAND_MAX_SYMBOL + 1];
};

int bump_command_parse(struct bump_command *command, const char *text, size_t len);

#endif /* BUMP_COMMAND_H */
