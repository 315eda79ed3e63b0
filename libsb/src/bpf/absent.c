// SPDX-License-Identifier: MIT
/* Replaces the BPF backend if it could not be built. */
#include <errno.h>

#include "native/backend.h"
#include "error.h"

struct sb_backend *sb_bpf_open(struct sb_error *err)
{
	sb_error_set(err, ENOSYS,
		     "libsb was built without the BPF backend: build it again with libbpf, "
		     "clang and bpftool installed");
	return NULL;
}
