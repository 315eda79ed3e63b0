// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "message.h"
#include "sbctl.h"
#include "selection.h"

void selection_free(struct selection *selection)
{
	free(selection->ids);
}

static size_t position(const struct selection *selection, uint64_t id)
{
	size_t low = 0, high = selection->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (selection->ids[middle] < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool selection_has(const struct selection *selection, uint64_t id)
{
	size_t at = position(selection, id);

	return at < selection->count && selection->ids[at] == id;
}

void selection_add(struct selection *selection, uint64_t id)
{
	size_t at = position(selection, id);

	if (selection_has(selection, id))
		return;
	selection->ids = array_grow(selection->ids, &selection->room, selection->count,
				    sizeof(*selection->ids));
	memmove(selection->ids + at + 1, selection->ids + at,
		(selection->count++ - at) * sizeof(*selection->ids));
	selection->ids[at] = id;
}

static bool has_pid(const struct sb_target_list *list, size_t i, pid_t pid)
{
	return !pid || sb_target_list_scope_id(list, i) == pid;
}

static int compare_offsets(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Select by file and offset. Returns the number found, or -1 with @err. */
static long select_places(struct sb_session *session, const struct sb_spec *spec,
			  pid_t pid, struct selection *selection, struct sb_error *err)
{
	char *symbol = NULL;
	struct sb_elf *elf = sb_spec_open(spec, &symbol, err);
	/* An existing target may be in the middle of an instruction. */
	struct sb_places *places = elf ? sb_elf_find_unsafe(elf, symbol, err) : NULL;
	struct sb_target_list *list =
		places ? sb_session_list(session, SB_LIST_PERSISTENT, elf, err) : NULL;
	uint64_t *offsets = list ? calloc(sb_places_count(places), sizeof(*offsets)) :
				   NULL;
	long found = offsets ? 0 : -1;

	for (size_t i = 0; offsets && i < sb_places_count(places); i++)
		offsets[i] = sb_places_offset(places, i);
	if (offsets)
		qsort(offsets, sb_places_count(places), sizeof(*offsets), compare_offsets);
	for (size_t i = 0; offsets && i < sb_target_list_count(list); i++) {
		uint64_t offset = sb_target_list_offset(list, i);

		if (!has_pid(list, i, pid) ||
		    !bsearch(&offset, offsets, sb_places_count(places), sizeof(*offsets),
			     compare_offsets))
			continue;
		selection_add(selection, sb_target_list_id(list, i));
		found++;
	}
	free(offsets);
	free(symbol);
	sb_target_list_free(list);
	sb_places_free(places);
	sb_elf_close(elf);
	return found;
}

static bool has_label(const char *label, const char *path, const char *symbol)
{
	size_t length = strlen(path);

	return !strncmp(label, path, length) && label[length] == ':' &&
	       sb_glob_match(symbol, label + length + 1);
}

/*
 * Select by label, for files that were replaced or deleted, or have lost their symbols. With
 * @is_replaced, select only targets whose path no longer names their file: select_places()
 * has found the others.
 */
static long select_labels(struct sb_session *session, const struct sb_spec *spec,
			  pid_t pid, bool is_replaced, struct selection *selection)
{
	struct sb_target_list *list =
		sb_session_list(session, SB_LIST_PERSISTENT | SB_LIST_FILES, NULL, NULL);
	char *symbol = NULL;
	struct sb_elf *elf = sb_spec_open(spec, &symbol, NULL);
	long found = 0;

	for (size_t i = 0; list && i < sb_target_list_count(list); i++) {
		const char *label = sb_target_list_label(list, i);
		enum sb_file_state file = sb_target_list_file(list, i);

		if (!has_pid(list, i, pid) ||
		    (is_replaced && file != SB_FILE_REPLACED && file != SB_FILE_GONE))
			continue;
		if (!has_label(label, sb_spec_left(spec), sb_spec_right(spec)) &&
		    !(elf && has_label(label, sb_elf_path(elf), symbol)))
			continue;
		selection_add(selection, sb_target_list_id(list, i));
		found++;
	}
	sb_elf_close(elf);
	free(symbol);
	sb_target_list_free(list);
	return found;
}

int select_targets(struct sb_session *session, const char *text, pid_t pid,
		   struct selection *selection, struct sb_error *err)
{
	struct sb_spec *spec = sb_spec_parse(text, SB_SPEC_NATIVE, err);
	long found;
	int ret = 0;

	if (!spec)
		return fail_with(err);
	if (sb_spec_given(spec) & ~SB_SPEC_PID)
		ret = fail("%s: only pid= can be given with an existing target", text);
	if (sb_spec_given(spec) & SB_SPEC_PID)
		pid = sb_spec_pid(spec);
	if (!ret) {
		found = select_places(session, spec, pid, selection, err);
		if (!select_labels(session, spec, pid, found > 0, selection) &&
		    found <= 0) {
			if (found < 0)
				ret = fail_with(err);
			else if (pid)
				ret = fail("%s:%s is not a target of process %d ('sbctl "
					   "list' shows the targets)",
					   sb_spec_left(spec), sb_spec_right(spec), pid);
			else
				ret = fail("%s:%s is not a target ('sbctl list' shows the "
					   "targets)",
					   sb_spec_left(spec), sb_spec_right(spec));
		}
	}
	sb_spec_free(spec);
	return ret;
}
