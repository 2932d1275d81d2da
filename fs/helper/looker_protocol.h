/* SPDX-License-Identifier: MIT */
/*
 * The protocol between the daemon (fs/helper/looker.c) and gpucr-look (fs/helper/gpucr_look.c), in
 * packets of lib/message.h: one request at a time, answered by one reply of the same sequence.
 */
#ifndef GCR_FS_HELPER_LOOKER_PROTOCOL_H
#define GCR_FS_HELPER_LOOKER_PROTOCOL_H

#include <stdint.h>

#include "fs/helper/scan_look.h"
#include "lib/protocol.h"

#define GCR_LOOKER_SOCKET     3 /* the helper's descriptor of the socket */
#define GCR_LOOKER_PROGRAM    "gpucr-look"
#define GCR_LOOKER_NAME_BYTES 64
#define GCR_LOOKER_FDS_MAX    512 /* in one comparison */
#define GCR_LOOKER_PIDS_MAX   256 /* in one request */

enum gcr_looker_type { /* must not overlap enum gcr_message_type */
		       GCR_LOOKER_REQUEST = 1024,
		       GCR_LOOKER_REPLY = 1025,
};

/*
 * If a request for a text comes with a descriptor, a memfd of the daemon's, the text is written
 * there. Without one the text is part of the reply; EMSGSIZE: it does not fit. EFBIG: the text is
 * too long in any case.
 */
enum gcr_looker_verb {
	GCR_LOOKER_NONE,
	GCR_LOOKER_READ,       /* /proc/PID/NAME; a text */
	GCR_LOOKER_LINKS,      /* as gcr_proc_links(); a text */
	GCR_LOOKER_LINK,       /* the target of /proc/PID/NAME; a text */
	GCR_LOOKER_NAMESPACE,  /* /proc/PID/ns/NAME; its descriptor comes with the reply */
	GCR_LOOKER_PEEK,       /* .count bytes at .address; data */
	GCR_LOOKER_UNPARK,     /* gcr_proc_unpark_pages(); with a page: only that page */
	GCR_LOOKER_PAGE,       /* a page's struct gcr_page_facts */
	GCR_LOOKER_COPY,       /* a file in memory; the reply has a memfd */
	GCR_LOOKER_SAME_FILES, /* compares .fds[.count] of PID and .other; data: a byte for each */
	GCR_LOOKER_DEVICES,    /* gcr_scan_look() for .wanted */
	/*
	 * gcr_scan_look_until() for .many.wanted, of .many.pids[.count], for .value us in total.
	 * The request comes with a memfd: a struct gcr_scan_found for each process is written there
	 * as soon as it is known, so that results are not lost if the helper is blocked by a later
	 * process.
	 */
	GCR_LOOKER_MANY,
};
#define GCR_LOOKER_LAST GCR_LOOKER_MANY

struct gcr_looker_request {
	uint32_t verb; /* enum gcr_looker_verb */
	int32_t pid;
	int32_t other;
	uint32_t count;
	uint64_t address;
	uint32_t value;
	char name[GCR_LOOKER_NAME_BYTES];
	union {
		int32_t fds[GCR_LOOKER_FDS_MAX];
		struct gcr_scan_wanted wanted;
		struct {
			struct gcr_scan_wanted wanted;
			int32_t pids[GCR_LOOKER_PIDS_MAX];
		} many;
	};
};

struct gcr_looker_reply {
	int32_t error; /* an errno, 0: success */
	uint32_t devices;
	uint64_t start_ticks;
	uint64_t bytes; /* length of the text or data: after this struct, or in the memfd */
};
#define GCR_LOOKER_DATA_MAX (GCR_MESSAGE_PAYLOAD_MAX - sizeof(struct gcr_looker_reply))

#endif
