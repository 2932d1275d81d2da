/* SPDX-License-Identifier: MIT */
/*
 * The protocol between daemon, helpers and preload library: messages, payloads and versions. Every
 * channel is a SOCK_SEQPACKET unix socket; one packet is one message, a struct gcr_message_header
 * followed by `length` bytes of payload; descriptors travel with it (SCM_RIGHTS). Payloads are
 * fixed-size structs without pointers or padding holes that matter; numbers are in host byte order,
 * since both ends run on one machine.
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

#define GCR_GPUS_MAX	32  /* the most GPUs of one machine that the code handles */
#define GCR_UUID_BYTES	16  /* CUuuid */
#define GCR_NAME_BYTES	96  /* device and driver names, with their NUL */
#define GCR_WORDS_BYTES 384 /* an error message, with its NUL */

struct gcr_message_header {
	uint32_t magic;
	uint16_t version;
	uint16_t type;	   /* enum gcr_message_type */
	uint32_t sequence; /* a reply has its request's */
	uint32_t length;   /* bytes of payload after the header */
};

enum gcr_message_type {
	GCR_MESSAGE_NONE = 0,

	/*
	 * helper -> daemon, once, unrequested, when the helper can take requests (or has failed to
	 * start)
	 */
	GCR_MESSAGE_HELLO = 1, /* struct gcr_hello */

	/* daemon -> control helper; each is answered by GCR_MESSAGE_RESULT of the same sequence */
	GCR_MESSAGE_STATE = 16,	     /* struct gcr_control_request; result.state */
	GCR_MESSAGE_LOCK = 17,	     /* ... .timeout_ms */
	GCR_MESSAGE_CHECKPOINT = 18, /* ... */
	GCR_MESSAGE_RESTORE = 19,    /* ... .pairs */
	GCR_MESSAGE_UNLOCK = 20,     /* ... */

	/* daemon -> control helper or worker; answered by GCR_MESSAGE_GPUS */
	GCR_MESSAGE_QUERY = 32, /* struct gcr_gpus_request, or no payload: it names no process */
	GCR_MESSAGE_GPUS = 33,	/* struct gcr_gpus_reply */

	/* daemon -> worker; each is answered by GCR_MESSAGE_RESULT */
	GCR_MESSAGE_RESERVE = 48, /* struct gcr_reserve_request: reserve physical VRAM */
	GCR_MESSAGE_RELEASE = 49, /* no payload: release all VRAM that was reserved */

	/*
	 * daemon -> gpucr-halt: HALT stops the threads of a program and is answered by
	 * GCR_MESSAGE_RESULT; HALT_END lets the threads run again, and the helper ends
	 */
	GCR_MESSAGE_HALT = 36, /* struct gcr_halt_request; fds: our pidfd, the page, its pidfd */
	GCR_MESSAGE_HALT_END = 37, /* no payload; not answered */

	GCR_MESSAGE_RESULT = 64, /* struct gcr_result */

	/*
	 * daemon -> worker, a session: the memory of one process on that GPU is moved out or in. A
	 * session begins with OUT or IN and ends with END; each message is answered by
	 * GCR_MESSAGE_RESULT.
	 */
	GCR_MESSAGE_SESSION_OUT = 50, /* struct gcr_session; fds: table, directory, digests ... */
	GCR_MESSAGE_SESSION_IN = 51,  /* the same */
	GCR_MESSAGE_IMPORT = 52,      /* struct gcr_range + that many handle descriptors */
	GCR_MESSAGE_CREATE = 53,      /* no payload: allocate all VRAM, begin to copy; ENOMEM */
	GCR_MESSAGE_COPY = 54,	      /* no payload: answered when every byte has been copied */
	GCR_MESSAGE_EXPORT = 55, /* struct gcr_range; the result carries that many descriptors */
	GCR_MESSAGE_END = 56,	 /* no payload: release everything of the session */

	/*
	 * daemon -> worker, answered at once: descriptors of complete files (all their pages exist)
	 * that later sessions will use. The worker registers the files with the driver in the
	 * background. EAGAIN: not done yet, ask again. Files may be sent repeatedly.
	 */
	GCR_MESSAGE_PIN = 57,
	/*
	 * No payload; fds: files of the store that no process but the daemon may hold any more: the
	 * worker releases those that it was sent. EAGAIN: not done yet, ask again.
	 */
	GCR_MESSAGE_UNPIN = 58,

