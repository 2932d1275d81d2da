/* SPDX-License-Identifier: MIT */
/*
 * What the daemon (fs/helper/looker.c) and gpucr-look (fs/helper/gpucr_look.c) say to each other,
 * in packets of lib/message.h: one request at a time, answered by one reply of the same sequence.
 */
#ifndef GCR_FS_HELPER_LOOKER_PROTOCOL_H
#define GCR_FS_HELPER_LOOKER_PROTOCOL_H

#include <stdint.h>

#include "fs/helper/scan_look.h"
#include "lib/protocol.h"

#define GCR_LOOKER_SOCKET     3 /* where the helper finds its end */
#define GCR_LOOKER_PROGRAM    "gpucr-look"
#define GCR_LOOKER_NAME_BYTES 64
#define GCR_LOOKER_FDS_MAX    512 /* of one comparison */
#define GCR_LOOKER_PIDS_MAX   256 /* of one request */

enum gcr_looker_type { /* beside enum gcr_message_type */
		       GCR_LOOKER_REQUEST = 1024,
		       GCR_LOOKER_REPLY = 1025,
};

/*
 * Where a text is asked for with a descriptor, a memfd of the daemon's, it goes there. Without one
 * it goes into the reply; EMSGSIZE: there is not enough room in it. EFBIG: it is too long in any
 * case.
 */
enum gcr_looker_verb {
	GCR_LOOKER_NONE,
	GCR_LOOKER_READ,       /* /proc/PID/NAME; a text */
	GCR_LOOKER_LINKS,      /* as gcr_proc_links(); a text */
	GCR_LOOKER_LINK,       /* of /proc/PID/NAME; a text */
	GCR_LOOKER_NAMESPACE,  /* /proc/PID/ns/NAME; its descriptor comes with the reply */
	GCR_LOOKER_PEEK,       /* .count bytes at .address; data */
	GCR_LOOKER_UNPARK,     /* gcr_proc_unpark_pages(); with a page, that one alone */
	GCR_LOOKER_PAGE,       /* of a page: a struct gcr_page_facts */
	GCR_LOOKER_COPY,       /* of a file in memory; a memfd comes with the reply */
	GCR_LOOKER_SAME_FILES, /* .fds[.count] of PID and .other; data: a byte for each */
	GCR_LOOKER_DEVICES,    /* gcr_scan_look() for .wanted */
	/*
	 * gcr_scan_look_until() for .many.wanted, of .many.pids[.count], for .value us together. It
	 * comes with a memfd: a struct gcr_scan_found for each is written there as soon as it is
	 * known, so that a helper which is kept waiting has told of those before.
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
	int32_t error; /* an errno, 0: done */
	uint32_t devices;
	uint64_t start_ticks;
	uint64_t bytes; /* of the text or the data: behind this, or in the memfd */
};
#define GCR_LOOKER_DATA_MAX (GCR_MESSAGE_PAYLOAD_MAX - sizeof(struct gcr_looker_reply))

#endif
