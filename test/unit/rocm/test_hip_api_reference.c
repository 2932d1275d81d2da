/* SPDX-License-Identifier: MIT */
/*
 * The numbers and prototypes of the installed HIP headers of any release. Entries of a later
 * release are marked as absent, and are compared once headers of that release are installed.
 */
#include <stdint.h>

#include "test/unit/rocm/test_hip_api.h"

#if HAVE_HIP_HEADERS

#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#include <hip/hip_runtime_api.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define IS_SINCE(major, minor)          \
	(HIP_VERSION_MAJOR > (major) || \
	 (HIP_VERSION_MAJOR == (major) && HIP_VERSION_MINOR >= (minor)))

#define HAS_5_0	 1
#define HAS_99_0 0

#if IS_SINCE(5, 2)
#define HAS_5_2 1
#else
#define HAS_5_2 0
#endif

#if IS_SINCE(5, 3)
#define HAS_5_3 1
#else
#define HAS_5_3 0
#endif

#if IS_SINCE(5, 4)
#define HAS_5_4 1
#else
#define HAS_5_4 0
#endif

#if IS_SINCE(5, 5)
#define HAS_5_5 1
#else
#define HAS_5_5 0
#endif

#if IS_SINCE(5, 6)
#define HAS_5_6 1
#else
#define HAS_5_6 0
#endif

#if IS_SINCE(6, 0)
#define HAS_6_0 1
#else
#define HAS_6_0 0
#endif

#if IS_SINCE(6, 2)
#define HAS_6_2 1
#else
#define HAS_6_2 0
#endif

#if IS_SINCE(6, 3)
#define HAS_6_3 1
#else
#define HAS_6_3 0
#endif

#if IS_SINCE(7, 0)
#define HAS_7_0 1
#else
#define HAS_7_0 0
#endif

#define PICK_0(yes, no)	       no
#define PICK_1(yes, no)	       yes
#define PICK_NOW(has, yes, no) PICK_##has(yes, no)
#define PICK(has, yes, no)     PICK_NOW(has, yes, no)

/* Present since one release and until another. */
#define PICK_AS(since, before) PICK(HAS_##since, PICK(HAS_##before, ABSENT, PRESENT), ABSENT)

/* The type of a copy's source in HIP's prototypes. */
#if IS_SINCE(7, 0)
typedef const void gcr_hip_source;
typedef unsigned int gcr_hip_api_version;
#else
typedef void gcr_hip_source;
typedef int gcr_hip_api_version;
#endif

const struct hip_api_number hip_api_reference[] = {
#define CONSTANT(since, name) PICK(HAS_##since, PRESENT, ABSENT)(#name, #since, (intptr_t)(name))
#define TYPE(since, type)     PICK(HAS_##since, PRESENT, ABSENT)("sizeof " #type, #since, sizeof(type))
#define FIELD(since, type, name) \
	PICK(HAS_##since, PRESENT, ABSENT)(#type "." #name, #since, offsetof(type, name))
#define CONSTANT_AS(since, before, ours, theirs) \
	PICK_AS(since, before)(#ours, #since, (intptr_t)(theirs))
#define TYPE_AS(since, before, ours, theirs) \
	PICK_AS(since, before)("sizeof " #ours, #since, sizeof(theirs))
#define FIELD_AS(since, before, ours, theirs, name) \
	PICK_AS(since, before)(#ours "." #name, #since, offsetof(theirs, name))
#include "test/unit/rocm/hip_api_list.h"
};

#define COMPARED(name, since, result, arguments) \
	{#name, #since, true, __builtin_types_compatible_p(__typeof__(name), result arguments)},
#define NEWER(name, since, result, arguments) {#name, #since, false, false},

const struct hip_api_function hip_api_functions[] = {
#define FUNCTION(since, result, name, arguments) \
	PICK(HAS_##since, COMPARED, NEWER)(name, since, result, arguments)
#include "backend/rocm/hip_functions.def"
};

const size_t hip_api_reference_count = sizeof(hip_api_reference) / sizeof(hip_api_reference[0]);
const size_t hip_api_functions_count = sizeof(hip_api_functions) / sizeof(hip_api_functions[0]);
const int hip_api_reference_version = 100 * HIP_VERSION_MAJOR + HIP_VERSION_MINOR;

#else

const struct hip_api_number hip_api_reference[1];
const struct hip_api_function hip_api_functions[1];
const size_t hip_api_reference_count;
const size_t hip_api_functions_count;
const int hip_api_reference_version;

#endif