	/* preload library -> daemon; not answered */
	GCR_MESSAGE_REGISTER = 96, /* struct gcr_register; fd: the page (struct gcr_page) */
	/*
	 * No payload: `wanting` in the page has become non-zero. A daemon that does not know the
	 * message drops it. A lost message does no harm: the page can be read at any time.
	 */
	GCR_MESSAGE_WANTED = 97,

	/*
	 * daemon -> preload library; each is answered by GCR_MESSAGE_RESULT of the same sequence
	 * (`state` is the enum gcr_preload_phase reached). The phases are explained there.
	 */
	GCR_MESSAGE_GATE_CLOSE = 100, /* struct gcr_gate_request */
	GCR_MESSAGE_GATE_OPEN = 101,  /* no payload */
	GCR_MESSAGE_LIST = 102,	      /* no payload; result has the table's descriptor */
	GCR_MESSAGE_FILES = 103,      /* struct gcr_range + one descriptor each: managed memory's */
	GCR_MESSAGE_HAND_OVER = 104,  /* struct gcr_hand_over; first come GCR_MESSAGE_HANDLES */
	GCR_MESSAGE_COMMIT = 105,     /* no payload */
	GCR_MESSAGE_TAKE_BACK = 106,  /* no payload */
	GCR_MESSAGE_RECEIVE = 107,    /* struct gcr_range + that many handle descriptors */
	GCR_MESSAGE_FINISH = 108,     /* no payload */
	GCR_MESSAGE_LET_GO = 109,     /* no payload */
	GCR_MESSAGE_SAVE = 110,	      /* no payload: managed memory is copied to its files */
	GCR_MESSAGE_HOLD = 111,	      /* the program's threads are stopped until the answer */

	/*
	 * No payload: prepare to bring managed memory in. Answered at once, also while the
	 * program's threads are stopped, unless one of them holds a lock that bringing in may need.
	 */
	GCR_MESSAGE_PREPARE = 114,

	/*
	 * struct gcr_park. Allowed in OUT, and in RUNNING if the driver has the process frozen: the
	 * library answers, closes its socket, and behaves as without a daemon until is_parked in
	 * struct gcr_page is 0 again. The next connection begins with REGISTER like every
	 * connection.
	 */
	GCR_MESSAGE_PARK = 115,

	/*
	 * No payload: the driver has no state of the process any more, so the program is ending.
	 * Answered by ESRCH, see enum gcr_preload_phase. A library that does not know the message
	 * answers EOPNOTSUPP.
	 */
	GCR_MESSAGE_DRIVER_GONE = 116,

	/* preload library -> daemon, during HAND_OVER, with its sequence; not answered */
	GCR_MESSAGE_HANDLES = 112, /* struct gcr_range + that many handle descriptors */
};

/* A process's state in the driver (cuCheckpointProcessGetState), in terms common to all vendors. */
enum gcr_control_state {
	GCR_CONTROL_UNKNOWN = 0, /* not asked, or the process is unknown to the driver */
	GCR_CONTROL_RUNNING = 1,
	GCR_CONTROL_LOCKED = 2,
	GCR_CONTROL_CHECKPOINTED = 3,
	GCR_CONTROL_FAILED = 4,
};

struct gcr_hello {
	int32_t error; /* 0, or a positive errno: the helper is unusable (ENODEV, EOPNOTSUPP ...) */
	uint32_t api_version; /* the driver's API version, CUDA: 1000 * major + 10 * minor */
	char driver_version[GCR_NAME_BYTES]; /* "580.159.04", "" if not known */
	char words[GCR_WORDS_BYTES];	     /* message for `error` */
};

struct gcr_gpu_pair {
	uint8_t from[GCR_UUID_BYTES];
	uint8_t to[GCR_UUID_BYTES];
};

/*
 * With the process's pidfd: no other process that gets the pid is meant, though the driver is asked
 * by pid.
 */
struct gcr_control_request {
	int32_t pid;	      /* in the helper's (= the daemon's) pid namespace */
	uint32_t timeout_ms;  /* GCR_MESSAGE_LOCK: 0 waits for ever */
	uint32_t pairs_count; /* GCR_MESSAGE_RESTORE: 0 = same GPUs, else one pair for every GPU */
	struct gcr_gpu_pair pairs[GCR_GPUS_MAX];
};

struct gcr_halt_request {
	int32_t pid;
	uint32_t limit_ms; /* if the daemon has died, the halt ends after this time */
	/* struct gcr_proc_program of lib/procfs.h: no other program of the process is stopped. */
	uint64_t start_code;
	uint64_t start_stack;
};

struct gcr_reserve_request {
	uint64_t bytes;
};

