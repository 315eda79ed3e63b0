// SPDX-License-Identifier: MIT
/* libsb's parser of target texts: any file of them, in both dialects. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <libsb.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct sb_spec *spec)
{
	if (!sb_spec_left(spec)[0] || !sb_spec_right(spec)[0])
		abort();
}

static void parse(const char *text, size_t size, enum sb_spec_dialect dialect,
		  struct sb_error *err)
{
	struct sb_specs *specs = sb_specs_parse(text, size, "fuzz", dialect, err);
	struct sb_patterns *patterns;
	struct sb_spec *spec;
	size_t i;

	if (!specs && errno != EINVAL && errno != ERANGE)
		abort();
	for (i = 0; specs && i < sb_specs_count(specs); i++)
		check(sb_specs_get(specs, i));
	patterns = specs ? sb_patterns_compile(specs, err) : NULL;
	sb_patterns_free(patterns);
	sb_specs_free(specs);

	spec = sb_spec_parse(text, dialect, err);
	if (spec)
		check(spec);
	sb_spec_free(spec);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sb_error *err = sb_error_new();
	char *text = malloc(size + 1);

	memcpy(text, data, size);
	text[size] = '\0';
	parse(text, size, SB_SPEC_NATIVE, err);
	parse(text, size, SB_SPEC_FILE, err);
	free(text);
	sb_error_free(err);
	return 0;
}
