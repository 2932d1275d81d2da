/* SPDX-License-Identifier: MIT */
/*
 * copy_path: the speed at which the worker's sessions move VRAM into the files of a store and back,
 * with various rings and numbers of threads, compared with the speed of the link for pinned memory.
 * The figures in backend/worker/copy.c and space.c come from this program.
 *
 *   cc -O2 -D_GNU_SOURCE -DHAVE_DIGEST_PTX -I. -I BUILD -o copy_path test/gpu/copy_path.c \
 *      lib/{beneath,digest,error,extent,full_io,pack,pack_codes,printable,uuid}.c \
 *      backend/cuda/driver.c \
 *      backend/worker/{copy,cut,digest,nontemporal,numa,packed,pin,plan,session,space}.c \
 *      -ldl -llz4 -lpthread -lxxhash
 *   copy_path GIB PART...      as root; a tmpfs is mounted in a namespace of its own
 *
 * Parts: link, ring, warm, small, cold, control, register, pinned, end. Bytes are compared after
 * every copy. The figures include making digests on the way out, and comparing them on the way in.
 * GB are 10^9 bytes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/worker/digest.h"
#include "backend/worker/pin.h"
#include "backend/worker/session.h"
#include "lib/clock.h"
#include "lib/extent.h"
#include "test/gpu/check.h"
#include "test/gpu/populator.h"

#define GIB (1ull << 30)

static struct gcr_worker_gpu gpu;
static uint64_t total_bytes;

static double now(void)
{
	return (double)gcr_clock_usec() / 1e6;
}

/* ---- a process's memory and its files ---- */

static struct memory {
	struct gcr_extent *extents;
	size_t count;
	int *fds;
	int table;
	int directory;
	int digests;
} memory;

/* The byte that fills these 2 MiB of a file: never zero, which would be a hole. */
static unsigned char value_of(size_t index, uint64_t at)
{
	return (unsigned char)((index * 31 + at / MIB) % 255 + 1);
}

static CUmemAllocationProp properties(void)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu.device},
	};
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t bytes)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr address;

	OK(gpu.driver.cuMemAddressReserve(&address, bytes, 0, 0, 0));
	OK(gpu.driver.cuMemMap(address, bytes, 0, handle, 0));
	OK(gpu.driver.cuMemSetAccess(address, bytes, &access, 1));
	return address;
}

static void unmap(CUdeviceptr address, size_t bytes)
{
	OK(gpu.driver.cuMemUnmap(address, bytes));
	OK(gpu.driver.cuMemAddressFree(address, bytes));
}