struct gcr_result {
	int32_t error;		/* 0 or a positive errno */
	int32_t driver_result;	/* the driver's own code (CUresult), 0 if it was not asked */
	uint32_t state;		/* enum gcr_control_state after the call, UNKNOWN if not asked */
	uint32_t flags;		/* GCR_RESULT_* */
	uint64_t duration_usec; /* time inside the driver's call; COPY: since the copy began */
	char words[GCR_WORDS_BYTES]; /* "cuCheckpointProcessLock: CUDA_ERROR_NOT_READY (600): ..."
				      */
	uint64_t copied_bytes;	     /* COPY: bytes of the session that were copied */
};

#define GCR_RESULT_HOST_DIGESTS 0x1 /* COPY: the GPU could not make the digests, the host did */

struct gcr_gpu_info {
	uint8_t uuid[GCR_UUID_BYTES];
	int32_t minor;	      /* N of /dev/nvidiaN, -1 if not known */
	uint32_t flags;	      /* GCR_GPU_* below */
	uint64_t total_bytes; /* 0 if not known */
	uint64_t free_bytes;  /* that a program could still allocate */
	uint64_t used_bytes;
	char name[GCR_NAME_BYTES];
	uint16_t capability_major; /* the compute capability; both 0 if not known */
	uint16_t capability_minor;
	/* AMD: major * 10000 + minor * 100 + step, as KFD's gfx_target_version; 0: not known */
	uint32_t gfx_version;
};
#define GCR_GPU_MIG	  0x1 /* MIG mode is on */
#define GCR_GPU_MEMORY	  0x2 /* the three byte counts are known */
#define GCR_GPU_PROCESSES 0x4 /* the processes of this GPU are known */
#define GCR_GPU_CUT	  0x8 /* ... but some may not be listed, for want of room */

#define GCR_GPU_PROCESSES_MAX 512

struct gcr_gpu_process {
	int32_t pid;
	uint32_t gpu;	/* index into gpus[] */
	uint64_t bytes; /* VRAM in use */
};

struct gcr_gpus_request {
	int32_t pid; /* whose entries are never left out of the list; 0: none */
	uint32_t reserved;
};

struct gcr_gpus_reply {
	int32_t error; /* 0 or a positive errno */
	uint32_t gpus_count;
	uint32_t processes_count; /* that are listed; GCR_GPU_CUT: there may be more */
	uint32_t reserved;
	char words[GCR_WORDS_BYTES];
	struct gcr_gpu_info gpus[GCR_GPUS_MAX];
	struct gcr_gpu_process processes[GCR_GPU_PROCESSES_MAX];
};

/* ---- the memory of a process: extents ---- */

enum gcr_memory_kind {
	GCR_MEMORY_DEVICE = 1,	/* has a shareable handle: moved by the worker */
	GCR_MEMORY_MANAGED = 2, /* cuMemAllocManaged: read and written by the program itself */
};

#define GCR_EXTENTS_MAX 262144

/*
 * A piece of memory that is moved as one file. A table of extents, the answer to LIST and the start
 * of a session, travels as a memfd: at most GCR_EXTENTS_MAX of them, nothing before, between or
 * behind. Until the gate opens again, the order of LIST's table is the order that all ranges refer
 * to; device memory comes first, ordered by GPU, then managed memory.
 */
struct gcr_extent {
	uint64_t address; /* in the program, of its first byte; 0: not mapped */
	uint64_t bytes;	  /* mapped size; DEVICE: a multiple of 2 MiB, MANAGED: of 4 KiB */
	uint64_t id;	  /* unique in this process, never reused */
	uint8_t gpu[GCR_UUID_BYTES]; /* MANAGED: the GPU that was current at allocation */
	uint32_t kind;		     /* enum gcr_memory_kind */
	uint32_t gpu_index;	     /* filled in by the daemon: its index of `gpu` */
	uint32_t flags;		     /* GCR_EXTENT_* */
	uint32_t reserved[3];
};
#define GCR_EXTENT_PROGRAM_HANDLE 0x1 /* made by the program with cuMemCreate */
/*
 * Set by the daemon: since an earlier freeze the file has the contents that its digests describe.
 */
#define GCR_EXTENT_KNOWN	  0x2

struct gcr_range {
	uint32_t first;
	uint32_t count; /* at most GCR_MESSAGE_FDS_MAX if descriptors come with it */
};

