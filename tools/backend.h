/* SPDX-License-Identifier: MIT */
/* --backend, the option that every command has. */
#ifndef BACKEND_H
#define BACKEND_H

#include "libsb.h"

/*
 * Remove --backend=NAME from a command line, anywhere before a "--". Returns 0, or the exit
 * status after a message.
 */
int backend_take(int *argc, char **argv);

/* The backend that the command line chose. */
enum sb_backend_choice backend_chosen(void);

/* Open a session with that backend. Fails as sb_session_open() does. */
struct sb_session *backend_open(struct sb_error *err);

#endif
