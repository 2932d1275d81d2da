/* SPDX-License-Identifier: MIT */
/*
 * A process's preload library, seen from a task: requests and answers over its registered
 * connection (fs/process/registry.c accepts it). One thread at a time has the link; the loop
 * watches the connection while nobody does.
 */
#ifndef GCR_FS_PROCESS_LINK_H
#define GCR_FS_PROCESS_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/process/process.h"
#include "lib/error.h"
#include "lib/message.h"
#include "lib/page.h"
#include "lib/protocol.h"

struct gcr_link;
struct gcr_quota_charge;

/*
 * For the registry. A connection has registered: @fd, which the loop watches as its connection
 * @number, is the link's on success, and @page_fd also on failure. @facts: what its page has just
 * said. The process's link is this one from now on. -ENOMEM.
 */
int gcr_link_create(struct gcr_process *process, int fd, uint32_t number,
		    const struct gcr_register *registration, int page_fd,
		    const struct gcr_page_facts *facts, struct gcr_link **ret_link);

/*
 * For the registry: the connection has ended. The reference is given up, and @charge taken, until
 * the connection is closed.
 */
void gcr_link_end(struct gcr_link *link, struct gcr_quota_charge *charge);

/*
 * For the registry, when the connection is readable: its end, or a message nobody asked for.
 * -ETIMEDOUT: there was nothing, or somebody has the link and reads for itself.
 */
int gcr_link_look(struct gcr_link *link, struct gcr_message *message);

/*
 * Has the process a connection whose other end is open? A library that comes again has closed its
 * old connection before, though that may not have been noticed yet.
 */
bool gcr_link_is_live(struct gcr_process *process);

struct gcr_link *gcr_link_ref(struct gcr_link *link);
void gcr_link_unref(struct gcr_link *link);

/*
 * What its page says. For threads without locks: may take a fifth of a second where its owner keeps
 * the page from being read, or the machine is busy (-ETIMEDOUT, -EBUSY as of lib/proc_source.h).
 * -ENOTCONN: the process has no preload library, or it has not (re)connected; -EPROTO: its program
 * has overwritten it; -ENOMEM, ...
 */
int gcr_link_facts(struct gcr_process *process, struct gcr_page_facts *ret_facts);

/*
 * The same, and where it cannot be read now, what it said when it last could be. To show, and for
 * what changes in one direction only: by an old phase nothing may be decided. -ENOTCONN.
 */
int gcr_link_last_facts(struct gcr_process *process, struct gcr_page_facts *ret_facts);

/* Does its library say that the program is ending? */
bool gcr_link_is_ending(struct gcr_process *process);

/*
 * Is a library in the program that is not connected? It looks for a daemon every two seconds, so
 * one of a daemon that has just been started will soon be.
 */
bool gcr_link_is_due(struct gcr_process *process);

/*
 * The facts of a library that is not connected, read in the program's memory. -ENOTCONN: it has
 * none; -EPERM: we must not look; -EPROTO: of another version; -ESRCH.
 */
int gcr_link_facts_unconnected(struct gcr_process *process, struct gcr_page_facts *ret_facts);

/* The generation of its last hand-over as it registered, "" if none; -ENOTCONN. */
int gcr_link_generation(struct gcr_process *process, char ret_generation[40]);

/*
 * Take the link; waits up to @timeout_usec for a library that has yet to reconnect. -ENOTCONN,
 * -EBUSY somebody has it, -ESRCH the process has ended; with words.
 */
int gcr_link_take(struct gcr_process *process, int64_t timeout_usec, struct gcr_link **ret_link,
		  struct gcr_error *error);
void gcr_link_put(struct gcr_link *link);

/* The page's descriptor, which stays the link's. */
int gcr_link_page_fd(const struct gcr_link *link);

/* Send a request; at most one is under way. Descriptors stay the caller's. -EPIPE. */
int gcr_link_request(struct gcr_link *link, uint16_t type, const void *payload,
		     size_t payload_bytes, const int *fds, size_t fds_count,
		     struct gcr_error *error);

/*
 * The next message that belongs to the request: GCR_MESSAGE_RESULT ends it. -ETIMEDOUT leaves it
 * under way; -EPIPE the library is gone; -EINTR the process has ended; -EPROTO. The descriptors in
 * @ret_message are the caller's.
 */
int gcr_link_receive(struct gcr_link *link, int64_t timeout_usec, struct gcr_message *ret_message);

/*
 * What a GCR_MESSAGE_RESULT says: 0: it was done; else the library's errno and words, made safe.
 * *ret_state (may be NULL) is as the library has it.
 */
int gcr_link_answer(const struct gcr_message *message, uint32_t *ret_state,
		    struct gcr_error *error);

#endif
