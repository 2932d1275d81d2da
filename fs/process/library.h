/* SPDX-License-Identifier: MIT */
/*
 * The preload library of a process, as the daemon knows it: its registered connection
 * (fs/process/registry.c accepts it), over which a task sends requests and receives answers. One
 * thread at a time takes the library; while no thread has taken it, the loop watches the
 * connection.
 */
#ifndef GCR_FS_PROCESS_LIBRARY_H
#define GCR_FS_PROCESS_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/process/process.h"
#include "lib/error.h"
#include "lib/message.h"
#include "lib/page.h"
#include "lib/procfs.h"
#include "lib/protocol.h"

struct gcr_library;
struct gcr_quota_charge;

/*
 * For the registry, when a connection has registered: creates the library, which becomes that of
 * the process; *ret_library is the connection's reference. The loop watches @fd as connection
 * @number. The library owns @fd on success, and @page_fd also on failure. @facts: the page's
 * contents, just read. @program: that of the process; @owner: the owner of /proc/PID with that
 * program, or (uid_t)-1. Once the process has another program, the library counts as one whose
 * connection has ended. -ENOMEM.
 */
int gcr_library_create(struct gcr_process *process, int fd, uint32_t number,
		       const struct gcr_proc_program *program, uid_t owner,
		       const struct gcr_register *registration, int page_fd,
		       const struct gcr_page_facts *facts, struct gcr_library **ret_library);

/*
 * For the registry, when the connection has ended: drops the connection's reference. The library
 * takes over @charge until the connection is closed.
 */
void gcr_library_end(struct gcr_library *library, struct gcr_quota_charge *charge);

/*
 * For the registry, when the connection is readable: receives its end, or an unsolicited message.
 * -ETIMEDOUT: there was nothing, or a thread has taken the library and reads by itself.
 */
int gcr_library_look(struct gcr_library *library, struct gcr_message *message);

/*
 * Does the process have a connection whose other end is open? A library that reconnects has closed
 * its old connection before, though the daemon may not have noticed yet.
 */
bool gcr_library_is_live(struct gcr_process *process);

struct gcr_library *gcr_library_ref(struct gcr_library *library);
void gcr_library_unref(struct gcr_library *library);

/*
 * Reads the library's page. For threads without locks: takes up to a fifth of a second if the
 * page's owner keeps the page from being read, or the machine is busy (-ETIMEDOUT, -EBUSY as in
 * lib/proc_source.h). -ENOTCONN: the process has no preload library, or the library has not
 * (re)connected; -EPROTO: the program has overwritten the page; -ENOMEM, ...
 */
int gcr_library_facts(struct gcr_process *process, struct gcr_page_facts *ret_facts);

/*
 * The same, but falls back to the last contents if the page cannot be read now. For display, and
 * for facts that change in one direction only: an old phase must not be used for decisions.
 * -ENOTCONN.
 */
int gcr_library_last_facts(struct gcr_process *process, struct gcr_page_facts *ret_facts);

/* Does the library's page say that the program is ending? */
bool gcr_library_is_ending(struct gcr_process *process);

/*
 * Does the program contain a preload library that is not connected? Libraries look for a daemon
 * every two seconds, so after a daemon's start the library will connect soon.
 */
bool gcr_library_is_due(struct gcr_process *process);

/*
 * Reads the page of a library that is not connected from the program's memory. -ENOTCONN: the
 * program has no library; -EPERM: reading is not permitted; -EPROTO: the page has another version;
 * -ETIMEDOUT, -EBUSY as in lib/proc_source.h; -ESRCH, -ENOMEM.
 */
int gcr_library_facts_unconnected(struct gcr_process *process, struct gcr_page_facts *ret_facts);

/* The generation of the library's last hand-over, as registered; "" if none. -ENOTCONN. */
int gcr_library_generation(struct gcr_process *process, char ret_generation[40]);

/*
 * Takes the library; waits up to @timeout_usec for a library that has yet to reconnect, or for
 * another thread to release it. -ENOTCONN; -EBUSY another thread has the library; -ESRCH the
 * process has ended. Sets @error.
 */
int gcr_library_take(struct gcr_process *process, int64_t timeout_usec,
		     struct gcr_library **ret_library, struct gcr_error *error);
/*
 * Releases the library, whose connection the loop watches again, and its reference. NULL is
 * allowed.
 */
void gcr_library_put(struct gcr_library *library);

/* The program that contains the library. The library owns the result. */
const struct gcr_proc_program *gcr_library_program(const struct gcr_library *library);

/* The page's descriptor, owned by the library. */
int gcr_library_page_fd(const struct gcr_library *library);

/* Sends a request; at most one may be under way. Descriptors remain the caller's. -EPIPE. */
int gcr_library_request(struct gcr_library *library, uint16_t type, const void *payload,
			size_t payload_bytes, const int *fds, size_t fds_count,
			struct gcr_error *error);

/*
 * Receives the next message of the current request; GCR_MESSAGE_RESULT ends the request.
 * -ETIMEDOUT: the request is still under way; -EPIPE: the library is gone; -EINTR: the process has
 * ended; -EPROTO. The caller owns the descriptors in @ret_message.
 */
int gcr_library_receive(struct gcr_library *library, int64_t timeout_usec,
			struct gcr_message *ret_message);

/*
 * Decodes a GCR_MESSAGE_RESULT. Returns 0 if the request was done, else the library's errno, with
 * its message in @error, made printable. *ret_state (may be NULL) is the library's state.
 */
int gcr_library_answer(const struct gcr_message *message, uint32_t *ret_state,
		       struct gcr_error *error);

#endif
