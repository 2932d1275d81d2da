/* SPDX-License-Identifier: MIT */
/*
 * A libcuda.so.1 with the oddities that the simulator does not have: functions that no header
 * names, and ones that are handed out without being exported. What is called calls the test back.
 */
#include <stddef.h>
#include <string.h>

#include "backend/cuda/cuda_api.h"

typedef void look_function(void);

CUresult cuInit(unsigned int flags)
{
	return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = 99000;
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
	((look_function *)stream)();
	return CUDA_SUCCESS;
}

/* Later than any table: numbers, fractions, more of both than there are registers. */
double cuFutureCall(look_function *look, int one, double half, long two, float quarter, void *three,
		    int four, int five, int six, int seven, int eight, double more);
double cuFutureCall(look_function *look, int one, double half, long two, float quarter, void *three,
		    int four, int five, int six, int seven, int eight, double more)
{
	look();
	return one + half + two + quarter + (double)(intptr_t)three + four + five + six + seven +
	       eight + more;
}

static CUresult hidden_memset(CUdeviceptr look, unsigned char byte, size_t size)
{
	((look_function *)(uintptr_t)look)();
	return byte == 3 && size == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult future_query(CUstream stream)
{
	((look_function *)stream)();
	return CUDA_ERROR_NOT_READY;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	*function = NULL;
	if (strcmp(symbol, "cuStreamQuery") == 0)
		*function = version >= 99000 ? (void *)future_query : (void *)cuStreamQuery;
	if (strcmp(symbol, "cuMemsetD8") == 0)
		*function = (void *)hidden_memset;
	if (strcmp(symbol, "cuFutureCall") == 0)
		*function = (void *)cuFutureCall;
	if (strcmp(symbol, "cuDriverGetVersion") == 0)
		*function = (void *)cuDriverGetVersion;
	if (strcmp(symbol, "hipMalloc") == 0 || strcmp(symbol, "cudaMalloc") == 0)
		*function = (void *)future_query;
	*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}
