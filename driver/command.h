/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_COMMAND_H
#define SB_COMMAND_H

#include <linux/types.h>

#define SB_COMMAND_MAX_PATH	256
#define SB_COMMAND_MAX_SYMBOL	128

enum sb_command_verb {
	SB_COMMAND_ADD,		/* +PATH:SYMBOL [DELAY_NS] [pid=N] */
	SB_COMMAND_REMOVE,	/* -PATH:SYMBOL [pid=N] */
	SB_COMMAND_REMOVE_ALL,	/* -* */
	SB_COMMAND_UPDATE,	/* =PATH:SYMBOL DELAY_NS [pid=N] */
};

/**
 * struct sb_command - a line that was written to "targets"
 * @verb:	what to do
 * @has_delay:	@delay_ns was given
 * @delay_ns:	at most SPEED_BUMP_MAX_DELAY_NS
 * @pid:	greater than 0, or 0 where none was given
 * @path:	absolute, NUL-terminated
 * @symbol:	not empty, NUL-terminated
 */
struct sb_command {
	enum sb_command_verb verb;
	bool has_delay;
	u64 delay_ns;
	s32 pid;
	char path[SB_COMMAND_MAX_PATH + 1];
	char symbol[SB_COMMAND_MAX_SYMBOL + 1];
};

int sb_command_parse(struct sb_command *command, const char *text, size_t len);

#endif /* SB_COMMAND_H */
