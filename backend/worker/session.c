/* SPDX-License-Identifier: MIT */
/*
 * A session's descriptors, handles and mappings. One thread; the copier's threads only use the
 * range of addresses. The mapped extents are always the first of the table: those whose handles are
 * held.
 */
#include "backend/worker/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/worker/plan.h"
#include "lib/cleanup.h"
#include "lib/digest.h"
#include "lib/extent.h"
#include "lib/full_io.h"

/* Descriptors that this process uses for other things: the driver has a few dozen. */
#define OTHER_DESCRIPTORS 512
/* IN: number of allocations that are made before copying into the first of them begins. */
#define ARRIVE_TOGETHER	  8
/*
 * Digests of this much memory are begun at once, and evaluated while those of the next part are
 * made.
 */
#define PART_BYTES	  (1ull << 30)
/* IN: the least that is verified at once: 64 MiB, for which the GPU takes 30 us. */
#define ADVANCE_CHUNKS	  1024

struct gcr_worker_session {
	struct gcr_worker_gpu *gpu;
	enum gcr_copy_direction direction;
	unsigned int in_flight;
	struct gcr_space *space;
	int digests_fd;
	uint64_t first_chunk;
	uint32_t flags;	   /* GCR_SESSION_* */
	void *digests_map; /* the whole file of digests, mapped for reading; NULL: not needed */
	size_t digests_map_bytes;
	struct gcr_digest *digests; /* in that mapping: of the files (OUT), or required (IN) */
	CUdeviceptr base;	    /* 0: no addresses are reserved */
	CUmemGenericAllocationHandle *handles;
	int *fds; /* OUT: the received descriptors */
	size_t fds_count;
	size_t arrived;	   /* number of extents that are imported or created, and accessible */
	size_t held;	   /* number of handles held and mapped; 0 once tidied */
	uint64_t digested; /* IN: chunks whose digests were begun before the copy ended */
	bool failed;	   /* an import or planning has failed */
	bool copying;	   /* the copier has a job of this session */
	bool copied;
	bool copy_failed;
	bool pinned; /* registered files are locked for the session */
};

/* gcr_driver_check() that also returns the driver's code. */
static int check(const struct gcr_worker_gpu *gpu, CUresult result, const char *call,
		 CUresult *ret_driver_result, struct gcr_error *error)
{
	if (result != CUDA_SUCCESS)
		*ret_driver_result = result;
	return gcr_driver_check(&gpu->driver, result, call, error);
}

static void prefix_extent(const struct gcr_worker_session *session, size_t index,
			  struct gcr_error *error)
{
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(&session->space->extents[index], name);
	gcr_error_prefix(error, "%s", name);
}

/*
 * Raises the limit of descriptors, if needed, to one for each extent; a privileged process may
 * raise its hard limit too. -EOPNOTSUPP.
 */
static int check_descriptors(size_t count, struct gcr_error *error)
{
	rlim_t needed = count + OTHER_DESCRIPTORS;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= needed)
		return 0;
	if (limit.rlim_max < needed)
		limit.rlim_max = needed;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
		return 0;
	return gcr_error_set(error, EOPNOTSUPP,
			     "%zu allocations on one GPU are more than the limit of open files "
			     "allows; raise LimitNOFILE of the gpucrfs service",
			     count);
}

static int reserve_addresses(struct gcr_worker_session *session, CUresult *ret_driver_result,
			     struct gcr_error *error)
{
	uint64_t bytes = gcr_space_bytes(session->space);

	if (!bytes)
		return 0;
	return check(session->gpu,
		     session->gpu->driver.cuMemAddressReserve(&session->base, bytes, 0, 0, 0),
		     "cuMemAddressReserve", ret_driver_result, error);
}

static void start_copier(struct gcr_worker_session *session)
{
	struct gcr_copy_job job = {
		.direction = session->direction,
		.space = session->space,
		.base = session->base,
		.in_flight = session->in_flight,
	};

	gcr_copier_start(session->gpu->copier, &job);
	session->copying = true;
}

