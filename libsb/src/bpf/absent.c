// SPDX-License-Identifier: MIT
/* In the place of the BPF backend where it could not be built. */
#include <errno.h>

#include "native/backend.h"
#include "error.h"

struct sb_backend *sb_bpf_open(struct sb_error *err)
{
	sb_error_set(err, ENOSYS,
		     "libsb was built without the BPF backend: build it anew with libbpf, "
		     "clang and bpftool installed");
	return NULL;
}
