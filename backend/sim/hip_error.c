/* SPDX-License-Identifier: MIT */
/*
 * The names of HIP's result codes (the texts are the names in lower case), and each thread's last
 * error.
 */
#include "backend/sim/hip.h"

#define ROW(error, words)            \
	{                            \
		error, #error, words \
	}

static const struct {
	hipError_t error;
	const char *name, *words;
} errors[] = {
	ROW(hipSuccess, "no error"),
	ROW(hipErrorInvalidValue, "invalid value"),
	ROW(hipErrorOutOfMemory, "out of memory"),
	ROW(hipErrorNotInitialized, "not initialized"),
	ROW(hipErrorDeinitialized, "deinitialized"),
	ROW(hipErrorProfilerDisabled, "profiler disabled"),
	ROW(hipErrorProfilerNotInitialized, "profiler not initialized"),
	ROW(hipErrorProfilerAlreadyStarted, "profiler already started"),
	ROW(hipErrorProfilerAlreadyStopped, "profiler already stopped"),
	ROW(hipErrorInvalidConfiguration, "invalid configuration"),
	ROW(hipErrorInvalidPitchValue, "invalid pitch value"),
	ROW(hipErrorInvalidSymbol, "invalid symbol"),
	ROW(hipErrorInvalidDevicePointer, "invalid device pointer"),
	ROW(hipErrorInvalidMemcpyDirection, "invalid memcpy direction"),
	ROW(hipErrorInsufficientDriver, "insufficient driver"),
	ROW(hipErrorMissingConfiguration, "missing configuration"),
	ROW(hipErrorPriorLaunchFailure, "prior launch failure"),
	ROW(hipErrorInvalidDeviceFunction, "invalid device function"),
	ROW(hipErrorNoDevice, "no device"),
	ROW(hipErrorInvalidDevice, "invalid device"),
	ROW(hipErrorInvalidImage, "invalid image"),
	ROW(hipErrorInvalidContext, "invalid context"),
	ROW(hipErrorContextAlreadyCurrent, "context already current"),
	ROW(hipErrorMapFailed, "map failed"),
	ROW(hipErrorUnmapFailed, "unmap failed"),
	ROW(hipErrorArrayIsMapped, "array is mapped"),
	ROW(hipErrorAlreadyMapped, "already mapped"),
	ROW(hipErrorNoBinaryForGpu, "no binary for gpu"),
	ROW(hipErrorAlreadyAcquired, "already acquired"),
	ROW(hipErrorNotMapped, "not mapped"),
	ROW(hipErrorNotMappedAsArray, "not mapped as array"),
	ROW(hipErrorNotMappedAsPointer, "not mapped as pointer"),
	ROW(hipErrorECCNotCorrectable, "ecc not correctable"),
	ROW(hipErrorUnsupportedLimit, "unsupported limit"),
	ROW(hipErrorContextAlreadyInUse, "context already in use"),
	ROW(hipErrorPeerAccessUnsupported, "peer access unsupported"),
	ROW(hipErrorInvalidKernelFile, "invalid kernel file"),
	ROW(hipErrorInvalidGraphicsContext, "invalid graphics context"),
	ROW(hipErrorInvalidSource, "invalid source"),
	ROW(hipErrorFileNotFound, "file not found"),
	ROW(hipErrorSharedObjectSymbolNotFound, "shared object symbol not found"),
	ROW(hipErrorSharedObjectInitFailed, "shared object init failed"),
	ROW(hipErrorOperatingSystem, "operating system"),
	ROW(hipErrorInvalidHandle, "invalid handle"),
	ROW(hipErrorIllegalState, "illegal state"),
	ROW(hipErrorNotFound, "not found"),
	ROW(hipErrorNotReady, "not ready"),
	ROW(hipErrorIllegalAddress, "illegal address"),
	ROW(hipErrorLaunchOutOfResources, "launch out of resources"),
	ROW(hipErrorLaunchTimeOut, "launch time out"),
	ROW(hipErrorPeerAccessAlreadyEnabled, "peer access already enabled"),
	ROW(hipErrorPeerAccessNotEnabled, "peer access not enabled"),
	ROW(hipErrorSetOnActiveProcess, "set on active process"),
	ROW(hipErrorContextIsDestroyed, "context is destroyed"),
	ROW(hipErrorAssert, "assert"),
	ROW(hipErrorHostMemoryAlreadyRegistered, "host memory already registered"),
	ROW(hipErrorHostMemoryNotRegistered, "host memory not registered"),
	ROW(hipErrorLaunchFailure, "launch failure"),
	ROW(hipErrorCooperativeLaunchTooLarge, "cooperative launch too large"),
	ROW(hipErrorNotSupported, "not supported"),
	ROW(hipErrorStreamCaptureUnsupported, "stream capture unsupported"),
	ROW(hipErrorStreamCaptureInvalidated, "stream capture invalidated"),
	ROW(hipErrorStreamCaptureMerge, "stream capture merge"),
	ROW(hipErrorStreamCaptureUnmatched, "stream capture unmatched"),
	ROW(hipErrorStreamCaptureUnjoined, "stream capture unjoined"),
	ROW(hipErrorStreamCaptureIsolation, "stream capture isolation"),
	ROW(hipErrorStreamCaptureImplicit, "stream capture implicit"),
	ROW(hipErrorCapturedEvent, "captured event"),
	ROW(hipErrorStreamCaptureWrongThread, "stream capture wrong thread"),
	ROW(hipErrorGraphExecUpdateFailure, "graph exec update failure"),
	ROW(hipErrorUnknown, "unknown"),
	ROW(hipErrorRuntimeMemory, "runtime memory"),
	ROW(hipErrorRuntimeOther, "runtime other"),
};