/* Are there digests to compare with? */
static bool compares_digests(const struct gcr_worker_session *session)
{
	if (session->direction == GCR_COPY_IN)
		return !(session->flags & GCR_SESSION_UNVERIFIED);
	for (size_t i = 0; i < session->space->count; i++)
		if (session->space->extents[i].flags & GCR_EXTENT_KNOWN)
			return true;
	return false;
}

/* The position of the session's first digest in the file. */
static off_t digests_offset(const struct gcr_worker_session *session)
{
	return GCR_DIGESTS_HEADER_BYTES + (off_t)session->first_chunk * GCR_DIGEST_BYTES;
}

/*
 * Maps the file of digests. Its contents are read only when they are complete: with IN they are
 * still being written.
 */
static int map_digests(struct gcr_worker_session *session, struct gcr_error *error)
{
	size_t bytes = (size_t)digests_offset(session) +
		       gcr_plan_chunk(gcr_space_bytes(session->space)) * GCR_DIGEST_BYTES;
	struct stat stat;
	void *map;

	if (!compares_digests(session))
		return 0;
	if (fstat(session->digests_fd, &stat) < 0 || (uint64_t)stat.st_size < bytes)
		return gcr_error_set(error, EIO, "the digests cannot be read: there are too few");
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, session->digests_fd, 0);
	if (map == MAP_FAILED)
		return gcr_error_set(error, ENOMEM, "the digests cannot be mapped: %s",
				     strerror(errno));
	session->digests_map = map;
	session->digests_map_bytes = bytes;
	session->digests = (struct gcr_digest *)((char *)map + digests_offset(session));
	return 0;
}

static int write_digests(struct gcr_worker_session *session, struct gcr_error *error)
{
	const struct gcr_digest *digests = gcr_digester_digests(session->gpu->digester);
	size_t bytes = gcr_plan_chunk(gcr_space_bytes(session->space)) * GCR_DIGEST_BYTES;

	int result = gcr_pwrite_all(session->digests_fd, digests, bytes,
				    (uint64_t)digests_offset(session));

	if (result < 0)
		return gcr_error_set(error, result == -ENOSPC ? ENOSPC : EIO,
				     "the digests cannot be written: %s", strerror(-result));
	return 0;
}

static int digests_failed(struct gcr_worker_session *session, int r, CUresult driver_result,
			  CUresult *ret_driver_result, struct gcr_error *error)
{
	gcr_digester_stop(session->gpu->digester);
	gcr_error_prefix(error, "digests");
	if (driver_result != CUDA_SUCCESS)
		*ret_driver_result = driver_result;
	return r;
}

/* Begins the digests of the chunks [@first, @end), which are mapped. */
static int begin_digests(struct gcr_worker_session *session, uint64_t first, uint64_t end,
			 uint64_t *ret_ticket, CUresult *ret_driver_result, struct gcr_error *error)
{
	CUresult result = CUDA_SUCCESS;
	int r;

	r = gcr_digester_begin(session->gpu->digester, session->base, first, end - first,
			       ret_ticket, &result, error);
	return r < 0 ? digests_failed(session, r, result, ret_driver_result, error) : 0;
}

/* Waits for the digests of @ticket, and for all begun before. */
static int wait_for_digests(struct gcr_worker_session *session, uint64_t ticket,
			    CUresult *ret_driver_result, struct gcr_error *error)
{
	CUresult result = CUDA_SUCCESS;
	int r = gcr_digester_wait(session->gpu->digester, ticket, &result, error);

	return r < 0 ? digests_failed(session, r, result, ret_driver_result, error) : 0;
}

static int make_digests(struct gcr_worker_session *session, uint64_t first, uint64_t end,
			CUresult *ret_driver_result, struct gcr_error *error)
{
	uint64_t ticket = 0;
	int r = begin_digests(session, first, end, &ticket, ret_driver_result, error);

	return r < 0 ? r : wait_for_digests(session, ticket, ret_driver_result, error);
}

