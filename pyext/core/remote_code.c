// SPDX-License-Identifier: MIT
#include "compat.h"

#include <stdlib.h>
#include <string.h>

#include "remote.h"
#include "remote_code.h"

#define MAX_TEXT  4096
#define MAX_LINES (1 << 20) /* bytes of a table of lines */

/* A string of the process as UTF-8; NULL: it is not a string. */
static char *read_text(pid_t pid, const struct layout *layout, uint64_t address)
{
	int failed = 0;
	uint64_t length = remote_word(pid, address + layout->text_length, &failed);
	uint64_t state = remote_word(pid, address + layout->text_state, &failed);
	uint64_t begin, size = 0, kind = state & layout->text_kind;
	unsigned char wide[MAX_TEXT];
	char *text, *end;

	/* The value of a field of three bits, at any position. */
	kind /= layout->text_kind & -layout->text_kind;
	begin = address + ((state & layout->text_is_ascii) ? layout->text_ascii :
							     layout->text_compact);
	if (failed || length > MAX_TEXT / 4 || (kind != 1 && kind != 2 && kind != 4) ||
	    remote_read(pid, begin, wide, length * kind))
		return NULL;
	text = end = malloc(length * 4 + 1);
	for (uint64_t i = 0; text && i < length; i++) {
		uint32_t c = wide[i];

		if (kind == 2)
			c = (uint32_t)wide[2 * i] | (uint32_t)wide[2 * i + 1] << 8;
		else if (kind == 4)
			memcpy(&c, wide + 4 * i, sizeof(c));
		if (c < 0x80) {
			*end++ = (char)c;
			continue;
		}
		size = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
		*end++ = (char)(((0xff << (7 - size)) & 0xff) | c >> (6 * size));
		while (size--)
			*end++ = (char)(0x80 | ((c >> (6 * size)) & 0x3f));
	}
	if (text)
		*end = '\0';
	return text;
}

static void read_lines(struct code *code, const struct layout *layout, uint64_t address)
{
	int failed = 0;
	uint64_t size = remote_word(code->pid, address + layout->bytes_size, &failed);

	if (failed || size > MAX_LINES)
		return;
	code->lines = malloc(size + 1);
	if (!code->lines)
		return;
	if (remote_read(code->pid, address + layout->bytes_data, code->lines, size))
		size = 0;
	code->lines_size = size;
}

void code_read(struct code *code, const struct layout *layout)
{
	pid_t pid = code->pid;
	uint64_t at = code->address, lines;
	int failed = 0;

	if (remote_word(pid, at + layout->object_type, &failed) != layout->code_type ||
	    failed)
		return;
	code->name =
		read_text(pid, layout, remote_word(pid, at + layout->code_name, &failed));
	code->file = read_text(pid, layout,
			       remote_word(pid, at + layout->code_filename, &failed));
	lines = remote_word(pid, at + layout->code_linetable, &failed);
	code->first_line = (int)remote_word(pid, at + layout->code_first_line, &failed);
	code->yields = remote_word(pid, at + layout->code_flags, &failed) &
		       (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR);
	if (layout->code_copies != UINT64_MAX)
		code->copies = remote_word(pid, at + layout->code_copies, &failed);
	code->bytes = layout->code_bytes == UINT64_MAX ? 0 : at + layout->code_bytes;
	/* 3.12 has code with that file name for calls from C into Python. */
	if (failed || !code->file || !strcmp(code->file, "<shim>")) {
		free(code->name);
		code->name = NULL;
		return;
	}
	read_lines(code, layout, lines);
}

void code_free(struct code *code)
{
	free(code->site);
	free(code->name);
	free(code->file);
	free(code->lines);
}
