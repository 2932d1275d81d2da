/* SPDX-License-Identifier: MIT */
/*
 * Wrappers of HIP's entry points that take a floating-point number or a large struct by value; see
 * exact.c. They do nothing but pass the gate.
 */
#include <stddef.h>

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "lib/cleanup.h"

#define NOT_FOUND 500 /* hipErrorNotFound */

/* The layouts of hipExtent and hipPitchedPtr. Other types: pointers or numbers suffice here. */
struct extent {
	size_t width, height, depth;
};
struct pitched {
	void *pointer;
	size_t pitch, width, height;
};
int malloc_3d_array(void **array, const void *format, struct extent extent, unsigned int flags);
int malloc_mipmapped_array(void **array, const void *format, struct extent extent,
			   unsigned int levels, unsigned int flags);
int memset_3d(struct pitched memory, int value, struct extent extent);
int memset_3d_async(struct pitched memory, int value, struct extent extent, void *stream);
int set_level_bias(void *reference, float bias);
int set_level_clamp(void *reference, float least, float most);

#define EXACT(symbol, like, submits, parameters, arguments)            \
	GCR_OWN_AS(symbol, like);                                      \
	int gcr_own_##symbol parameters                                \
	{                                                              \
		__typeof__(like) *real = GCR_WRAPPED_AS(symbol, like); \
                                                                       \
		if (!real)                                             \
			return NOT_FOUND;                              \
		GCR_GATE(symbol);                                      \
		if (submits)                                           \
			gcr_gate_submitted();                          \
		return real arguments;                                 \
	}

EXACT(hipMalloc3DArray, malloc_3d_array, false,
      (void **array, const void *format, struct extent extent, unsigned int flags),
      (array, format, extent, flags))
EXACT(hipMallocMipmappedArray, malloc_mipmapped_array, false,
      (void **array, const void *format, struct extent extent, unsigned int levels,
       unsigned int flags),
      (array, format, extent, levels, flags))
EXACT(hipMemset3D, memset_3d, true, (struct pitched memory, int value, struct extent extent),
      (memory, value, extent))
EXACT(hipMemset3D_spt, memset_3d, true, (struct pitched memory, int value, struct extent extent),
      (memory, value, extent))
EXACT(hipMemset3DAsync, memset_3d_async, true,
      (struct pitched memory, int value, struct extent extent, void *stream),
      (memory, value, extent, stream))
EXACT(hipMemset3DAsync_spt, memset_3d_async, true,
      (struct pitched memory, int value, struct extent extent, void *stream),
      (memory, value, extent, stream))
EXACT(hipTexRefSetMipmapLevelBias, set_level_bias, false, (void *reference, float bias),
      (reference, bias))
EXACT(hipTexRefSetMipmapLevelClamp, set_level_clamp, false,
      (void *reference, float least, float most), (reference, least, most))
