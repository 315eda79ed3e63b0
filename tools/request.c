// SPDX-License-Identifier: MIT
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>

#include "message.h"
#include "request.h"
#include "sbctl.h"

static int request_spec(struct request *request, const struct sb_spec *spec,
			const char *file, struct sb_error *err)
{
	if (request->no_pid && sb_spec_given(spec) & SB_SPEC_PID)
		return fail("%s:%s: pid= can't be given here: the targets apply to the command or "
			    "to --pid",
			    sb_spec_left(spec), sb_spec_right(spec));
	if (sb_batch_add_spec(request->batch, spec, &request->options, err) >= 0)
		return 0;
	if (file)
		return fail("%s:%u: %s", file, sb_spec_line(spec), sb_error_message(err));
	return fail_with(err);
}

int request_text(struct request *request, const char *text, struct sb_error *err)
{
	struct sb_spec *spec = sb_spec_parse(text, SB_SPEC_NATIVE, err);
	int ret;

	if (!spec)
		return fail_with(err);
	ret = request_spec(request, spec, NULL, err);
	sb_spec_free(spec);
	return ret;
}

/* Read a whole file, NUL-terminated; the caller frees it. NULL with errno. */
static char *read_file(const char *path, size_t *length)
{
	FILE *file = strcmp(path, "-") ? fopen(path, "re") : stdin;
	size_t room = 0;
	char *text = NULL;

	*length = 0;
	while (file) {
		char *larger = realloc(text, room += 65536);

		if (!larger)
			break;
		text = larger;
		*length += fread(text + *length, 1, room - *length - 1, file);
		if (*length < room - 1)
			break;
	}
	if (!file || !text || ferror(file)) {
		free(text);
		text = NULL;
	} else {
		text[*length] = '\0';
	}
	if (file && file != stdin) {
		int code = errno;

		fclose(file);
		errno = code;
	}
	return text;
}

static bool has_native_line(const char *text)
{
	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += strspn(line, " \t\r\n");
		if (!strncmp(line, "native:", 7))
			return true;
		if (!*line)
			break;
	}
	return false;
}

int request_file(struct request *request, const char *path, struct sb_error *err)
{
	const char *name = strcmp(path, "-") ? path : "standard input";
	size_t length;
	struct sb_specs *specs;
	int ret = 0;
	char *text;

	text = read_file(path, &length);
	if (!text)
		return fail("%s: %s", name, strerror(errno));
	specs = sb_specs_parse(text, length, name,
			       has_native_line(text) ? SB_SPEC_FILE : SB_SPEC_NATIVE, err);
	free(text);
	if (!specs)
		return fail_with(err);
	if (!sb_specs_count(specs))
		ret = fail("%s: the file names no target", name);
	for (size_t i = 0; i < sb_specs_count(specs) && !ret; i++) {
		const struct sb_spec *spec = sb_specs_get(specs, i);

		if (sb_spec_kind(spec) == SB_SPEC_KIND_NATIVE)
			ret = request_spec(request, spec, name, err);
		else
			request->passed_over++;
	}
	sb_specs_free(specs);
	return ret;
}

/* The function that an IFUNC chooses on this CPU, as a target; "" if it is unknown. */
static void choice_of(const char *label, char *buf, size_t size)
{
	const char *symbol = strrchr(label, ':'), *name = NULL;
	char *path = strndup(label, (size_t)(symbol - label));
	struct sb_elf *elf = path ? sb_elf_open(path, NULL) : NULL;
	uint64_t offset;

	buf[0] = '\0';
	if (elf && !sb_elf_ifunc_choice(elf, symbol + 1, &offset)) {
		for (size_t i = 0; i < sb_elf_symbol_count(elf) && !name; i++)
			if (sb_symbol_offset(sb_elf_symbol(elf, i)) == offset)
				name = sb_symbol_name(sb_elf_symbol(elf, i));
		if (name)
			snprintf(buf, size, "%s:%s", path, name);
		else
			snprintf(buf, size, "%s:@0x%" PRIx64, path, offset);
	}
	sb_elf_close(elf);
	free(path);
}

void request_notes(const struct request *request)
{
	const char *label = NULL;
	size_t choosers = 0;
	char choice[4500];

	if (request->passed_over)
		note("%zu Python %s skipped: sbctl delays native functions only",
		     request->passed_over,
		     request->passed_over == 1 ? "pattern" : "patterns");
	for (size_t i = 0; i < sb_batch_count(request->batch); i++) {
		if (sb_batch_kind(request->batch, i) != SB_SYMBOL_IFUNC)
			continue;
		if (!choosers++)
			label = sb_batch_label(request->batch, i);
	}
	if (!choosers)
		return;
	/* The name of an IFUNC looks like that of the function that it chooses. */
	choice_of(label, choice, sizeof(choice));
	note("%s%s: the code there only chooses a function, once per process (IFUNC); %s%s",
	     label, choosers > 1 ? " and others" : "",
	     choice[0] ? "on this CPU it chooses " :
			 "'sbctl symbols' lists the functions that it chooses from",
	     choice);
}

bool is_target(const char *argument)
{
	return strchr(argument, ':');
}

int need_targets(const char *command, char *const *arguments, int count)
{
	for (int i = 0; i < count; i++)
		if (!is_target(arguments[i]))
			return usage_error(command, "'%s' is not PATH:SYMBOL",
					   arguments[i]);
	return count ? 0 : usage_error(command, "no target is named");
}

int parse_duration(const char *command, const char *text, uint64_t *ns)
{
	if (!sb_duration_parse(text, ns))
		return 0;
	if (errno == ERANGE)
		return fail("'%s' is too long", text);
	return usage_error(command, "'%s' is not a duration such as 500, 10us or 1.5ms",
			   text);
}

int parse_delay(const char *command, const char *text, uint64_t *ns)
{
	int ret = parse_duration(command, text, ns);

	if (!ret && *ns > SB_MAX_DELAY_NS)
		return fail("a delay of %s is over the limit of 10s", text);
	return ret;
}

int parse_delay_or_part(const char *command, const char *text, uint64_t *ns, uint32_t *ppm)
{
	*ns = *ppm = 0;
	if (!strchr(text, '%'))
		return parse_delay(command, text, ns);
	if (!sb_percentage_parse(text, ppm))
		return 0;
	return usage_error(command,
			   "'%s' is not a percentage over 0 and at most %d%% with at most 4 "
			   "decimals",
			   text, SB_MAX_DELAY_PERCENT);
}

int parse_number(const char *command, const char *what, const char *text,
		 unsigned long max, unsigned long *number)
{
	char *end;

	errno = 0;
	*number = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || !*number || *number > max)
		return usage_error(command, "'%s' is not %s", text, what);
	return 0;
}

int parse_pid(const char *command, const char *text, pid_t *pid)
{
	unsigned long number;
	int ret = parse_number(command, "a process id", text, INT_MAX, &number);

	*pid = (pid_t)number;
	return ret;
}
