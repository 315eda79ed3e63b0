// SPDX-License-Identifier: MIT
#include <string.h>

#include "backend.h"
#include "message.h"

static enum sb_backend_choice chosen;

static int choose(const char *name)
{
	if (!sb_backend_parse(name, &chosen))
		return 0;
	return usage_error("", "'%s' is not a backend: driver, bpf or auto", name);
}

int backend_take(int *argc, char **argv)
{
	static const char option[] = "--backend";
	int kept = 0, i, ret = 0;

	for (i = 0; i < *argc && !ret && strcmp(argv[i], "--"); i++) {
		const char *word = argv[i];

		if (!strcmp(word, option)) {
			if (i + 1 >= *argc || !strcmp(argv[i + 1], "--"))
				return usage_error("", "option '%s' needs a value", word);
			ret = choose(argv[++i]);
		} else if (!strncmp(word, option, strlen(option)) &&
			   word[strlen(option)] == '=') {
			ret = choose(word + strlen(option) + 1);
		} else {
			argv[kept++] = argv[i];
		}
	}
	while (i < *argc)
		argv[kept++] = argv[i++];
	argv[kept] = NULL;
	*argc = kept;
	return ret;
}

enum sb_backend_choice backend_chosen(void)
{
	return chosen;
}

struct sb_session *backend_open(struct sb_error *err)
{
	struct sb_session_options opts = { .sz = sizeof(opts), .backend = chosen };

	return sb_session_open(&opts, err);
}