static struct gcr_plan plan_of(const struct gcr_worker_session *session, bool is_known)
{
	struct gcr_plan plan = {
		.space = session->space,
		.copier = session->gpu->copier,
		.pins = session->gpu->pins,
		.digests = gcr_digester_digests(session->gpu->digester),
		.zeros = gcr_digester_zeros(session->gpu->digester),
		.old = is_known ? session->digests : NULL,
	};

	return plan;
}

static void end_cleanup(struct gcr_worker_session *session)
{
	CUresult driver_result;

	gcr_worker_session_end(session, &driver_result, NULL);
}
GCR_DEFINE_CLEANUP(struct gcr_worker_session *, end_cleanup);

int gcr_worker_session_begin(struct gcr_worker_gpu *gpu, enum gcr_copy_direction direction,
			     const struct gcr_session *asked, const struct gcr_session_files *files,
			     struct gcr_worker_session **ret_session, CUresult *ret_driver_result,
			     struct gcr_error *error)
{
	_cleanup_(end_cleanup_cleanup) struct gcr_worker_session *session = NULL;
	int r;

	session = calloc(1, sizeof(*session));
	if (!session)
		return gcr_error_set(error, ENOMEM, "out of memory");
	session->gpu = gpu;
	session->direction = direction;
	session->in_flight = asked->copies_in_flight;
	session->first_chunk = asked->first_chunk;
	session->flags = asked->flags;
	session->digests_fd = -1;
	if (asked->first_chunk > INT64_MAX / GCR_DIGEST_BYTES / 2)
		return gcr_error_set(error, EPROTO, "there cannot be so many digests");
	r = gcr_space_create(files->table, asked->count, files->directory, &session->space, error);
	if (r < 0)
		return r;
	r = check_descriptors(asked->count, error);
	if (r == 0 && asked->count > 0) {
		session->handles = calloc(asked->count, sizeof(*session->handles));
		session->fds = calloc(asked->count, sizeof(*session->fds));
		if (!session->handles || !session->fds)
			r = gcr_error_set(error, ENOMEM, "out of memory");
	}
	session->digests_fd = files->digests;
	if (r == 0)
		r = map_digests(session, error);
	if (r == 0)
		r = reserve_addresses(session, ret_driver_result, error);
	if (r < 0) {
		session->space->directory = -1; /* both descriptors stay the caller's */
		session->digests_fd = -1;
		return r;
	}
	session->space->tables = files->tables;
	session->space->segments = files->segments;
	gcr_pins_begin(gpu->pins);
	session->pinned = true;
	/* The registered pages of a file that has been packed are no longer the file's. */
	if (!(session->flags & (GCR_SESSION_UNREGISTERED | GCR_SESSION_PACKED)))
		gcr_space_find_pinned(session->space, gpu->pins);
	*ret_session = TAKE_PTR(session);
	return 0;
}

static int set_access(struct gcr_worker_session *session, size_t first, size_t end,
		      CUresult *ret_driver_result, struct gcr_error *error)
{
	const uint64_t *starts = session->space->starts;
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = session->gpu->device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};

	CUresult result;

	if (first == end)
		return 0;
	result = session->gpu->driver.cuMemSetAccess(session->base + starts[first],
						     starts[end] - starts[first], &access, 1);
#ifdef GCR_HIP
	/* HIP 7.0 to 7.2 measure the range from the start of the reservation. */
	if (result == CUDA_ERROR_INVALID_VALUE && first > 0)
		result =
			session->gpu->driver.cuMemSetAccess(session->base, starts[end], &access, 1);
#endif
	return check(session->gpu, result, "cuMemSetAccess", ret_driver_result, error);
}

/* Makes the mapped extents accessible. With IN, copying into them begins. */
static int arrive(struct gcr_worker_session *session, CUresult *ret_driver_result,
		  struct gcr_error *error)
{
	const uint64_t *starts = session->space->starts;
	size_t first = session->arrived;
	int r = set_access(session, first, session->held, ret_driver_result, error);