/*
 * A session in a worker. Its descriptors are:
 * - a memfd with the table of this GPU's extents (ranges refer to this table);
 * - the directory with a file for each extent, named by gcr_extent_name(), already of the right
 *   size, sparse where nothing has been written;
 * - the file of digests in the layout of lib/digest.h, in which the digests of the table's chunks
 *   begin with number first_chunk.
 *
 * OUT writes the digests before COPY is answered, also if the answer is an error. IN verifies the
 * data against digests that exist, EIO if they differ; the digests need not exist before COPY is
 * sent. OUT: IMPORT (in batches, in order), COPY (finds the changes of extents that are KNOWN, and
 * copies), END. IN: CREATE (copying to memory that has been created begins), EXPORT (in batches),
 * COPY, END. RESERVE and RELEASE work during a session too.
 */
struct gcr_session {
	uint32_t count; /* extents in the table */
	/*
	 * At most this many copies are queued at the GPU at a time, for IN until COPY arrives; 0:
	 * no limit.
	 */
	uint32_t copies_in_flight;
	uint64_t first_chunk;
	uint32_t flags; /* GCR_SESSION_* */
	uint32_t reserved;
};
#define GCR_SESSION_UNVERIFIED	 0x1 /* IN: the data may differ from the digests */
/*
 * IN: files may have other pages than those registered with the driver: users had access to them.
 */
#define GCR_SESSION_UNREGISTERED 0x2
/*
 * IN: pieces of the files are packed (lib/pack_file.h), and two more descriptors are passed: the
 * directory of the tables and that of the segments. Neither is changed during the session.
 */
#define GCR_SESSION_PACKED	 0x4
/*
 * IN: a CREATE that lacks memory keeps what it has allocated; the next CREATE continues from there.
 */
#define GCR_SESSION_IN_PARTS	 0x8

/* ---- the preload library ---- */

/*
 * The phase: where the memory of a program is.
 *
 *     RUNNING --GATE_CLOSE--> GATED --HAND_OVER--> HANDED --COMMIT--> OUT
 *        ^                    | ^ ^                  |                | ^
 *        +-----GATE_OPEN------+ | +----TAKE_BACK-----+        RECEIVE | | LET_GO
 *                               +-----------FINISH--------- INCOMING <+ |
 *                                                               +-------+
 *
 * A program with managed memory reaches HANDED differently. SAVE leaves the phase at GATED; the
 * program's threads can write to managed memory until it is held, so the threads are stopped for
 * HOLD.
 *
 *     GATED --SAVE, HOLD--> HELD --HAND_OVER--> HANDED
 *       ^                    |
 *       +-----TAKE_BACK------+
 *
 * A HOLD that fails may have reached HELD (see result.state), and a HAND_OVER that fails leaves the
 * phase at HELD: TAKE_BACK then undoes it. Memory that comes back is visible before its contents
 * are there, so the threads are stopped for TAKE_BACK and FINISH too; otherwise these return EBUSY.
 * A thread that sleeps in a system call on held memory can only be stopped when it has got the page
 * that it waits for: from PREPARE to any other message, threads get the pages that they touch.
 *
 * A message that asks for the current phase succeeds. When the daemon's socket closes, the library
 * returns to RUNNING by itself: from GATED at once, and from HANDED (where it still has the
 * descriptors) unless another daemon connects within GCR_PRELOAD_GRACE_USEC. In OUT and INCOMING,
 * and while managed memory is held, the library waits for a daemon for ever.
 *
 * A request that fails because the program is ending (exit(3) has begun, or the driver reports that
 * it is deinitialized) is answered by ESRCH in RUNNING, whatever the phase was before: the gate is
 * open, memory that was handed over is not requested back, and the page has GCR_PAGE_ENDING set. A
 * daemon that does not know the flag treats the process as one that has ended.
 */
enum gcr_preload_phase {
	GCR_PRELOAD_RUNNING = 1,
	GCR_PRELOAD_GATED = 2,	  /* no call gets through and the GPU is idle */
	GCR_PRELOAD_HANDED = 3,	  /* unmapped and released; descriptors kept */
	GCR_PRELOAD_OUT = 4,	  /* descriptors closed too: the data is in the store only */
	GCR_PRELOAD_INCOMING = 5, /* part of the memory is mapped again */
	GCR_PRELOAD_HELD = 6,	  /* managed memory is in its files, the rest in place */
};
#define GCR_PRELOAD_LAST GCR_PRELOAD_HELD

#define GCR_PRELOAD_GRACE_USEC 10000000

struct gcr_register {
	uint32_t preload_version;
	uint32_t phase;	     /* enum gcr_preload_phase */
	char generation[40]; /* of the last HAND_OVER, "" if there was none */
};

