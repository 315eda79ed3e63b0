// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "free.h"
#include "native/session.h"
#include "native/status.h"

struct sb_status *sb_session_status(struct sb_session *session, struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	struct sb_status *status = calloc(1, sizeof(*status));

	if (status && !backend->ops->status(backend, status))
		return status;
	if (errno == EPERM || errno == EACCES)
		sb_error_set(err, errno,
			     "not allowed to see targets and sessions of others: run as "
			     "root%s",
			     backend->ops->to_see_others);
	else
		sb_error_set(err, errno, "can't read the module's status: %s",
			     strerror(errno));
	sb_free(status);
	return NULL;
}

void sb_status_free(struct sb_status *status)
{
	sb_free(status);
}

bool sb_status_enabled(const struct sb_status *status)
{
	return status->enabled;
}

uint64_t sb_status_default_delay_ns(const struct sb_status *status)
{
	return status->default_delay_ns;
}

uint64_t sb_status_total_calls(const struct sb_status *status)
{
	return status->total_calls;
}

uint64_t sb_status_total_delivered_ns(const struct sb_status *status)
{
	return status->total_delivered_ns;
}

uint32_t sb_status_targets(const struct sb_status *status)
{
	return status->targets;
}

uint32_t sb_status_persistent(const struct sb_status *status)
{
	return status->persistent;
}

uint32_t sb_status_sessions(const struct sb_status *status)
{
	return status->sessions;
}

static int explain_setting(struct sb_error *err, const char *what)
{
	if (errno == EPERM || errno == EACCES)
		return sb_error_set(err, errno,
				    "not allowed to set the %s: run as root or with "
				    "CAP_SYS_ADMIN",
				    what);
	return sb_error_set(err, errno, "can't set the %s: %s", what, strerror(errno));
}

int sb_session_set_global_enabled(struct sb_session *session, bool enabled,
				  struct sb_error *err)
{
	struct sb_backend *backend = session->backend;

	if (backend->ops->set_global_enabled(backend, enabled))
		return explain_setting(err, "global switch");
	return 0;
}

int sb_session_set_default_delay(struct sb_session *session, uint64_t delay_ns,
				 struct sb_error *err)
{
	struct sb_backend *backend = session->backend;
	char text[32];

	if (delay_ns > backend->limits.max_delay_ns) {
		sb_duration_format(delay_ns, text, sizeof(text));
		return sb_error_set(err, ERANGE, "a delay of %s is over the limit of 10s",
				    text);
	}
	if (backend->ops->set_default_delay(backend, delay_ns))
		return explain_setting(err, "default delay");
	return 0;
}