	if (r < 0)
		return r;
	session->arrived = session->held;
	if (session->direction == GCR_COPY_OUT)
		return 0;
	return gcr_copier_add(session->gpu->copier, GCR_COPY_BYTES, starts[first],
			      starts[session->arrived] - starts[first], error);
}

/* Maps the next extent. The session owns @handle from now on; on failure it is released. */
static int map(struct gcr_worker_session *session, CUmemGenericAllocationHandle handle,
	       CUresult *ret_driver_result, struct gcr_error *error)
{
	const struct gcr_driver *driver = &session->gpu->driver;
	const struct gcr_space *space = session->space;
	int r;

	r = check(session->gpu,
		  driver->cuMemMap(session->base + space->starts[session->held],
				   space->extents[session->held].bytes, 0, handle, 0),
		  "cuMemMap", ret_driver_result, error);
	if (r < 0) {
		driver->cuMemRelease(handle);
		return r;
	}
	session->handles[session->held++] = handle;
	return 0;
}

static int import(struct gcr_worker_session *session, int fd, CUresult *ret_driver_result,
		  struct gcr_error *error)
{
	const struct gcr_driver *driver = &session->gpu->driver;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp properties;
	int r;

	r = check(session->gpu,
		  driver->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
							 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		  "cuMemImportFromShareableHandle", ret_driver_result, error);
	if (r < 0)
		return r;
	r = check(session->gpu, driver->cuMemGetAllocationPropertiesFromHandle(&properties, handle),
		  "cuMemGetAllocationPropertiesFromHandle", ret_driver_result, error);
	if (r == 0 && (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		       properties.location.id != session->gpu->device))
		r = gcr_error_set(error, EINVAL, "this is no memory of this GPU");
	if (r < 0) {
		driver->cuMemRelease(handle);
		return r;
	}
	return map(session, handle, ret_driver_result, error);
}

int gcr_worker_session_import(struct gcr_worker_session *session, const struct gcr_range *range,
			      int *fds, size_t fds_count, CUresult *ret_driver_result,
			      struct gcr_error *error)
{
	size_t first = session->arrived;
	int r = 0;

	if (session->direction != GCR_COPY_OUT || session->copying || session->failed ||
	    range->first != first || range->count != fds_count ||
	    range->count > session->space->count - first)
		return gcr_error_set(error, EINVAL, "these are not the next allocations");
	for (size_t i = 0; i < fds_count && r == 0; i++) {
		r = import(session, fds[i], ret_driver_result, error);
		if (r == 0)
			session->fds[session->fds_count++] = TAKE_FD(fds[i]);
		else
			prefix_extent(session, session->held, error);
	}
	if (r == 0)
		r = arrive(session, ret_driver_result, error);
	session->failed = r < 0;
	return r;
}

/* Unmaps all held extents. HIP requires a call for each mapping. */
static int unmap(struct gcr_worker_session *session, CUresult *ret_driver_result,
		 struct gcr_error *error)
{
	const struct gcr_driver *driver = &session->gpu->driver;
#ifdef GCR_HIP
	int first = 0, r;

	for (size_t i = 0; i < session->held; i++) {
		const uint64_t *starts = session->space->starts;

		r = check(session->gpu,
			  driver->cuMemUnmap(session->base + starts[i], starts[i + 1] - starts[i]),
			  "cuMemUnmap", ret_driver_result, first < 0 ? NULL : error);
		if (first == 0)
			first = r;
	}
	return first;
#else
	return check(session->gpu,
		     driver->cuMemUnmap(session->base, session->space->starts[session->held]),
		     "cuMemUnmap", ret_driver_result, error);
#endif
}

/* Unmaps and releases all held extents. Returns the first error. */
static int let_go(struct gcr_worker_session *session, CUresult *ret_driver_result,
		  struct gcr_error *error)
{
	const struct gcr_driver *driver = &session->gpu->driver;
	int first = 0, r;

