/* SPDX-License-Identifier: MIT */
/*
 * Wrappers of entry points that take a floating-point number or a large struct by value, which the
 * wrappers generated from entry_points.def cannot pass on. They do nothing but pass the gate.
 */
#include "backend/cuda/cuda_api.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "lib/cleanup.h"

/* Not declared in cuda_api.h: functions of texture references, and one of Tegra's. */
typedef struct CUtexref_st *CUtexref;
CUresult cuParamSetf(CUfunction hfunc, int offset, float value);
CUresult cuTexRefSetMipmapLevelBias(CUtexref hTexRef, float bias);
CUresult cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp,
				     float maxMipmapLevelClamp);

/* The layout of CUeglFrame of cudaEGL.h when passed: 60 bytes, with the alignment of a pointer. */
typedef struct {
	void *planes[3];
	uint32_t rest[9];
} CUeglFrame;
CUresult cuEGLStreamProducerPresentFrame(void *conn, CUeglFrame eglframe, CUstream *pStream);

#define EXACT(symbol, parameters, arguments)                 \
	GCR_OWN(symbol);                                     \
	CUresult gcr_own_##symbol parameters                 \
	{                                                    \
		__typeof__(symbol) *real = GCR_REAL(symbol); \
                                                             \
		if (!real)                                   \
			return CUDA_ERROR_NOT_FOUND;         \
		GCR_GATE(symbol);                            \
		return real arguments;                       \
	}

EXACT(cuEGLStreamProducerPresentFrame, (void *connection, CUeglFrame frame, CUstream *stream),
      (connection, frame, stream))
EXACT(cuParamSetf, (CUfunction function, int offset, float value), (function, offset, value))
EXACT(cuTexRefSetMipmapLevelBias, (CUtexref reference, float bias), (reference, bias))
EXACT(cuTexRefSetMipmapLevelClamp, (CUtexref reference, float least, float most),
      (reference, least, most))
