/* SPDX-License-Identifier: MIT */
/*
 * A fake HIP library for tests of the adapter (backend/rocm/adapt.h). The library reports any
 * version, returns the results the test has set, and records the arguments of its calls.
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

/* The state of the library: the results the test has set, and the arguments of the last calls. */
struct adapt_hip {
	int version;
	const char *absent[4]; /* functions that this version does not have */
	hipError_t error;      /* the result of every function, if not hipSuccess */
	int devices, current;
	unsigned int calls;
	int device, set_devices[8]; /* device of the last query; devices made current */
	unsigned int set_count, flags;
	unsigned long long number; /* an attribute, a limit, a type, a size */
	void *pointer;
	int imported_fd, imported_as_value;
	bool is_quiet;		 /* map and unmap do nothing and report success */
	hipError_t range_error;	 /* of hipMemGetAddressRange */
	unsigned char answer[8]; /* the value of a pointer's attribute */
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

/* Resets the state: the library has this version and has received no calls. */
void adapt_hip_reset(int version);

/*
 * Finds a function by name, for gcr_hip_find(); returns NULL if this version does not have it. With
 * a non-NULL @argument, hipGetDevice() comes from a second library.
 */
void *adapt_hip_look_up(void *argument, const char *name);
/*
 * Like adapt_hip_look_up(), but finds every name, and stores the name in *@argument (const char
 * **).
 */
void *adapt_hip_look_up_any(void *argument, const char *name);

#define FIND(name) ((__typeof__(name) *)gcr_hip_find(#name, adapt_hip_look_up, NULL))

#endif