	if (session->held > 0)
		first = unmap(session, ret_driver_result, error);
	while (session->held > 0) {
		r = check(session->gpu, driver->cuMemRelease(session->handles[--session->held]),
			  "cuMemRelease", ret_driver_result, first < 0 ? NULL : error);
		if (first == 0)
			first = r;
	}
	return first;
}

static CUmemAllocationProp properties_of(const struct gcr_worker_gpu *gpu)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device},
	};
	int supported = 0;

	/*
	 * Memory of cuMemAlloc can be registered with a network card; so this must be possible here
	 * too.
	 */
	if (gpu->driver.cuDeviceGetAttribute(
		    &supported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
		    gpu->device) == CUDA_SUCCESS)
		properties.allocFlags.gpuDirectRDMACapable = supported != 0;
	return properties;
}

static int no_memory(const struct gcr_worker_session *session, size_t free_bytes,
		     struct gcr_error *error)
{
	gcr_error_prefix(error, "%" PRIu64 " MiB of VRAM are needed and %zu MiB are free",
			 gcr_space_bytes(session->space) >> 20, free_bytes >> 20);
	return -ENOMEM;
}

/*
 * May VRAM be allocated now? With GCR_SESSION_IN_PARTS that is so also after some of it has been
 * allocated.
 */
static bool may_create(const struct gcr_worker_session *session)
{
	if (session->direction != GCR_COPY_IN || session->copied || session->copy_failed)
		return false;
	return session->flags & GCR_SESSION_IN_PARTS || (!session->copying && !session->arrived);
}

/* Allocates VRAM for the remaining extents, or until there is no more (*ret_lacks). */
static int create_next(struct gcr_worker_session *session, bool *ret_lacks,
		       CUresult *ret_driver_result, struct gcr_error *error)
{
	const struct gcr_driver *driver = &session->gpu->driver;
	CUmemAllocationProp properties = properties_of(session->gpu);
	int r = 0;

	*ret_lacks = false;
	while (session->held < session->space->count && r == 0 && !*ret_lacks) {
		CUmemGenericAllocationHandle handle;

		r = check(session->gpu,
			  driver->cuMemCreate(&handle, session->space->extents[session->held].bytes,
					      &properties, 0),
			  "cuMemCreate", ret_driver_result, error);
		*ret_lacks = r == -ENOMEM;
		if (r == 0)
			r = map(session, handle, ret_driver_result, error);
		if (r == 0 && session->held - session->arrived == ARRIVE_TOGETHER)
			r = arrive(session, ret_driver_result, error);
	}
	if (*ret_lacks && !(session->flags & GCR_SESSION_IN_PARTS))
		return r;
	if ((r == 0 || *ret_lacks) && session->held > session->arrived)
		r = arrive(session, ret_driver_result, error);
	else if (*ret_lacks)
		r = 0;
	return r;
}

int gcr_worker_session_create(struct gcr_worker_session *session, CUresult *ret_driver_result,
			      struct gcr_error *error)
{
	size_t free_bytes = 0, total_bytes;
	CUresult ignored;
	bool lacks;
	int r;

	if (!may_create(session))
		return gcr_error_set(error, EINVAL, "this is no time to take memory");
	session->gpu->driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
	if (!session->copying)
		start_copier(session);
	r = create_next(session, &lacks, ret_driver_result, error);
	if (r < 0) {
		gcr_copier_stop(session->gpu->copier);
		session->copying = false;
		session->arrived = 0;
		let_go(session, &ignored, NULL);
	}
	if (r == -ENOMEM || (r == 0 && lacks))
		return no_memory(session, free_bytes, error);
	return r;
}

/*
 * Returns the end of the group of extents, starting at @first, that are digested and then planned
 * together. New files are planned all at once, which keeps the threads that fill them in different
 * files: in parts of 1 GiB, 16 GiB take 0.95 s, not 0.5 (measured).
 */
