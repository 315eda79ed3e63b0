/* SPDX-License-Identifier: MIT */
#ifndef SB_NET_H
#define SB_NET_H

#include "native/session.h"
#include "native/target_list.h"

/*
 * Subtract the cost of a hit from the delays of targets that request it, before a backend
 * gets them. Call sb_net_put_back() afterwards, whether or not the backend could add
 * them. 0, or -1 with errno and no change.
 */
int sb_net_take_off(struct sb_session *session, struct sb_target *targets, size_t count,
		    struct sb_error *err);
/* Make the targets as the caller gave them; those with an id are recorded as net. */
void sb_net_put_back(struct sb_session *session, struct sb_target *targets, size_t count);

/* Likewise for a new delay of a target; call sb_net_changed() when it is in force. */
void sb_net_change(const struct sb_session *session, struct sb_change *change);
/* @list: the targets as they were before. */
void sb_net_changed(struct sb_session *session, uint64_t id, uint64_t delay_ns,
		    const struct sb_target_list *list);

/* The statistics of the target were reset. */
void sb_net_reset(struct sb_session *session, uint64_t id);

/* Delays and counters as requested by the caller. */
void sb_net_show(const struct sb_session *session, struct sb_target_list *list);

#endif