/* Allocates memory and fills it; afterwards only descriptors hold it. */
static void allocate(void)
{
	CUmemAllocationProp wanted = properties();

	for (size_t i = 0; i < memory.count; i++) {
		size_t bytes = memory.extents[i].bytes;
		CUmemGenericAllocationHandle handle;
		CUdeviceptr address;

		OK(gpu.driver.cuMemCreate(&handle, bytes, &wanted, 0));
		address = map(handle, bytes);
		for (size_t at = 0; at < bytes; at += 2 * MIB)
			OK(gpu.driver.cuMemsetD8Async(address + at, value_of(i, at), 2 * MIB,
						      NULL));
		OK(gpu.driver.cuStreamSynchronize(NULL));
		OK(gpu.driver.cuMemExportToShareableHandle(
			&memory.fds[i], handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		unmap(address, bytes);
		OK(gpu.driver.cuMemRelease(handle));
	}
}

/* Makes the files, without pages. */
static void make_files(void)
{
	for (size_t i = 0; i < memory.count; i++) {
		char name[GCR_EXTENT_NAME_BYTES];
		int fd;

		gcr_extent_name(&memory.extents[i], name);
		fd = openat(memory.directory, name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (fd < 0 || ftruncate(fd, (off_t)memory.extents[i].bytes))
			die("%s: %s", name, strerror(errno));
		close(fd);
	}
}

static void set_up(size_t count)
{
	uint64_t bytes = total_bytes / count;

	memory.count = count;
	memory.extents = calloc(count, sizeof(*memory.extents));
	memory.fds = calloc(count, sizeof(*memory.fds));
	for (size_t i = 0; i < count; i++)
		memory.extents[i] = (struct gcr_extent){.address = 0x7f0000000000 + i * bytes,
							.bytes = bytes,
							.id = i + 1,
							.kind = GCR_MEMORY_DEVICE};
	memory.table = gcr_extents_write(memory.extents, count);
	memory.directory = open(STORE, O_RDONLY | O_DIRECTORY);
	memory.digests = memfd_create("digests", MFD_CLOEXEC);
	if (memory.digests < 0)
		die("digests: %s", strerror(errno));
	make_files();
	allocate();
}

static void tear_down(void)
{
	for (size_t i = 0; i < memory.count; i++) {
		char name[GCR_EXTENT_NAME_BYTES];

		gcr_extent_name(&memory.extents[i], name);
		unlinkat(memory.directory, name, 0);
		close(memory.fds[i]);
	}
	close(memory.table);
	close(memory.directory);
	close(memory.digests);
	free(memory.extents);
	free(memory.fds);
}

struct pass {
	void (*each)(unsigned char value, char *data);
	uint64_t next;
};

static void *run_pass(void *data)
{
	struct pass *pass = data;
	uint64_t piece;

	while ((piece = __atomic_fetch_add(&pass->next, 1, __ATOMIC_RELAXED)) <
	       total_bytes / (8 * MIB)) {
		uint64_t bytes = memory.extents[0].bytes, at = piece * 8 * MIB;

		for (uint64_t part = 0; part < 8 * MIB;) {
			uint64_t within = (at + part) % bytes, left = bytes - within;
			char name[GCR_EXTENT_NAME_BYTES];
			uint64_t length = left < 8 * MIB - part ? left : 8 * MIB - part;
			char *data_at;
			int fd;

			gcr_extent_name(&memory.extents[(at + part) / bytes], name);
			fd = openat(memory.directory, name, O_RDWR);
			data_at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
				       (off_t)within);
			if (fd < 0 || data_at == MAP_FAILED)
				die("%s: %s", name, strerror(errno));
			close(fd);
			for (uint64_t i = 0; i < length; i += 2 * MIB)
				pass->each(value_of((at + part + i) / bytes, within + i),
					   data_at + i);
			munmap(data_at, length);
			part += length;
		}
	}
	return NULL;
}

/* Calls @each for every 2 MiB of the files, in @count threads. */
static void all_files(void (*each)(unsigned char value, char *data), unsigned int count)
{
	struct pass pass = {.each = each};
	pthread_t threads[64];

	for (unsigned int i = 0; i < count; i++)
		OK(pthread_create(&threads[i], NULL, run_pass, &pass));
	for (unsigned int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

static void each_compare(unsigned char value, char *data)
{
	for (uint64_t at = 0; at < 2 * MIB; at += 64)
		if ((unsigned char)data[at] != value || (unsigned char)data[at + 63] != value)
			die("wrong byte in a file");
}

/* ---- sessions ---- */

static struct gcr_worker_session *begin(enum gcr_copy_direction direction, unsigned int in_flight)
{
	struct gcr_session asked = {.count = (uint32_t)memory.count, .copies_in_flight = in_flight};
	struct gcr_session_files files = {
		.table = memory.table,
		.directory = dup(memory.directory),
		.digests = dup(memory.digests),
		.tables = -1,
		.segments = -1,
	};
	struct gcr_worker_session *session;

	DO(gcr_worker_session_begin(&gpu, direction, &asked, &files, &session, &code, &words));
	return session;
}

static void import(struct gcr_worker_session *session)
{
	for (size_t first = 0; first < memory.count; first += 64) {
		size_t count = memory.count - first < 64 ? memory.count - first : 64;
		struct gcr_range range = {(uint32_t)first, (uint32_t)count};

		DO(gcr_worker_session_import(session, &range, memory.fds + first, count, &code,
					     &words));
	}
}

static void copy(struct gcr_worker_session *session)
{
	DO(gcr_worker_session_copy(session, &code, &words));
	DO(gcr_worker_session_copied(session, &code, &words));
}

static void end(struct gcr_worker_session *session)
{
	DO(gcr_worker_session_end(session, &code, &words));
}

static double copied_at;

/*
 * Copies out. Returns the seconds from the beginning until all is copied; *ret_end: the seconds
 * that the end took.
 */
static double go_out(double *ret_end)
{
	double start = now(), copied;
	struct gcr_worker_session *session = begin(GCR_COPY_OUT, 0);

	import(session);
	copy(session);
	copied = copied_at = now();
	gcr_worker_session_tidy(session);
	if (ret_end)
		*ret_end = now();
	end(session);
	if (ret_end)
		*ret_end = now() - *ret_end;
	all_files(each_compare, 16);
	return copied - start;
}

/*
 * Copies in: the time excludes the allocation; at most @in_flight copies are in flight until
 * @meanwhile has returned. Descriptors hold the memory afterwards.
 */
static double come_in(unsigned int in_flight, void (*meanwhile)(void))
{
	struct gcr_worker_session *session = begin(GCR_COPY_IN, in_flight);
	double start, copied;
	unsigned char byte;

	DO(gcr_worker_session_create(session, &code, &words));
	start = now();
	if (meanwhile)
		meanwhile();
	copy(session);
	copied = now() - start;
	for (size_t first = 0; first < memory.count; first += 64) {
		size_t count = memory.count - first < 64 ? memory.count - first : 64;
		struct gcr_range range = {(uint32_t)first, (uint32_t)count};

		for (size_t i = first; i < first + count; i++)
			if (memory.fds[i] >= 0)
				close(memory.fds[i]);
		DO(gcr_worker_session_export(session, &range, memory.fds + first, &code, &words));
	}
	end(session);
	for (size_t i = 0; i<memory.count; i += memory.count> 64 ? 97 : 1) {
		CUmemGenericAllocationHandle handle;
		CUdeviceptr address;

		OK(gpu.driver.cuMemImportFromShareableHandle(
			&handle, (void *)(intptr_t)memory.fds[i],
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		address = map(handle, memory.extents[i].bytes);
		for (uint64_t at = 0; at < memory.extents[i].bytes; at += 16 * MIB) {
			for (uint64_t edge = 0; edge < 2 * MIB; edge += 2 * MIB - 1) {
				OK(gpu.driver.cuMemcpyDtoHAsync_v2(&byte, address + at + edge, 1,
								   NULL));
				OK(gpu.driver.cuStreamSynchronize(NULL));
				if (byte != value_of(i, at))
					die("wrong byte in VRAM");
			}
		}
		unmap(address, memory.extents[i].bytes);
		OK(gpu.driver.cuMemRelease(handle));
	}
	return copied;
}

static double make_copier(unsigned int threads, unsigned int slots, size_t slot_mib,
			  unsigned int lanes)
{
	struct gcr_copier_config config = {threads, slots, slot_mib * MIB, lanes};
	double start;

	gcr_copier_destroy(gpu.copier);
	start = now();
	DO(gcr_copier_create(&gpu.driver, gpu.context, &config, &gpu.copier, &code, &words));
	return now() - start;
}

static void make_default_copier(void)
{
	struct gcr_copier_config config;

	gcr_copier_config_default(&config);
	make_copier(config.threads, config.slots, config.slot_bytes / MIB, config.lanes);
}

static void make_digester(void)
{
	struct gcr_digester_config config;

	gcr_digester_config_default(&gpu.driver, gpu.device, &config);
	DO(gcr_digester_create(&gpu.driver, gpu.context, &config, &gpu.digester, &code, &words));
	if (!gcr_digester_is_on_gpu(gpu.digester))
		printf("the digests are made on the host\n");
}

/* ---- the parts ---- */

static double rate(double seconds)
{
	return (double)total_bytes / 1e9 / seconds;
}

static void part_link(void)
{
	CUmemAllocationProp wanted = properties();
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	char *host =
		mmap(NULL, 2 * GIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(host, 2 * GIB, MADV_HUGEPAGE);
	OK(gpu.driver.cuMemHostRegister_v2(host, 2 * GIB, 0));
	OK(gpu.driver.cuMemCreate(&handle, 2 * GIB, &wanted, 0));
	address = map(handle, 2 * GIB);
	for (int round = 0; round < 3; round++) {
		double start = now(), middle;

		for (int i = 0; i < 8; i++)
			OK(gpu.driver.cuMemcpyDtoHAsync_v2(host + (i & 1) * GIB,
							   address + (i & 1) * GIB, GIB, NULL));
		OK(gpu.driver.cuStreamSynchronize(NULL));
		middle = now();
		for (int i = 0; i < 8; i++)
			OK(gpu.driver.cuMemcpyHtoDAsync_v2(address + (i & 1) * GIB,
							   host + (i & 1) * GIB, GIB, NULL));
		OK(gpu.driver.cuStreamSynchronize(NULL));
		printf("link: out %.1f in %.1f GB/s\n", 8 * GIB / 1e9 / (middle - start),
		       8 * GIB / 1e9 / (now() - middle));
	}
	unmap(address, 2 * GIB);
	OK(gpu.driver.cuMemRelease(handle));
	OK(gpu.driver.cuMemHostUnregister(host));
	munmap(host, 2 * GIB);
}

static const struct {
	unsigned int threads, slots, slot_mib, lanes;
} shapes[] = {
	{12, 24, 8, 16},
	{8, 16, 8, 16},
	{16, 32, 8, 16},
	{12, 24, 8, 1},
};

static void part_ring(void)
{
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
		printf("ring: %u threads, %u slots of %u MiB: made in %.1f ms\n", shapes[i].threads,
		       shapes[i].slots, shapes[i].slot_mib,
		       1e3 * make_copier(shapes[i].threads, shapes[i].slots, shapes[i].slot_mib,
					 1));
}

static void part_warm(void)
{
	set_up(16);
	go_out(NULL);
	come_in(0, NULL);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		double out[2], in[3];

		make_copier(shapes[i].threads, shapes[i].slots, shapes[i].slot_mib,
			    shapes[i].lanes);
		for (int round = 0; round < 2; round++) {
			out[round] = go_out(NULL);
			in[round] = come_in(round ? 2 : 0, NULL);
		}
		go_out(NULL);
		in[2] = come_in(4, NULL);
		printf("warm: %2u threads, %2u slots of %2u MiB, %2u lanes: out %.1f %.1f, in %.1f "
		       "(2 in flight: %.1f, 4: %.1f) GB/s\n",
		       shapes[i].threads, shapes[i].slots, shapes[i].slot_mib, shapes[i].lanes,
		       rate(out[0]), rate(out[1]), rate(in[0]), rate(in[1]), rate(in[2]));
	}
	tear_down();
}

/* Allocations of 2 MiB each. */
static void part_small(void)
{
	make_default_copier();
	set_up(total_bytes / (2 * MIB));
	go_out(NULL);
	for (int round = 0; round < 3; round++) {
		double in = come_in(2, NULL), ended, out = go_out(&ended);

		printf("small: %zu of 2 MiB: out %.3f s (%.1f GB/s), end %.1f ms, in %.3f s "
		       "(%.1f)\n",
		       memory.count, out, rate(out), 1e3 * ended, in, rate(in));
	}
	tear_down();
}

/*
 * Files without pages. A worker needs WORKER_START_USEC before it copies; during this time the
 * daemon may fault in pages, and either stop or continue when copying begins.
 */
#define WORKER_START_USEC 120000

static void part_cold(void)
{
	static const size_t files[] = {16, 1};

	make_default_copier();
	for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++) {
		static const struct order orders[] = {
			{0, false, 0, 0}, {12, false, 0, 0}, {12, true, 0, 0}};

		set_up(files[f]);
		for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
			struct order order = orders[i];
			double start, out;
			char byte;

			order.files = memory.count;
			order.bytes = memory.extents[0].bytes;
			make_files();
			start = now();
			OK(write(populator, &order, sizeof(order)) != sizeof(order));
			usleep(WORKER_START_USEC);
			OK(write(populator, "x", 1) != 1);
			out = go_out(NULL);
			printf("cold: %zu files, %u populating%s: %.3f s (%.1f GB/s), "
			       "%.3f s with the start of the worker\n",
			       memory.count, order.threads, order.goes_on ? " to the end" : "", out,
			       rate(out), copied_at - start);
			OK(read(populator, &byte, 1) != 1);
			come_in(0, NULL);
		}
		tear_down();
	}
}

/* A process whose control state is moved at the same time. */
static pid_t victim;
static pthread_t controller;
static double control_seconds;

static void *control(void *restore)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	__typeof__(cuCheckpointProcessLock) *lock = dlsym(library, "cuCheckpointProcessLock");
	__typeof__(cuCheckpointProcessCheckpoint) *checkpoint =
		dlsym(library, "cuCheckpointProcessCheckpoint");
	__typeof__(cuCheckpointProcessRestore) *back = dlsym(library, "cuCheckpointProcessRestore");
	__typeof__(cuCheckpointProcessUnlock) *unlock = dlsym(library, "cuCheckpointProcessUnlock");
	double start = now();

	if (restore) {
		OK(back(victim, &(CUcheckpointRestoreArgs){0}));
		OK(unlock(victim, &(CUcheckpointUnlockArgs){0}));
	} else {
		OK(lock(victim, &(CUcheckpointLockArgs){.timeoutMs = 10000}));
		OK(checkpoint(victim, &(CUcheckpointCheckpointArgs){0}));
	}
	control_seconds = now() - start;
	return NULL;
}

static void restore_meanwhile(void)
{
	control((void *)1);
}

static void part_control(void)
{
	static const unsigned int in_flight[] = {1, 2, 3, 4, 8, 0, 2};

	make_default_copier();
	set_up(16);
	go_out(NULL);
	come_in(0, NULL);
	OK(pthread_create(&controller, NULL, control, NULL));
	pthread_join(controller, NULL);
	printf("control: checkpoint alone %.3f s", control_seconds);
	OK(pthread_create(&controller, NULL, control, (void *)1));
	pthread_join(controller, NULL);
	printf(", restore alone %.3f s\n", control_seconds);
	for (size_t i = 0; i < sizeof(in_flight) / sizeof(*in_flight); i++) {
		double out, in, checkpoint, out_all, in_all;

		OK(pthread_create(&controller, NULL, control, NULL));
		out = go_out(NULL);
		pthread_join(controller, NULL);
		checkpoint = control_seconds;
		out_all = out > checkpoint ? out : checkpoint;
		in = come_in(in_flight[i], restore_meanwhile);
		in_all = in > control_seconds ? in : control_seconds;
		printf("control: out %.3f with checkpoint %.3f: %.3f s; in %.3f with restore %.3f, "
		       "%u in flight: %.3f s\n",
		       out, checkpoint, out_all, in, control_seconds, in_flight[i], in_all);
	}
	tear_down();
}

/* The alternative: the files themselves are registered with the driver. */
static void part_register(void)
{
	char *all =
		mmap(NULL, total_bytes + 2 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUmemAllocationProp wanted = properties();
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	uint64_t bytes;
	double start, registered, copied;

	set_up(16);
	go_out(NULL);
	all = (char *)(((uintptr_t)all + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
	bytes = memory.extents[0].bytes;
	for (size_t i = 0; i < memory.count; i++) {
		char name[GCR_EXTENT_NAME_BYTES];
		int fd;

		gcr_extent_name(&memory.extents[i], name);
		fd = openat(memory.directory, name, O_RDWR);
		if (mmap(all + i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			 0) == MAP_FAILED)
			die("mmap: %s", strerror(errno));
		close(fd);
	}
	OK(gpu.driver.cuMemCreate(&handle, total_bytes, &wanted, 0));
	address = map(handle, total_bytes);
	start = now();
	OK(gpu.driver.cuMemHostRegister_v2(all, total_bytes, CU_MEMHOSTREGISTER_PORTABLE));
	registered = now();
	OK(gpu.driver.cuMemcpyDtoHAsync_v2(all, address, total_bytes, NULL));
	OK(gpu.driver.cuStreamSynchronize(NULL));
	copied = now();
	OK(gpu.driver.cuMemHostUnregister(all));
	printf("register: %.3f s, copy %.3f s (%.1f GB/s), unregister %.3f s\n", registered - start,
	       copied - registered, rate(copied - registered), now() - copied);
	munmap(all, total_bytes);
	unmap(address, total_bytes);
	OK(gpu.driver.cuMemRelease(handle));
	tear_down();
}

static void nap(void)
{
	usleep(200 * 1000);
}

/*
 * The worker registers the files in the background, and copies to and from them without its ring.
 */
static void part_pinned(void)
{
	static const unsigned int in_flight[] = {0, 1, 2, 4, 8, 0};
	double start;

	make_default_copier();
	set_up(16);
	go_out(NULL);
	come_in(0, NULL);
	start = now();
	DO(gcr_pins_create(&gpu.driver, gpu.context, &gpu.pins));
	for (size_t i = 0; i < memory.count; i++) {
		char name[GCR_EXTENT_NAME_BYTES];

		gcr_extent_name(&memory.extents[i], name);
		gcr_pins_add(gpu.pins, openat(memory.directory, name, O_RDWR | O_CLOEXEC));
	}
	while (!gcr_pins_are_done(gpu.pins))
		usleep(1000);
	printf("pinned: registered in %.3f s\n", now() - start);
	for (size_t i = 0; i < sizeof(in_flight) / sizeof(*in_flight); i++) {
		double out = go_out(NULL), in = come_in(in_flight[i], in_flight[i] ? nap : NULL);

		printf("pinned: out %.3f s (%.1f GB/s), in %.3f s (%.1f GB/s) with %u in flight "
		       "for 0.2 s\n",
		       out, rate(out), in, rate(in), in_flight[i]);
	}
	gcr_pins_destroy(gpu.pins);
	gpu.pins = NULL;
	tear_down();
}

/* The steps for which the commit waits. */
static void part_end(void)
{
	static const size_t files[] = {16, 64, 1024};

	make_default_copier();
	for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++) {
		set_up(files[f]);
		for (int tidy = 0; tidy < 2; tidy++) {
			double start = now(), imported, copied, tidied;
			struct gcr_worker_session *session = begin(GCR_COPY_OUT, 0);

			import(session);
			imported = now();
			copy(session);
			copied = now();
			if (tidy)
				gcr_worker_session_tidy(session);
			tidied = now();
			end(session);
			printf("end: %zu allocations: import %.1f ms, all copied %.1f ms, tidy "
			       "%.1f ms, end %.1f ms\n",
			       files[f], 1e3 * (imported - start), 1e3 * (copied - start),
			       1e3 * (tidied - copied), 1e3 * (now() - tidied));
			come_in(0, NULL);
		}
		tear_down();
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} parts[] = {
	{"link", part_link},	     {"ring", part_ring},     {"warm", part_warm},
	{"small", part_small},	     {"cold", part_cold},     {"control", part_control},
	{"register", part_register}, {"pinned", part_pinned}, {"end", part_end},
};

/* Starts a process that only has a context, before this process has one. */
static void start_victim(void)
{
	int pipes[2];
	char byte;

	OK(pipe(pipes));
	victim = fork();
	if (victim == 0) {
		struct gcr_driver driver;
		CUcontext context;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pipes[0]);
		DO(gcr_driver_open(&driver, &words));
		OK(driver.cuDevicePrimaryCtxRetain(&context, 0));
		OK(driver.cuCtxSetCurrent(context));
		OK(write(pipes[1], "x", 1) != 1);
		for (;;)
			pause();
	}
	close(pipes[1]);
	if (read(pipes[0], &byte, 1) != 1)
		die("no victim");
}

int main(int argc, char **argv)
{
	struct rlimit limit;
	double start;

	if (argc < 3)
		die("usage: copy_path GIB PART...");
	total_bytes = (uint64_t)(atof(argv[1]) * (double)GIB) / (16 * MIB) * (16 * MIB);
	setvbuf(stdout, NULL, _IOLBF, 0);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	mkdir(STORE, 0700);
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("gpucr", STORE, "tmpfs", 0, "huge=always,size=90%,mode=0700"))
		die("no tmpfs: %s", strerror(errno));
	start_populator();
	start_victim();
	start = now();
	DO(gcr_driver_open(&gpu.driver, &words));
	printf("start: cuInit %.1f ms", 1e3 * (now() - start));
	start = now();
	OK(gpu.driver.cuDeviceGet(&gpu.device, 0));
	OK(gpu.driver.cuDevicePrimaryCtxRetain(&gpu.context, gpu.device));
	OK(gpu.driver.cuCtxSetCurrent(gpu.context));
	printf(", context %.1f ms\n", 1e3 * (now() - start));
	make_default_copier();
	make_digester();
	for (int i = 2; i < argc; i++)
		for (size_t part = 0; part < sizeof(parts) / sizeof(*parts); part++)
			if (!strcmp(argv[i], parts[part].name))
				parts[part].run();
	gcr_copier_destroy(gpu.copier);
	gcr_digester_destroy(gpu.digester);
	kill(victim, SIGKILL);
	waitpid(victim, NULL, 0);
	rmdir(STORE);
	return 0;
}
