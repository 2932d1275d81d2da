/* SPDX-License-Identifier: MIT */
/*
 * What daemon, helpers and preload library say to each other: the messages, their payloads and
 * the versions. Every channel is a SOCK_SEQPACKET unix socket; one packet is one message, a
 * struct gcr_message_header followed by `length` bytes of payload; descriptors travel with it
 * (SCM_RIGHTS). Payloads are fixed-size structs without pointers or padding holes that matter;
 * numbers are in host byte order, since both ends run on one machine.
 *
 * Version rule: a payload only ever grows at its end; a receiver accepts a longer payload (and
 * ignores the rest) and a shorter one of an older version (the rest reads as zero).
 */
#ifndef GCR_PROTOCOL_H
#define GCR_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#define GCR_PROTOCOL_MAGIC	0x46524347u /* "GCRF" */
#define GCR_PROTOCOL_VERSION	1
#define GCR_MESSAGE_PAYLOAD_MAX 65536 /* bytes */
#define GCR_MESSAGE_FDS_MAX	64

#define GCR_GPUS_MAX	32  /* GPUs of one machine that we can tell apart */
#define GCR_UUID_BYTES	16  /* CUuuid */
#define GCR_NAME_BYTES	96  /* device and driver names, with their NUL */
#define GCR_WORDS_BYTES 384 /* an error in words, with its NUL */

struct gcr_message_header {
	uint32_t magic;
	uint16_t version;
	uint16_t type;	   /* enum gcr_message_type */
	uint32_t sequence; /* a reply repeats its request's */
	uint32_t length;   /* bytes of payload that follow */
};

enum gcr_message_type {
	GCR_MESSAGE_NONE = 0,

	/* helper -> daemon, once, unasked, when the helper can take requests (or cannot) */
	GCR_MESSAGE_HELLO = 1, /* struct gcr_hello */

	/* daemon -> control helper; each is answered by GCR_MESSAGE_RESULT of the same sequence */
	GCR_MESSAGE_STATE = 16,	     /* struct gcr_control_request; result.state */
	GCR_MESSAGE_LOCK = 17,	     /* ... .timeout_ms */
	GCR_MESSAGE_CHECKPOINT = 18, /* ... */
	GCR_MESSAGE_RESTORE = 19,    /* ... .pairs */
	GCR_MESSAGE_UNLOCK = 20,     /* ... */

	/* daemon -> control helper or worker; answered by GCR_MESSAGE_GPUS */
	GCR_MESSAGE_QUERY = 32, /* no payload */
	GCR_MESSAGE_GPUS = 33,	/* struct gcr_gpus_reply */

	/* daemon -> worker; each is answered by GCR_MESSAGE_RESULT */
	GCR_MESSAGE_RESERVE = 48, /* struct gcr_reserve_request: take VRAM (nothing else is held) */
	GCR_MESSAGE_RELEASE = 49, /* no payload: give back all that was reserved */

	/*
	 * daemon -> gpucr-halt: stop the threads of a program, answered by GCR_MESSAGE_RESULT, then
	 * let them go, which is the helper's end
	 */
	GCR_MESSAGE_HALT = 36,	   /* struct gcr_halt_request; fds: our pidfd, the page */
	GCR_MESSAGE_HALT_END = 37, /* no payload; not answered */

	GCR_MESSAGE_RESULT = 64, /* struct gcr_result */

	/*
	 * daemon -> worker, a session: the memory of one process on that GPU, on its way out or in.
	 * It begins with OUT or IN and ends with END; each is answered by GCR_MESSAGE_RESULT.
	 */
	GCR_MESSAGE_SESSION_OUT = 50, /* struct gcr_session; fds: table, directory, digests ... */
	GCR_MESSAGE_SESSION_IN = 51,  /* the same */
	GCR_MESSAGE_IMPORT = 52,      /* struct gcr_range + that many handle descriptors */
	GCR_MESSAGE_CREATE = 53,      /* no payload: take the VRAM of all, begin to copy; ENOMEM */
	GCR_MESSAGE_COPY = 54,	      /* no payload: answered when every byte has been copied */
	GCR_MESSAGE_EXPORT = 55, /* struct gcr_range; the result carries that many descriptors */
	GCR_MESSAGE_END = 56,	 /* no payload: let go of everything of the session */

