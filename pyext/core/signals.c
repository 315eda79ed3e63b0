// SPDX-License-Identifier: MIT
#include "hot.h"
#include "signals.h"
#include "table.h"

/* In a long delay, with the GIL: run the handlers of signals that have come. */
static bool look(struct sb_site_table *table, void **kept)
{
	/* A C function may be called with an exception set, which a handler is not to see. */
	if (PyErr_Occurred())
		return false;
	if (!*kept)
		*kept = table_keep(table);
	/* The table of overhead.c is no Table: no handler is to run while it is measured. */
	return *kept && PyErr_CheckSignals();
}

void signals_prepare(void)
{
	sb_site_unkeep = table_unkeep;
	sb_site_look = look;
}
