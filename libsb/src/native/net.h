/* SPDX-License-Identifier: MIT */
#ifndef SB_NET_H
#define SB_NET_H

#include "native/session.h"
#include "native/target_list.h"

/*
 * Take what a hit costs off the delays of those targets that ask for it, before a backend
 * gets them. sb_net_put_back() after that, whether it could add them or not. 0, or -1 with
 * errno and all as it was.
 */
int sb_net_take_off(struct sb_session *session, struct sb_target *targets, size_t count,
		    struct sb_error *err);
/* The targets are as the caller gave them again; those with an id are known to be net. */
void sb_net_put_back(struct sb_session *session, struct sb_target *targets, size_t count);

/* Likewise the new delay of a target; sb_net_changed() when it is in force. */
void sb_net_change(const struct sb_session *session, struct sb_change *change);
/* @list: the targets as they were before. */
void sb_net_changed(struct sb_session *session, uint64_t id, uint64_t delay_ns,
		    const struct sb_target_list *list);

/* Delays and counters as the caller asked for them. */
void sb_net_show(const struct sb_session *session, struct sb_target_list *list);

#endif
