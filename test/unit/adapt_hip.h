/* SPDX-License-Identifier: MIT */
/*
 * The library of HIP that adapters are tried on: it says that it is of any version, answers what it
 * is told to, and notes what it has been asked.
 */
#ifndef GCR_TEST_ADAPT_HIP_H
#define GCR_TEST_ADAPT_HIP_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/rocm/adapt.h"
#include "backend/rocm/hip_api.h"

#define HIP_VERSION_OF(major, minor) (10000000 * (major) + 100000 * (minor) + 44000)
#define MAPPINGS_MAX		     4
#define MIB			     ((size_t)1 << 20)

/* The library: what it is told to answer, and what it has been asked. */
struct adapt_hip {
	int version;
	const char *absent[4]; /* functions that this version does not have */
	hipError_t error;      /* what every function answers, if it is one */
	int devices, current;
	unsigned int calls;
	int device, set_devices[8]; /* what it was last asked about; what was made current */
	unsigned int set_count, flags;
	unsigned long long number; /* an attribute, a limit, a type, a size */
	void *pointer;
	int imported_fd, imported_as_value;
	bool is_quiet;		 /* refuses to map and unmap, and says that it was done */
	hipError_t range_error;	 /* of hipMemGetAddressRange */
	unsigned char answer[8]; /* what is written for a pointer's attribute */
	size_t answer_bytes;
	struct mapping {
		char *start;
		size_t bytes;
	} mappings[MAPPINGS_MAX];
	char *unmapped[MAPPINGS_MAX];
	size_t unmapped_bytes[MAPPINGS_MAX], unmapped_count;
	char uuid[16];
	const char *place, *architecture;
};

extern struct adapt_hip adapt_hip;

/* It is of this version, and has been asked nothing. */
void adapt_hip_reset(int version);

/*
 * A function of this name, for gcr_hip_find(): NULL if this version does not have it. With
 * @argument it is another library.
 */
void *adapt_hip_look_up(void *argument, const char *name);
/* Anything is there, under an address that tells its name. */
void *adapt_hip_look_up_any(void *argument, const char *name);

#define FIND(name) ((__typeof__(name) *)gcr_hip_find(#name, adapt_hip_look_up, NULL))

#endif