	/*
	 * daemon -> worker, answered at once: descriptors of files that sessions to come will use
	 * (all their pages are there); they are made ready for the GPU in the background. EAGAIN:
	 * that is not over yet, ask again. What is known already may be sent again.
	 */
	GCR_MESSAGE_PIN = 57,
	/*
	 * No payload; fds: files of the store of which nobody but the daemon is to have anything:
	 * they are given up if they were sent. EAGAIN: that is not over yet, ask again.
	 */
	GCR_MESSAGE_UNPIN = 58,

	/* preload library -> daemon; not answered */
	GCR_MESSAGE_REGISTER = 96, /* struct gcr_register; fd: the page (struct gcr_page) */
	/*
	 * No payload: `wanting` in the page is not 0 any more. Whoever does not know the message
	 * drops it, and one that was dropped does no harm: the page can be looked at at any time.
	 */
	GCR_MESSAGE_WANTED = 97,

	/*
	 * daemon -> preload library; each is answered by GCR_MESSAGE_RESULT of the same sequence
	 * (`state` is the enum gcr_preload_phase reached). Phases: see there.
	 */
	GCR_MESSAGE_GATE_CLOSE = 100, /* struct gcr_gate_request */
	GCR_MESSAGE_GATE_OPEN = 101,  /* no payload */
	GCR_MESSAGE_LIST = 102,	      /* no payload; result carries the table's descriptor */
	GCR_MESSAGE_FILES = 103,      /* struct gcr_range + one descriptor each: managed memory's */
	GCR_MESSAGE_HAND_OVER = 104,  /* struct gcr_hand_over; first come GCR_MESSAGE_HANDLES */
	GCR_MESSAGE_COMMIT = 105,     /* no payload */
	GCR_MESSAGE_TAKE_BACK = 106,  /* no payload */
	GCR_MESSAGE_RECEIVE = 107,    /* struct gcr_range + that many handle descriptors */
	GCR_MESSAGE_SETTLE = 108,     /* no payload */
	GCR_MESSAGE_LET_GO = 109,     /* no payload */
	GCR_MESSAGE_SAVE = 110,	      /* no payload: managed memory's contents into its files */
	GCR_MESSAGE_HOLD = 111,	      /* the program's threads are stopped until it is answered */

	/*
	 * No payload: make ready to bring managed memory in. Answered at once, also with the
	 * program's threads stopped, unless one of those holds a lock that bringing in may need.
	 */
	GCR_MESSAGE_PREPARE = 114,

	/*
	 * struct gcr_park. In OUT, and in RUNNING if the driver has the process frozen: the library
	 * answers, closes its socket, and is as if there were no daemon until struct gcr_page's
	 * is_parked is 0 again. The next connection begins with REGISTER as every one does.
	 */
	GCR_MESSAGE_PARK = 115,

	/*
	 * No payload: the driver has no state of the process any more, so the program is ending.
	 * Answered by ESRCH, as below. A library that does not know it says EOPNOTSUPP.
	 */
	GCR_MESSAGE_DRIVER_GONE = 116,

	/* preload library -> daemon, while it works on HAND_OVER; same sequence; not answered */
	GCR_MESSAGE_HANDLES = 112, /* struct gcr_range + that many handle descriptors */
};

/* What the driver says about a process (cuCheckpointProcessGetState), in the vendors' common words.
 */
enum gcr_control_state {
	GCR_CONTROL_UNKNOWN = 0, /* not asked, or the driver does not know this process */
	GCR_CONTROL_RUNNING = 1,
	GCR_CONTROL_LOCKED = 2,
	GCR_CONTROL_CHECKPOINTED = 3,
	GCR_CONTROL_FAILED = 4,
};

struct gcr_hello {
	int32_t error; /* 0, or a positive errno: the helper is of no use (ENODEV, EOPNOTSUPP ...)
			*/
	uint32_t api_version; /* the driver's API version, CUDA: 1000 * major + 10 * minor */
	char driver_version[GCR_NAME_BYTES]; /* "580.159.04", "" if not known */
	char words[GCR_WORDS_BYTES];	     /* what `error` is about */
};

struct gcr_gpu_pair {
	uint8_t from[GCR_UUID_BYTES];
	uint8_t to[GCR_UUID_BYTES];
};

struct gcr_control_request {
	int32_t pid;	      /* in the helper's (= the daemon's) pid namespace */
	uint32_t timeout_ms;  /* GCR_MESSAGE_LOCK: 0 waits for ever */
	uint32_t pairs_count; /* GCR_MESSAGE_RESTORE: 0 = same GPUs, else one pair for every GPU */
	struct gcr_gpu_pair pairs[GCR_GPUS_MAX];
};

