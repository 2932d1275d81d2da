/* SPDX-License-Identifier: MIT */
/* cuGetProcAddress: entry points by base name, CUDA version and kind of default stream. */
#include "backend/sim/sim.h"

/* Only the addresses are used here; these functions are not in cuda_api.h. */
CUresult cuCtxFromGreenCtx(void);
CUresult cuDevResourceGenerateDesc(void);
CUresult cuDeviceGetDevResource(void);
CUresult cuGreenCtxCreate(void);
CUresult cuGreenCtxDestroy(void);
CUresult cuGreenCtxRecordEvent(void);
CUresult cuGreenCtxStreamCreate(void);
CUresult cuGreenCtxWaitEvent(void);
CUresult cuStreamGetGreenCtx(void);
#define ENTRY(name, version, function)
#define PER_THREAD_ENTRY(name, version, function) CUresult function(void);
#include "backend/sim/entry_points.h"
#undef ENTRY
#undef PER_THREAD_ENTRY

static const struct entry_point {
	const char *name;
	int version;
	bool per_thread;
	void *function;
} entry_points[] = {
#define ENTRY(name, version, function)		  {#name, version, false, (void *)function},
#define PER_THREAD_ENTRY(name, version, function) {#name, version, true, (void *)function},
#include "backend/sim/entry_points.h"
};

static const struct entry_point *find(const char *name, int version, bool per_thread,
				      bool *ret_known)
{
	const struct entry_point *best = NULL;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(entry_points); i++) {
		const struct entry_point *entry = &entry_points[i];

		if (strcmp(entry->name, name))
			continue;
		*ret_known = true;
		if (entry->version > version || (entry->per_thread && !per_thread))
			continue;
		/*
		 * A per-thread variant was introduced with one version of its function and takes
		 * precedence over that version; a later plain variant has its own per-thread
		 * variant.
		 */
		if (!best || entry->version > best->version ||
		    (entry->per_thread && !best->per_thread))
			best = entry;
	}
	return best;
}

static CUresult get(const char *symbol, void **function, int version, cuuint64_t flags,
		    CUdriverProcAddressQueryResult *status)
{
	const struct entry_point *entry;
	bool known = false;

	if (!symbol || !function || version > SIM_DRIVER_VERSION ||
	    flags & ~(cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM |
				  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
		return CUDA_ERROR_INVALID_VALUE;
	entry = find(symbol, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
		     &known);
	*function = entry ? entry->function : later_find(symbol);
	if (status)
		*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
			  : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
				    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	SIM_ENTER_FLAGS(SIM_CALL_BEFORE_INIT);
	return get(symbol, function, version, flags, status);
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
	SIM_ENTER_FLAGS(SIM_CALL_BEFORE_INIT);
	return get(symbol, function, version, flags, NULL);
}

/* The tables returned by the real call are private to NVIDIA's own libraries. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	SIM_ENTER_FLAGS(SIM_CALL_BEFORE_INIT);
	return CUDA_ERROR_NOT_FOUND;
}
