// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* driver/command.c: any text; an accepted command means the same when written out again. */
#include <stdio.h>

#include "../command.c"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

static const char prefixes[] = {
	[BUMP_COMMAND_ADD] = '+', [BUMP_COMMAND_REMOVE] = '-', [BUMP_COMMAND_UPDATE] = '=',
};

static int write_command(const struct bump_command *c, char *to, size_t room)
{
	char delay[32] = "", pid[32] = "";

	if (c->verb == BUMP_COMMAND_REMOVE_ALL)
		return snprintf(to, room, "-*");
	if (c->delay_ppm)
		snprintf(delay, sizeof(delay), " %u.%04u%%", c->delay_ppm / 10000,
			 c->delay_ppm % 10000);
	else if (c->has_delay)
		snprintf(delay, sizeof(delay), " %llu", (unsigned long long)c->delay_ns);
	if (c->pid)
		snprintf(pid, sizeof(pid), "\tpid=%d", c->pid);
	return snprintf(to, room, "%c%s:%s%s%s\n", prefixes[c->verb], c->path, c->symbol,
			delay, pid);
}

static void check(const struct bump_command *c)
{
	char text[1024];
	struct bump_command again;
	int len;

	if (c->verb != BUMP_COMMAND_REMOVE_ALL &&
	    (c->path[0] != '/' || !c->symbol[0] || strchr(c->symbol, ':') ||
	     strpbrk(c->symbol, " \t\n")))
		abort();
	if (c->delay_ns > SPEED_BUMP_MAX_DELAY_NS || (c->delay_ns && !c->has_delay) || c->pid < 0)
		abort();
	if (c->delay_ppm && (c->delay_ns || !c->has_delay ||
			     c->delay_ppm > SPEED_BUMP_MAX_DELAY_PPM))
		abort();
	if (c->verb == BUMP_COMMAND_UPDATE ? !c->has_delay :
	    c->has_delay && c->verb != BUMP_COMMAND_ADD)
		abort();

	len = write_command(c, text, sizeof(text));
	if (bump_command_parse(&again, text, len) || memcmp(&again, c, sizeof(again)))
		abort();
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct bump_command command;
	char *text = malloc(size);
	int err;

	memcpy(text, data, size);
	err = bump_command_parse(&command, text, size);
	if (!err)
		check(&command);
	else if (err != -EINVAL && err != -ENAMETOOLONG && err != -ERANGE)
		abort();
	free(text);
	return 0;
}