struct gcr_halt_request {
	int32_t pid;
	uint32_t limit_ms; /* without a daemon it is ended after this time */
};

struct gcr_reserve_request {
	uint64_t bytes;
};

struct gcr_result {
	int32_t error;		/* 0 or a positive errno */
	int32_t driver_result;	/* the driver's own code (CUresult), 0 if it was not asked */
	uint32_t state;		/* enum gcr_control_state after the call, UNKNOWN if not asked */
	uint32_t flags;		/* GCR_RESULT_* */
	uint64_t duration_usec; /* time inside the driver's call; COPY: since copying began */
	char words[GCR_WORDS_BYTES]; /* "cuCheckpointProcessLock: CUDA_ERROR_NOT_READY (600): ..."
				      */
	uint64_t copied_bytes;	     /* COPY: of the session's, those that were copied */
};

#define GCR_RESULT_HOST_DIGESTS 0x1 /* COPY: the GPU could not make the digests, the host did */

struct gcr_gpu_info {
	uint8_t uuid[GCR_UUID_BYTES];
	int32_t minor;	      /* N of /dev/nvidiaN, -1 if not known */
	uint32_t flags;	      /* GCR_GPU_* below */
	uint64_t total_bytes; /* 0 if not known */
	uint64_t free_bytes;  /* what a program could still allocate */
	uint64_t used_bytes;
	char name[GCR_NAME_BYTES];
	uint16_t capability_major; /* of its compute capability; both 0 if not known */
	uint16_t capability_minor;
	/* AMD: major * 10000 + minor * 100 + step, as KFD's gfx_target_version; 0: not known */
	uint32_t gfx_version;
};
#define GCR_GPU_MIG	  0x1 /* MIG mode is on */
#define GCR_GPU_MEMORY	  0x2 /* the three byte counts are known */
#define GCR_GPU_PROCESSES 0x4 /* the processes of this GPU are known */

#define GCR_GPU_PROCESSES_MAX 512

struct gcr_gpu_process {
	int32_t pid;
	uint32_t gpu;	/* index into gpus[] */
	uint64_t bytes; /* VRAM in use */
};

struct gcr_gpus_reply {
	int32_t error; /* 0 or a positive errno */
	uint32_t gpus_count;
	uint32_t processes_count; /* the first GCR_GPU_PROCESSES_MAX of them are listed */
	uint32_t reserved;
	char words[GCR_WORDS_BYTES];
	struct gcr_gpu_info gpus[GCR_GPUS_MAX];
	struct gcr_gpu_process processes[GCR_GPU_PROCESSES_MAX];
};

/* ---- the memory of a process: extents ---- */

enum gcr_memory_kind {
	GCR_MEMORY_DEVICE = 1,	/* has a shareable handle: goes through the worker */
	GCR_MEMORY_MANAGED = 2, /* cuMemAllocManaged: the program itself reads and writes it */
};

#define GCR_EXTENTS_MAX 262144

/*
 * One piece of memory that is moved as one file. A table of these, as LIST answers and as a
 * session begins with, travels as a memfd: GCR_EXTENTS_MAX of them at most, nothing before,
 * between or behind. The order of LIST's table is that of all ranges until the gate opens again;
 * device memory comes first, ordered by GPU, then managed memory.
 */
struct gcr_extent {
	uint64_t address; /* in the program, where its first byte is mapped; 0: not mapped */
	uint64_t bytes;	  /* mapped size; DEVICE: a multiple of 2 MiB, MANAGED: of 4 KiB */
	uint64_t id;	  /* of this process, never used again */
	uint8_t gpu[GCR_UUID_BYTES]; /* MANAGED: the GPU that was current when it was made */
	uint32_t kind;		     /* enum gcr_memory_kind */
	uint32_t gpu_index;	     /* filled in by the daemon: its index of `gpu` */
	uint32_t flags;		     /* GCR_EXTENT_* */
	uint32_t reserved[3];
};
#define GCR_EXTENT_PROGRAM_HANDLE 0x1 /* the program made it with cuMemCreate */
/* Set by the daemon: the file has what the file of digests says, since an earlier freeze. */
#define GCR_EXTENT_KNOWN	  0x2

