/* SPDX-License-Identifier: MIT */
/* hipGetProcAddress: functions by name. One function was changed and has had a new name since. */
#include "backend/sim/hip.h"

static const struct {
	const char *name;
	void *function;
} functions[] = {
#define FUNCTION(since, result, name, arguments) {#name, (void *)name},
#include "backend/rocm/hip_functions.def"
#undef FUNCTION
	{"hipGetDeviceProperties", (void *)hipGetDeviceProperties},
	{"hipGetDevicePropertiesR0000", (void *)hipGetDevicePropertiesR0000},
	{"hipGetDevicePropertiesR0600", (void *)hipGetDevicePropertiesR0600},
};

hipError_t hipGetProcAddress(const char *symbol, void **function, int version, uint64_t flags,
			     hipDriverProcAddressQueryResult *status)
{
	HIP_ENTER();
	if (symbol && !strcmp(symbol, "hipGetDeviceProperties") && version >= 600)
		symbol = "hipGetDevicePropertiesR0600";
	if (!symbol || !*symbol || !function)
		HIP_RETURN(hipErrorInvalidValue);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(functions); i++)
		if (!strcmp(functions[i].name, symbol)) {
			*function = functions[i].function;
			if (status)
				*status = HIP_GET_PROC_ADDRESS_SUCCESS;
			HIP_RETURN(hipSuccess);
		}
	*function = NULL;
	if (status)
		*status = HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	HIP_RETURN(hipErrorInvalidValue);
}
