/* SPDX-License-Identifier: MIT */
#ifndef CORE_TABLE_H
#define CORE_TABLE_H

#include "compat.h"
#include "libsb-provisional.h"

/* Table: the sites of a workload, and the switch of all of them. */
extern PyType_Spec table_spec;

/* Whether @object is a Table, of whichever copy of the module in this interpreter. */
bool table_is(PyObject *object);
/* The table inside a Table that is held; NULL with ValueError: it is closed. */
struct sb_site_table *table_get(PyObject *self);
/*
 * Until the matching table_release(), close() is refused. -1 with ValueError: it is
 * closed.
 */
int table_hold(PyObject *self);
void table_release(PyObject *self);
/* Publish it while it is in force (sb_site_table_show()). It is held. */
void table_show(PyObject *self);
void table_hide(PyObject *self);
/*
 * Keep the table behind a Table alive, closed or not, until table_unkeep(). NULL: @sites
 * is not that of a Table.
 */
void *table_keep(struct sb_site_table *sites);
void table_unkeep(void *kept);

#endif