struct gcr_range {
	uint32_t first;
	uint32_t count; /* at most GCR_MESSAGE_FDS_MAX where descriptors go along */
};

/*
 * A session in a worker. Descriptors: a memfd with the table of the extents that are this GPU's
 * (ranges count in this table); the directory with a file for each, named by gcr_extent_name(),
 * already of the right size, sparse where nothing has been written; and the file of digests, laid
 * out as lib/digest.h says, in which those of the table's chunks begin with the first_chunk-th. OUT
 * writes them there, before COPY is answered, also if that says that it has failed; IN checks them
 * then, EIO, if it has one to check by: they need not be there before COPY is sent.
 * OUT: IMPORT (in batches, in order), COPY (looks for what has changed where something is KNOWN,
 * and copies), END. IN: CREATE (what has been made is copied to meanwhile), EXPORT (in batches),
 * COPY, END. RESERVE and RELEASE work in a session too.
 */
struct gcr_session {
	uint32_t count; /* extents in the table */
	/*
	 * At most so many at a time are queued at the GPU, on the way IN until COPY comes; 0: as it
	 * likes.
	 */
	uint32_t copies_in_flight;
	uint64_t first_chunk;
	uint32_t flags; /* GCR_SESSION_* */
	uint32_t reserved;
};
#define GCR_SESSION_UNVERIFIED	 0x1 /* IN: the bytes need not be what the digests say */
/* IN: files may have other pages than those that were registered once, users had them. */
#define GCR_SESSION_UNREGISTERED 0x2
/*
 * IN: pieces of the files are packed (lib/pack_file.h), and two more descriptors come: of the
 * directory of the tables and of that of the segments. Nothing of either is changed meanwhile.
 */
#define GCR_SESSION_PACKED	 0x4
/* IN: a CREATE that lacks memory keeps what it has taken, and the next one goes on from there. */
#define GCR_SESSION_IN_PARTS	 0x8

/* ---- the preload library ---- */

/*
 * Where the memory of a program is.
 *
 *   RUNNING --GATE_CLOSE--> GATED --HAND_OVER--> HANDED --COMMIT--> OUT
 *      ^                    | ^ ^                  |                | ^
 *      +-----GATE_OPEN------+ | +----TAKE_BACK-----+        RECEIVE | | LET_GO
 *                             +-----------SETTLE--------- INCOMING <+ |
 *                                                             +-------+
 *
 * A program with managed memory goes another way to HANDED. SAVE leaves it GATED; its threads can
 * write to the memory until it is held, so they are stopped for HOLD.
 *
 *   GATED --SAVE, HOLD--> HELD --HAND_OVER--> HANDED
 *     ^                    |
 *     +-----TAKE_BACK------+
 *
 * A HOLD that fails may have reached HELD (result.state says so), and a HAND_OVER that fails stays
 * there: then TAKE_BACK is the way back. What comes back can be seen before its contents are there;
 * so the threads are stopped for TAKE_BACK and SETTLE too, else these are EBUSY. One that sleeps on
 * held memory in a system call can only be stopped when it has got what it waits for: from PREPARE
 * to any other message, threads get the pages that they touch.
 *
 * A message that asks for the phase it is in already succeeds. When the daemon's socket ends, the
 * library goes back to RUNNING by itself from GATED at once, and from HANDED (it still has the
 * descriptors) unless another daemon is there in GCR_PRELOAD_GRACE_USEC. In OUT and INCOMING, and
 * if managed memory is held, it waits for one for ever.
 *
 * A request that fails because the program is ending (exit(3) has begun, or the driver says that it
 * has deinitialized) is answered by ESRCH in RUNNING, whatever the phase was before: the gate is
 * open, what was handed over is not asked for any more, and the page says GCR_PAGE_ENDING. To a
 * daemon that does not know of this it is a process that has ended.
 */
enum gcr_preload_phase {
	GCR_PRELOAD_RUNNING = 1,
	GCR_PRELOAD_GATED = 2,	  /* no call gets through and the GPU is idle */
	GCR_PRELOAD_HANDED = 3,	  /* unmapped and released; descriptors kept */
	GCR_PRELOAD_OUT = 4,	  /* no descriptor either: the bytes are in the store only */
	GCR_PRELOAD_INCOMING = 5, /* some of it is mapped again */
	GCR_PRELOAD_HELD = 6,	  /* managed memory is in its files, the rest where it was */
};
#define GCR_PRELOAD_LAST GCR_PRELOAD_HELD

