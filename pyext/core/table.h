/* SPDX-License-Identifier: MIT */
#ifndef CORE_TABLE_H
#define CORE_TABLE_H

#include "compat.h"
#include "libsb.h"

/* Table: the sites of a workload, and the switch of all of them. */
extern PyType_Spec table_spec;

/* Whether @object is a Table, of whichever copy of the module in this interpreter. */
bool table_is(PyObject *object);
/* The table inside a Table that is held; NULL with ValueError if it was closed. */
struct sb_site_table *table_get(PyObject *self);
/*
 * While this is not balanced by table_release(), close() is refused. -1 with ValueError:
 * it was closed.
 */
int table_hold(PyObject *self);
void table_release(PyObject *self);
/* While it is in force: have others see it (sb_site_table_show()). It is held. */
void table_show(PyObject *self);
void table_hide(PyObject *self);
/*
 * Keep what is behind a Table from going, closed or not, until table_unkeep(). NULL: @sites
 * is not that of a Table.
 */
void *table_keep(struct sb_site_table *sites);
void table_unkeep(void *kept);

#endif
