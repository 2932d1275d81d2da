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

	GCR_MESSAGE_RESULT = 64, /* struct gcr_result */

	/* preload library -> daemon; not answered */
	GCR_MESSAGE_REGISTER = 96, /* struct gcr_register */
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

struct gcr_reserve_request {
	uint64_t bytes;
};

struct gcr_result {
	int32_t error;	       /* 0 or a positive errno */
	int32_t driver_result; /* the driver's own code (CUresult), 0 if it was not asked */
	uint32_t state;	       /* enum gcr_control_state after the call, UNKNOWN if not asked */
	uint32_t reserved;
	uint64_t duration_usec;	     /* time inside the driver's call */
	char words[GCR_WORDS_BYTES]; /* "cuCheckpointProcessLock: CUDA_ERROR_NOT_READY (600): ..."
				      */
};

struct gcr_gpu_info {
	uint8_t uuid[GCR_UUID_BYTES];
	int32_t minor;	      /* N of /dev/nvidiaN, -1 if not known */
	uint32_t flags;	      /* GCR_GPU_* below */
	uint64_t total_bytes; /* 0 if not known */
	uint64_t free_bytes;  /* what a program could still allocate */
	uint64_t used_bytes;
	char name[GCR_NAME_BYTES];
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

struct gcr_register {
	uint32_t preload_version;
	uint32_t reserved;
};

#endif
