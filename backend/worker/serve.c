/* SPDX-License-Identifier: MIT */
/*
 * A helper's side of the protocol, on the socket that the daemon left as descriptor 3. One thread
 * uses it; the daemon sends one request at a time. When the daemon has died, the call under way
 * finishes, its answer cannot be sent, and the helper exits.
 */
#include "backend/worker/serve.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef GCR_HIP
#include "backend/rocm/kfd.h"
#else
#include "backend/cuda/nvml.h"
#endif
#include "lib/cleanup.h"

#define SOCKET 3

static void copy_words(char to[static GCR_WORDS_BYTES], const struct gcr_error *error)
{
	snprintf(to, GCR_WORDS_BYTES, "%.*s", GCR_WORDS_BYTES - 1, error->words);
}

static struct {
	pthread_t thread;
	bool started;
	char driver_version[GCR_NAME_BYTES];
} preparation;

#ifdef GCR_HIP
void gcr_serve_prepare(void)
{
	gcr_kfd_driver_version(preparation.driver_version);
}
#else
static void *look_up_version(void *unused)
{
	gcr_nvml_driver_version(preparation.driver_version);
	return NULL;
}

void gcr_serve_prepare(void)
{
	preparation.started = pthread_create(&preparation.thread, NULL, look_up_version, NULL) == 0;
}
#endif

int gcr_serve_hello(const struct gcr_driver *driver, const struct gcr_error *error)
{
	struct gcr_hello hello = {
		.error = error->number,
		.api_version = (uint32_t)driver->api_version,
	};

	if (preparation.started)
		pthread_join(preparation.thread, NULL);
	memcpy(hello.driver_version, preparation.driver_version, sizeof(hello.driver_version));
	if (error->number)
		copy_words(hello.words, error);
	return gcr_message_send(SOCKET, GCR_MESSAGE_HELLO, 0, &hello, sizeof(hello), NULL, 0);
}

void gcr_serve_fail(struct gcr_result *result, CUresult driver_result,
		    const struct gcr_error *error)
{
	result->error = error->number;
	result->driver_result = (int32_t)driver_result;
	copy_words(result->words, error);
}

#ifdef GCR_HIP
/* Lists the GPUs and processes (HIP): the kernel lists all, without a context. */
static int list_gpus(const struct gcr_service *service, struct gcr_gpus_reply *reply,
		     int32_t asked_pid, struct gcr_error *error)
{
	return gcr_kfd_list(reply, asked_pid, error);
}
#else
/* Lists the GPUs without NVML: only the facts that the driver provides without a context. */
static int list_devices(const struct gcr_driver *driver, struct gcr_gpus_reply *reply,
			struct gcr_error *error)
{
	int count = 0;
	int r;

	r = gcr_driver_check(driver, driver->cuDeviceGetCount(&count), "cuDeviceGetCount", error);
	if (r < 0)
		return r;
	for (int ordinal = 0; ordinal < count && reply->gpus_count < GCR_GPUS_MAX; ordinal++) {
		struct gcr_gpu_info *gpu = &reply->gpus[reply->gpus_count];
		size_t total_bytes = 0;
		CUdevice device;
		CUuuid uuid;
		int capability[2];

		if (driver->cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
		    driver->cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS)
			continue;
		memcpy(gpu->uuid, uuid.bytes, sizeof(gpu->uuid));
		gpu->minor = -1;
		driver->cuDeviceGetName(gpu->name, sizeof(gpu->name), device);
		if (driver->cuDeviceTotalMem_v2(&total_bytes, device) == CUDA_SUCCESS)
			gpu->total_bytes = total_bytes;
		if (driver->cuDeviceGetAttribute(&capability[0],
						 CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
						 device) == CUDA_SUCCESS &&
		    driver->cuDeviceGetAttribute(&capability[1],
						 CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
						 device) == CUDA_SUCCESS) {
			gpu->capability_major = (uint16_t)capability[0];
			gpu->capability_minor = (uint16_t)capability[1];
		}
		reply->gpus_count++;
	}
	return 0;
}

static int list_gpus(const struct gcr_service *service, struct gcr_gpus_reply *reply,
		     int32_t asked_pid, struct gcr_error *error)
{
	int r;

	if (gcr_nvml_list(reply, asked_pid) == 0)
		return 0;
	r = list_devices(service->driver, reply, error);
	if (r == 0 && service->complete)
		service->complete(reply, service->data);
	return r;
}
#endif

static int answer_query(const struct gcr_service *service, const struct gcr_message *message)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_gpus_request request;
	struct gcr_error error = {0};

	if (!reply)
		return -ENOMEM;
	gcr_message_payload(message, &request, sizeof(request));
	if (list_gpus(service, reply, request.pid, &error) < 0) {
		reply->error = error.number;
		copy_words(reply->words, &error);
	}
	return gcr_message_send(SOCKET, GCR_MESSAGE_GPUS, message->header.sequence, reply,
				sizeof(*reply), NULL, 0);
}

/*
 * Is this the request of a daemon that has died since? The next daemon may have examined the
 * process by now, and would not expect another call.
 */
static bool is_orphan(void)
{
	struct pollfd daemon = {.fd = SOCKET};

	return poll(&daemon, 1, 0) == 1 && daemon.revents & (POLLHUP | POLLERR);
}

int gcr_serve_wait(int fd, int timeout_msec)
{
	struct pollfd polls[2] = {
		{.fd = fd, .events = POLLIN}, {.fd = SOCKET}, /* POLLHUP is always reported */
	};

	for (;;) {
		int r = poll(polls, 2, timeout_msec);

		if (r == 0)
			return -ETIMEDOUT;
		if (r < 0)
			continue;
		return polls[0].revents ? 0 : -EPIPE;
	}
}

static int answer_request(const struct gcr_service *service, struct gcr_message *request,
			  bool *ret_last)
{
	struct gcr_answer answer = {0};
	int r;

	service->handle(request, &answer, service->data);
	r = gcr_message_send(SOCKET, GCR_MESSAGE_RESULT, request->header.sequence, &answer.result,
			     sizeof(answer.result), answer.fds, answer.fds_count);
	for (size_t i = 0; i < answer.fds_count; i++)
		close(answer.fds[i]);
	*ret_last = answer.last;
	return r;
}

void gcr_serve(const struct gcr_service *service)
{
	bool last = false;
	int r = 0;

	while (r == 0 && !last) {
		struct gcr_message request;

		r = gcr_message_receive(SOCKET, -1, -1, &request);
		if (r < 0)
			return;
		if (is_orphan())
			r = -EPIPE;
		else if (request.header.type == GCR_MESSAGE_QUERY)
			r = answer_query(service, &request);
		else
			r = answer_request(service, &request, &last);
		gcr_message_close_fds(&request);
		if (r == 0 && !last && service->between)
			service->between(service->data);
	}
}
