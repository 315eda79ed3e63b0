// SPDX-License-Identifier: MIT
#include "hot.h"
#include "leave.h"
#include "table.h"

/* Other threads may then let the site go: @kept keeps it until the delay is counted. */
static void *leave(struct sb_site_table *table, void **kept)
{
	if (!*kept)
		*kept = table_keep(table);
	return *kept ? PyEval_SaveThread() : NULL;
}

static void come_back(void *thread)
{
	PyEval_RestoreThread(thread);
}

void leave_prepare(void)
{
	sb_site_return = come_back;
	sb_site_leave = leave;
#ifndef Py_GIL_DISABLED
	sb_site_locks = true;
#endif
}
