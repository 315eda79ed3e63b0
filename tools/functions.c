// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "functions.h"
#include "message.h"
#include "sbctl.h"

#define PREFIX "python:"

static int select_one(struct functions *functions, const char *glob, pid_t pid)
{
	size_t before = functions->count;

	for (size_t i = 0; i < sb_control_count(functions->control); i++) {
		if ((pid && sb_control_pid(functions->control, i) != pid) ||
		    !sb_glob_match(glob, sb_control_name(functions->control, i)))
			continue;
		functions->which = array_grow(functions->which, &functions->room,
					      functions->count, sizeof(*functions->which));
		functions->which[functions->count++] = i;
	}
	if (functions->count > before)
		return 0;
	return pid ? fail(PREFIX "%s is not slowed in process %d ('speed-bump ps' lists "
				 "the slowed functions)",
			  glob, pid) :
		     fail(PREFIX "%s is not slowed ('speed-bump ps' lists the slowed "
				 "functions)",
			  glob);
}

int functions_select(struct functions *functions, char **targets, int *count, pid_t pid,
		     struct sb_error *err)
{
	int kept = 0, ret = 0;

	for (int i = 0; i < *count && !ret; i++) {
		if (strncmp(targets[i], PREFIX, strlen(PREFIX))) {
			targets[kept++] = targets[i];
			continue;
		}
		if (!functions->control)
			functions->control = sb_control_read(NULL, err);
		ret = functions->control ?
			      select_one(functions, targets[i] + strlen(PREFIX), pid) :
			      fail_with(err);
	}
	*count = kept;
	return ret;
}

void functions_free(struct functions *functions)
{
	sb_control_free(functions->control);
	free(functions->which);
}

static void say(const struct functions *functions, const char *done, const char *behind)
{
	for (size_t n = 0; n < functions->count; n++) {
		char *name =
			strdup(sb_control_name(functions->control, functions->which[n]));

		if (!name)
			exit(fail("out of memory"));
		printf("%s " PREFIX "%s of process %d%s\n", done, printable(name),
		       sb_control_pid(functions->control, functions->which[n]), behind);
		free(name);
	}
}

int functions_enable(struct functions *functions, bool on, struct sb_error *err)
{
	if (functions->count &&
	    sb_control_set_enabled(functions->control, functions->which, functions->count,
				   on, err))
		return fail_with(err);
	say(functions, on ? "enabled" : "disabled", "");
	return 0;
}

int functions_delay(struct functions *functions, uint64_t delay_ns, struct sb_error *err)
{
	char behind[64] = " ";

	if (functions->count && sb_control_set_delay(functions->control, functions->which,
						     functions->count, delay_ns, err))
		return fail_with(err);
	sb_duration_format(delay_ns, behind + 1, sizeof(behind) - 1);
	say(functions, "updated", behind);
	return 0;
}

int functions_remove(struct functions *functions, struct sb_error *err)
{
	if (functions->count && sb_control_remove(functions->control, functions->which,
						  functions->count, err))
		return fail_with(err);
	say(functions, "switched off", "");
	return 0;
}

int functions_note(struct sb_error *err)
{
	struct sb_control *control = sb_control_read(NULL, err);
	size_t count = control ? sb_control_count(control) : 0;
	size_t left_out = control ? sb_control_left_out(control) : 0;
	size_t processes = 0;

	/* Processes that share a table may have their functions mixed in it. */
	for (size_t i = 0; i < count; i++) {
		size_t j = 0;

		while (sb_control_pid(control, j) != sb_control_pid(control, i))
			j++;
		processes += j == i;
	}
	if (count)
		note("also %zu Python function%s of %zu process%s: 'speed-bump ps' lists "
		     "them",
		     count, count == 1 ? "" : "s", processes, processes == 1 ? "" : "es");
	if (left_out)
		note("%zu process%s too many Python functions; some are left out",
		     left_out, left_out == 1 ? " has" : "es have");
	if (!control)
		return fail_with(err);
	sb_control_free(control);
	return EXIT_SUCCESS;
}

void functions_json(struct json *json, const struct sb_control *control)
{
	json_open_array(json, "functions");
	for (size_t i = 0; i < sb_control_count(control); i++) {
		json_open_object(json, NULL);
		json_string(json, "target", sb_control_name(control, i));
		json_number_or_null(json, "pid", (uint64_t)sb_control_pid(control, i));
		json_string(json, "owner", sb_control_label(control, i));
		json_number(json, "delay_ns", sb_control_delay_ns(control, i));
		json_number_or_null(json, "every", sb_control_every(control, i));
		json_bool(json, "enabled", sb_control_enabled(control, i));
		json_bool(json, "ruled", sb_control_is_ruled(control, i));
		json_number(json, "calls", sb_control_calls(control, i));
		json_number(json, "delayed", sb_control_delayed(control, i));
		json_number(json, "delivered_ns", sb_control_delivered_ns(control, i));
		json_close_object(json);
	}
	json_close_array(json);
	json_number(json, "incomplete_processes", sb_control_left_out(control));
}
