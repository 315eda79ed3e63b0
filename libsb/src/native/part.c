// SPDX-License-Identifier: MIT
#include <errno.h>
#include <string.h>

#include "elf/file.h"
#include "elf/places.h"
#include "elf/returns.h"
#include "error.h"
#include "native/part.h"

/* Whether @text is a glob, and not the name itself. */
static bool is_matched(const struct sb_place *place, const char *text)
{
	return strpbrk(text, "*?[") && strcmp(place->name, text);
}

int sb_part_place(struct sb_elf *elf, const struct sb_place *place, const char *text,
		  uint64_t *offset, struct sb_error *err)
{
	const char *why = sb_elf_no_return(place);

	*offset = sb_elf_call_offset(elf, place);
	if (!why)
		return 0;
	if (is_matched(place, text))
		return 1;
	return sb_error_set(err, EINVAL,
			    "%s: '%s' %s: name a function that returns, or write a time such "
			    "as 10us instead of a percentage",
			    sb_elf_path(elf), place->name, why);
}

int sb_part_check_file(struct sb_elf *elf, const char *text, struct sb_error *err)
{
	const char *what = sb_elf_unwinds(elf);

	if (!what)
		return 0;
	return sb_error_set(
		err, EINVAL,
		"%s: '%s': the file has code that works with %s; where they pass a "
		"function whose return is caught, for a percentage or its duration, "
		"the program ends (sbctl's --unsafe accepts it anyway)",
		sb_elf_path(elf), text, what);
}

int sb_part_prepare(struct sb_session *session, struct sb_target *targets, size_t count,
		    struct sb_error *err)
{
	for (size_t i = 0; i < count; i++) {
		struct sb_target *target = &targets[i];
		enum sb_hit_kind kind;
		bool stepped;

		if (!sb_target_has_end(target))
			continue;
		kind = sb_hit_kind_at(target->fd, target->offset);
		target->cost_ns = sb_session_call_cost_ns(session, kind, err);
		if (!target->cost_ns)
			return -1;
		stepped = kind == SB_HIT_STEPPED;
		target->timed_ns = session->call_timed_ns[stepped];
		target->over_ns = session->call_over_ns[stepped];
	}
	return 0;
}

const char *sb_part_text(uint32_t ppm, char buf[16])
{
	sb_percentage_format(ppm, buf, 16);
	return buf;
}