static __thread hipError_t last_error;

hipError_t hip_result(CUresult result)
{
	hipError_t error = (hipError_t)result;

	if (hip_version() < HIP_VERSION_7_0 || (error && error != hipErrorNotReady))
		last_error = error;
	return error;
}

hipError_t hipGetLastError(void)
{
	hipError_t error = last_error;

	last_error = hipSuccess;
	return error;
}

hipError_t hipExtGetLastError(void)
{
	return hipGetLastError();
}

hipError_t hipPeekAtLastError(void)
{
	return last_error;
}

static size_t find(hipError_t error)
{
	size_t i = 0;

	while (i < GCR_ARRAY_SIZE(errors) && errors[i].error != error)
		i++;
	return i;
}

const char *hipGetErrorName(hipError_t error)
{
	size_t i = find(error);

	return i < GCR_ARRAY_SIZE(errors) ? errors[i].name : "hipErrorUnknown";
}

const char *hipGetErrorString(hipError_t error)
{
	size_t i = find(error);

	return i < GCR_ARRAY_SIZE(errors) ? errors[i].words : "unknown error";
}

/* Unlike hipGetErrorName(), reports an unknown code as an error. */
hipError_t hipDrvGetErrorName(hipError_t error, const char **text)
{
	if (!text)
		HIP_RETURN(hipErrorInvalidValue);
	*text = find(error) < GCR_ARRAY_SIZE(errors) ? hipGetErrorName(error) : NULL;
	HIP_RETURN(*text ? hipSuccess : hipErrorInvalidValue);
}

hipError_t hipDrvGetErrorString(hipError_t error, const char **text)
{
	if (!text)
		HIP_RETURN(hipErrorInvalidValue);
	*text = find(error) < GCR_ARRAY_SIZE(errors) ? hipGetErrorString(error) : NULL;
	HIP_RETURN(*text ? hipSuccess : hipErrorInvalidValue);
}

CUresult hip_error_by_name(const char *name)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(errors); i++)
		if (!strcmp(errors[i].name, name))
			return (CUresult)errors[i].error;
	return !strcmp(name, "hipErrorMemoryAllocation") ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