struct gcr_gate_request {
	/*
	 * The time to wait for captures to end, calls to return and the GPU to be idle. On
	 * ETIMEDOUT the message names what is still pending. If the gate could be closed, it stays
	 * closed: ask again, or open it.
	 */
	uint32_t timeout_ms;
};

struct gcr_hand_over {
	char generation[40]; /* UUID as text */
	uint32_t flags;	     /* GCR_HAND_OVER_* */
};
#define GCR_HAND_OVER_SHRINK 0x1 /* also release the VRAM of kernels' stacks until FINISH */

struct gcr_park {
	/*
	 * The library ends the parking by itself after this time, and as soon as CRIU has restored
	 * the program.
	 */
	uint32_t limit_ms;
	uint32_t reserved;
};

/*
 * The page: facts that the program publishes without being asked, in a memfd that the program maps
 * for writing and the daemon for reading, F_SEAL_SHRINK | F_SEAL_GROW set. The contents are
 * untrusted input to the daemon.
 */
#define GCR_PAGE_MAGIC	 0x50524347u /* "GCRP" */
#define GCR_PAGE_VERSION 1
#define GCR_PAGE_SLOTS	 8192

/* A thread's slot, in a cache line of its own. */
struct gcr_page_slot {
	uint32_t tid;	      /* 0: free */
	uint32_t inside;      /* 1 + number of the entry point the thread is in, 0: none */
	uint64_t submissions; /* calls that gave the GPU work */
	uint64_t reserved[6];
};

struct gcr_page {
	uint32_t magic;
	uint32_t version;
	uint32_t phase;		/* enum gcr_preload_phase */
	uint32_t flags;		/* GCR_PAGE_* */
	uint64_t table_changes; /* incremented when the answer to LIST changes */
	uint64_t device_bytes;	/* of DEVICE extents */
	uint64_t managed_bytes;
	uint32_t extents;
	uint32_t sharings;    /* memory shared with other processes now: no freeze */
	uint32_t captures;    /* stream captures open */
	uint32_t slots_count; /* slots from this index on were never used */
	char incomplete[64];  /* an entry point or library that bypasses the gate, "" if none */
	char obstacle[128];   /* any other reason against a freeze by this engine, "" if none */
	/*
	 * Managed memory is being taken or brought back: threads that are stopped for it must stay
	 * stopped, also if the daemon dies. See fs/helper/gpucr_halt.c.
	 */
	uint32_t is_moving;
	uint32_t is_parked;	 /* set by the library; cleared by the daemon, through the file */
	uint64_t apart_bytes;	 /* made by cuMemCreate, but cannot be handed over */
	uint64_t imported_bytes; /* of device_bytes, memory made in another process */
	/*
	 * Number of threads at the closed gate with a call that needs the GPU; 0 also if the
	 * library is old.
	 */
	uint32_t wanting;
	uint32_t reserved_too;
	uint64_t reserved[4];
	struct gcr_page_slot slots[GCR_PAGE_SLOTS];
	/*
	 * Functions of the driver that the program has called and that the library does not know,
	 * separated by blanks. The pages of older libraries end before this field; reading it gives
	 * 0, as it lies in the same page of memory.
	 */
	char unknown[512];
};
/* The beginning of struct gcr_page, by which a page is recognised. */
struct gcr_page_head {
	uint32_t magic;
	uint32_t version;
	uint32_t phase;
	uint32_t flags;
};
_Static_assert(offsetof(struct gcr_page_head, flags) == offsetof(struct gcr_page, flags),
	       "the beginning of struct gcr_page");
/* The page's name in /proc/PID/maps; memfd_create(2) takes the first, the kernel adds the rest. */
#define GCR_PAGE_NAME	   "gpucr-page"
#define GCR_PAGE_FILE_NAME "/memfd:" GCR_PAGE_NAME " (deleted)"
#define GCR_PAGE_VMM	   0x1 /* memory is allocated so that it can be handed over */
#define GCR_PAGE_IMPORTED  0x2 /* some of its handles were imported: never use the driver engine */
#define GCR_PAGE_HIP	   0x4 /* the library for HIP (AMD); else the one for CUDA */
#define GCR_PAGE_WANTING   0x8 /* `wanting` is maintained; not in older libraries */
/* The program is ending: its gate does not close any more. Older libraries do not set this flag. */
#define GCR_PAGE_ENDING	   0x10

/* The length of the oldest library's page. */
#define GCR_PAGE_BYTES_LEAST offsetof(struct gcr_page, unknown)

#endif