static size_t end_of_part(const struct gcr_worker_session *session, size_t first)
{
	const struct gcr_space *space = session->space;
	size_t end = first + 1;

	if (!session->digests && !gcr_space_all_pinned(space))
		return space->count;
	while (end < space->count && space->starts[end] - space->starts[first] < PART_BYTES)
		end++;
	return end;
}

/*
 * Queues the chunks that differ from the files, or all if nothing is known of these. The GPU makes
 * the digests of all memory; meanwhile those already made are evaluated, and the chunks that differ
 * are copied.
 */
static int plan_changes(struct gcr_worker_session *session, CUresult *ret_driver_result,
			struct gcr_error *error)
{
	const struct gcr_space *space = session->space;
	_cleanup_free_ uint64_t *tickets = calloc(space->count + 1, sizeof(*tickets));
	struct gcr_plan plan = plan_of(session, true);
	int r = 0;

	if (!tickets)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t first = 0, end; first < space->count && r == 0; first = end) {
		end = end_of_part(session, first);
		r = begin_digests(session, gcr_plan_chunk(space->starts[first]),
				  gcr_plan_chunk(space->starts[end]), &tickets[first],
				  ret_driver_result, error);
	}
	for (size_t first = 0, end; first < space->count && r == 0; first = end) {
		end = end_of_part(session, first);
		r = wait_for_digests(session, tickets[first], ret_driver_result, error);
		if (r < 0)
			break;
		r = gcr_plan_out(&plan, first, end, error);
		if (r < 0)
			gcr_digester_stop(session->gpu->digester);
	}
	return r;
}

static int begin_out(struct gcr_worker_session *session, CUresult *ret_driver_result,
		     struct gcr_error *error)
{
	struct gcr_plan plan;
	int r;

	start_copier(session);
	/* A retry after a failure: the contents of the files are unknown. */
	if (session->copy_failed) {
		plan = plan_of(session, false);
		r = gcr_plan_out(&plan, 0, session->space->count, error);
	} else {
		r = plan_changes(session, ret_driver_result, error);
		if (r == 0)
			r = write_digests(session, error);
		session->failed = r < 0;
	}
	return r;
}

/*
 * Starts the copier unless CREATE has started it, which is usual, and lifts the limit of queued
 * copies.
 */
static int begin_in(struct gcr_worker_session *session, struct gcr_error *error)
{
	int r = 0;

	if (!session->copying) {
		start_copier(session);
		r = gcr_copier_add(session->gpu->copier, GCR_COPY_BYTES, 0,
				   gcr_space_bytes(session->space), error);
	}
	gcr_copier_hurry(session->gpu->copier);
	return r;
}

int gcr_worker_session_copy(struct gcr_worker_session *session, CUresult *ret_driver_result,
			    struct gcr_error *error)
{
	int r;

	if (session->copied || session->failed || session->arrived < session->space->count)
		return gcr_error_set(error, EINVAL, "%zu of %zu allocations are there to be copied",
				     session->arrived, session->space->count);
	if (session->direction == GCR_COPY_OUT)
		r = begin_out(session, ret_driver_result, error);
	else
		r = begin_in(session, error);
	if (r < 0) {
		/* The job would never end. */
		gcr_copier_stop(session->gpu->copier);
		session->copying = false;
		session->copy_failed = true;
		return r;
	}
	session->copy_failed = false;
	gcr_copier_close(session->gpu->copier);
	return 0;
}

/* Discards digests of memory that is being released or copied to again. */
static void forget_digests(struct gcr_worker_session *session)
{
	if (session->digested)
		gcr_digester_stop(session->gpu->digester);
	session->digested = 0;
}

void gcr_worker_session_advance(struct gcr_worker_session *session)
{
	uint64_t end = gcr_plan_chunk(gcr_copier_landed(session->gpu->copier));
	CUresult ignored;
	uint64_t ticket;

	if (session->direction != GCR_COPY_IN || !session->digests ||
	    end < session->digested + ADVANCE_CHUNKS)
		return;
	if (gcr_digester_begin(session->gpu->digester, session->base, session->digested,
			       end - session->digested, &ticket, &ignored, NULL) == 0) {
		session->digested = end;
		return;
	}
	/* Then all digests are made at the end, and an error is reported there. */
	gcr_digester_stop(session->gpu->digester);
	session->digested = 0;
}