#define GCR_PRELOAD_GRACE_USEC 10000000

struct gcr_register {
	uint32_t preload_version;
	uint32_t phase;	     /* enum gcr_preload_phase */
	char generation[40]; /* as the last HAND_OVER had it, "" if there was none */
};

struct gcr_gate_request {
	/*
	 * Wait so long for captures to end, calls to return and the GPU to be idle; ETIMEDOUT then,
	 * with words that name what it waits for. The gate stays closed if it could be closed:
	 * ask again, or open it.
	 */
	uint32_t timeout_ms;
};

struct gcr_hand_over {
	char generation[40]; /* UUID as text */
	uint32_t flags;	     /* GCR_HAND_OVER_* */
};
#define GCR_HAND_OVER_SHRINK 0x1 /* also give up the VRAM of kernels' stacks until SETTLE */

struct gcr_park {
	/* The library ends it by itself after so long, and as soon as CRIU has restored it. */
	uint32_t limit_ms;
	uint32_t reserved;
};

/*
 * What the program shows of itself without being asked: a memfd that it maps for writing and the
 * daemon for reading, F_SEAL_SHRINK | F_SEAL_GROW set. The daemon trusts nothing in it.
 */
#define GCR_PAGE_MAGIC	 0x50524347u /* "GCRP" */
#define GCR_PAGE_VERSION 1
#define GCR_PAGE_SLOTS	 8192

/* One thread. A slot is its thread's own cache line. */
struct gcr_page_slot {
	uint32_t tid;	      /* 0: free */
	uint32_t inside;      /* 1 + the entry point it is in, 0: none */
	uint64_t submissions; /* calls that gave the GPU work */
	uint64_t reserved[6];
};

struct gcr_page {
	uint32_t magic;
	uint32_t version;
	uint32_t phase;		/* enum gcr_preload_phase */
	uint32_t flags;		/* GCR_PAGE_* */
	uint64_t table_changes; /* counts up whenever LIST would answer something else */
	uint64_t device_bytes;	/* of DEVICE extents */
	uint64_t managed_bytes;
	uint32_t extents;
	uint32_t sharings;    /* memory shared with other processes now: no freeze */
	uint32_t captures;    /* stream captures open */
	uint32_t slots_count; /* those from here on were never used */
	char incomplete[64];  /* an entry point or library that goes around the gate, "" if none */
	char obstacle[128];   /* what else forbids a freeze by this engine, in words, "" if none */
	/*
	 * Managed memory is being taken or brought back: threads that are stopped for that must
	 * stay so, also if the daemon dies. See fs/helper/gpucr_halt.c.
	 */
	uint32_t is_moving;
	uint32_t is_parked;	 /* the library sets it; the daemon clears it, by the file */
	uint64_t apart_bytes;	 /* memory made by cuMemCreate that cannot be handed over */
	uint64_t imported_bytes; /* of device_bytes, those made in another process */
	/* Threads at the closed gate with a call that needs the GPU; 0 also if the library is old.
	 */
	uint32_t wanting;
	uint32_t reserved_too;
	uint64_t reserved[4];
	struct gcr_page_slot slots[GCR_PAGE_SLOTS];
	/*
	 * Functions of the driver that the program has called and the library does not know,
	 * separated by blanks. Older libraries end before it; what is read there is 0, as it lies
	 * in the same page of memory.
	 */
	char unknown[512];
};
/* As /proc/PID/maps calls it in a program whose library has made one; memfd_create(2) adds the
 * rest. */
#define GCR_PAGE_NAME	   "gpucr-page"
#define GCR_PAGE_FILE_NAME "/memfd:" GCR_PAGE_NAME " (deleted)"
#define GCR_PAGE_VMM	   0x1 /* memory is made so that it can be handed over */
#define GCR_PAGE_IMPORTED  0x2 /* some of its handles were imported: never the driver engine */
#define GCR_PAGE_HIP	   0x4 /* the library is that for HIP (AMD); else it is that for CUDA */
#define GCR_PAGE_WANTING   0x8 /* `wanting` is kept; older libraries do not */
/* The program is ending: its gate does not close any more. Older libraries do not say so. */
#define GCR_PAGE_ENDING	   0x10

/* Where the page of the oldest library ends. */
#define GCR_PAGE_BYTES_LEAST offsetof(struct gcr_page, unknown)

#endif