/*
 * Verifies the chunks that gcr_worker_session_advance() has not verified: the GPU reads its memory
 * fifty times as fast as the memory was copied.
 */
static int verify(struct gcr_worker_session *session, CUresult *ret_driver_result,
		  struct gcr_error *error)
{
	uint64_t end = gcr_plan_chunk(gcr_space_bytes(session->space));
	struct gcr_plan plan = plan_of(session, false);
	int r = make_digests(session, session->digested, end, ret_driver_result, error);

	session->digested = 0;
	return r < 0 ? r : gcr_plan_verify(&plan, session->digests, error);
}

int gcr_worker_session_copied(struct gcr_worker_session *session, CUresult *ret_driver_result,
			      struct gcr_error *error)
{
	CUresult copier_result;
	int r;

	r = gcr_copier_finish(session->gpu->copier, &copier_result, error);
	session->copying = false;
	if (r < 0) {
		*ret_driver_result = copier_result;
		forget_digests(session);
	} else if (session->direction == GCR_COPY_IN && session->digests) {
		r = verify(session, ret_driver_result, error);
	}
	session->copied = r == 0;
	session->copy_failed = r < 0;
	return r;
}

int gcr_worker_session_export(struct gcr_worker_session *session, const struct gcr_range *range,
			      int ret_fds[GCR_MESSAGE_FDS_MAX], CUresult *ret_driver_result,
			      struct gcr_error *error)
{
	const struct gcr_driver *driver = &session->gpu->driver;
	int fds[GCR_MESSAGE_FDS_MAX];
	uint32_t count = 0;
	int r = 0;

	if (session->direction != GCR_COPY_IN || session->copy_failed ||
	    session->arrived < session->space->count || range->count > GCR_MESSAGE_FDS_MAX ||
	    range->first > session->held || range->count > session->held - range->first)
		return gcr_error_set(error, EINVAL, "there are no such allocations to export");
	while (count < range->count && r == 0) {
		r = check(session->gpu,
			  driver->cuMemExportToShareableHandle(
				  &fds[count], session->handles[range->first + count],
				  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
			  "cuMemExportToShareableHandle", ret_driver_result, error);
		if (r == 0)
			count++;
	}
	if (r < 0) {
		while (count > 0)
			close(fds[--count]);
		return r;
	}
	memcpy(ret_fds, fds, count * sizeof(*fds));
	return 0;
}

void gcr_worker_session_tidy(struct gcr_worker_session *session)
{
	CUresult ignored;

	/* An error is ignored here: END reports it when it cannot free the addresses. */
	if (session->direction == GCR_COPY_OUT && session->copied)
		let_go(session, &ignored, NULL);
}

int gcr_worker_session_end(struct gcr_worker_session *session, CUresult *ret_driver_result,
			   struct gcr_error *error)
{
	int first, r = 0;

	if (!session)
		return 0;
	if (session->copying)
		gcr_copier_stop(session->gpu->copier);
	forget_digests(session);
	first = let_go(session, ret_driver_result, error);
	if (session->base)
		r = check(session->gpu,
			  session->gpu->driver.cuMemAddressFree(session->base,
								gcr_space_bytes(session->space)),
			  "cuMemAddressFree", ret_driver_result, first < 0 ? NULL : error);
	for (size_t i = 0; i < session->fds_count; i++)
		close(session->fds[i]);
	if (session->pinned)
		gcr_pins_end(session->gpu->pins);
	if (session->digests_fd >= 0)
		close(session->digests_fd);
	if (session->digests_map)
		munmap(session->digests_map, session->digests_map_bytes);
	free(session->fds);
	free(session->handles);
	gcr_space_destroy(session->space);
	free(session);
	return first < 0 ? first : r;
}
