/* SPDX-License-Identifier: MIT */
/*
 * KFD's part of sysfs. The files come from the kernel, or from a simulator and are then not
 * trusted: this code never blocks on a file, reads no large file and validates every number.
 * Single-threaded.
 */
#include "backend/rocm/kfd.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/gpu_list.h"

#define TOPOLOGY "class/kfd/kfd/topology/nodes"
#define PROC	 "class/kfd/kfd/proc"

/* Maximum size of a sysfs file: one page. */
#define TEXT_BYTES 4096

/* Types of memory banks: include/uapi or kfd_crat.h, HSA_MEM_HEAP_TYPE_FB_PUBLIC and _PRIVATE. */
#define HEAP_PUBLIC  1
#define HEAP_PRIVATE 2

/* The inode of the initial PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO). */
#define FIRST_PID_NAMESPACE 0xeffffffcu

struct node {
	uint32_t gpu_id;
	uint64_t unique_id;
	uint64_t target_version;
	uint64_t render_minor;
	uint64_t simd_count;
	uint32_t domain;
	uint32_t location_id;
};

struct numbers {
	uint32_t *list; /* ascending */
	size_t count;
};

static void numbers_free(struct numbers *numbers)
{
	free(numbers->list);
}
#define _cleanup_numbers_ _cleanup_(numbers_free)

static bool find_sysfs(char ret_path[PATH_MAX])
{
	const char *simulator = getenv("GPUCR_SIM_DIR");

	if (simulator && *simulator && snprintf(ret_path, PATH_MAX, "%s/sys", simulator) < PATH_MAX)
		return true;
	strcpy(ret_path, "/sys");
	return false;
}

/* ---- files ---- */

/*
 * Reads the text of a file below @sysfs, truncated to the buffer, without bytes after its last
 * line.
 */
static int __attribute__((format(printf, 3, 4)))
read_text(const char *sysfs, char text[TEXT_BYTES + 1], const char *format, ...)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];
	struct stat status;
	size_t used = 0;
	va_list list;
	int length;

	length = snprintf(path, sizeof(path), "%s/", sysfs);
	if (length < 0 || length >= (int)sizeof(path))
		return -ENAMETOOLONG;
	va_start(list, format);
	used = (size_t)length;
	length = vsnprintf(path + used, sizeof(path) - used, format, list);
	va_end(list);
	if (length < 0 || length >= (int)(sizeof(path) - used))
		return -ENAMETOOLONG;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) < 0)
		return -errno;
	if (!S_ISREG(status.st_mode))
		return -EINVAL;
	for (used = 0; used < TEXT_BYTES;) {
		ssize_t got = read(fd, text + used, TEXT_BYTES - used);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		used += (size_t)got;
	}
	text[used] = '\0';
	while (used > 0 && isspace((unsigned char)text[used - 1]))
		text[--used] = '\0';
	return 0;
}

/* Parses a whole decimal number that fits; no sign or leading white space is accepted. */
static bool parse_number(const char *text, uint64_t *ret_number)
{
	unsigned long long number;
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno || *end)
		return false;
	*ret_number = number;
	return true;
}

/* Lists all names in a directory that are 32-bit numbers as the kernel writes them. */
static int list_numbers(const char *sysfs, const char *name, struct numbers *ret_numbers)
{
	_cleanup_closedir_ DIR *directory = NULL;
	_cleanup_free_ uint32_t *list = NULL;
	size_t count = 0, room = 0;
	const struct dirent *entry;
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", sysfs, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	directory = opendir(path);
	if (!directory)
		return -errno;
	while ((entry = readdir(directory))) {
		uint64_t number;

		if (!parse_number(entry->d_name, &number) || number > UINT32_MAX ||
		    (entry->d_name[0] == '0' && entry->d_name[1]))
			continue;
		if (count == room) {
			uint32_t *longer;

			room = room ? 2 * room : 64;
			longer = reallocarray(list, room, sizeof(*longer));
			if (!longer)
				return -ENOMEM;
			list = longer;
		}
		list[count++] = (uint32_t)number;
	}
	*ret_numbers = (struct numbers){TAKE_PTR(list), count};
	return 0;
}

static int compare_numbers(const void *left, const void *right)
{
	uint32_t first = *(const uint32_t *)left, second = *(const uint32_t *)right;

	return (first > second) - (first < second);
}

/* Finds the number after a name in lines of "name number"; false if there is none. */
static bool find_property(const char *text, const char *name, uint64_t *ret_number)
{
	size_t length = strlen(name);

	while (*text) {
		size_t line = strcspn(text, "\n");

		if (strncmp(text, name, length) == 0 && text[length] == ' ') {
			char number[32];

			if (line - length - 1 >= sizeof(number))
				return false;
			memcpy(number, text + length + 1, line - length - 1);
			number[line - length - 1] = '\0';
			return parse_number(number, ret_number);
		}
		text += line;
		text += *text == '\n';
	}
	return false;
}

static uint64_t property(const char *text, const char *name, uint64_t otherwise)
{
	uint64_t number;

	return find_property(text, name, &number) ? number : otherwise;
}

/* ---- one GPU ---- */

void gcr_kfd_uuid(uint64_t unique_id, uint32_t domain, uint32_t location_id,
		  uint8_t ret_uuid[GCR_UUID_BYTES])
{
	char text[GCR_UUID_BYTES + 16] = "";

	if (unique_id)
		snprintf(text, sizeof(text), "%016" PRIx64, unique_id);
	else
		snprintf(text, sizeof(text), "XX%04x:%02x:%02x.%x", domain, location_id >> 8 & 0xff,
			 location_id >> 3 & 0x1f, location_id & 7);
	memcpy(ret_uuid, text, GCR_UUID_BYTES);
}

/*
 * Returns -ENODEV if the node is no GPU, or is not accessible: then the kernel does not show its
 * number.
 */
static int read_node(const char *sysfs, uint32_t number, struct node *ret_node)
{
	char text[TEXT_BYTES + 1];
	uint64_t gpu_id;

	if (read_text(sysfs, text, TOPOLOGY "/%" PRIu32 "/gpu_id", number) < 0 ||
	    !parse_number(text, &gpu_id) || gpu_id == 0 || gpu_id > UINT32_MAX)
		return -ENODEV;
	if (read_text(sysfs, text, TOPOLOGY "/%" PRIu32 "/properties", number) < 0)
		return -ENODEV;
	*ret_node = (struct node){
		.gpu_id = (uint32_t)gpu_id,
		.unique_id = property(text, "unique_id", 0),
		.target_version = property(text, "gfx_target_version", 0),
		.render_minor = property(text, "drm_render_minor", UINT64_MAX),
		.simd_count = property(text, "simd_count", 0),
		.domain = (uint32_t)property(text, "domain", 0),
		.location_id = (uint32_t)property(text, "location_id", 0),
	};
	/* The CPU part of an older APU has a number too. */
	return ret_node->simd_count ? 0 : -ENODEV;
}

/*
 * Reads a file of the device driven by amdgpu. The render node of a partition belongs to a device
 * without such files: then the device on the bus is used.
 */
static int read_device(const char *sysfs, const struct node *node, const char *name,
		       char text[TEXT_BYTES + 1])
{
	int r = -ENOENT;

	if (node->render_minor <= INT32_MAX)
		r = read_text(sysfs, text, "class/drm/renderD%" PRIu64 "/device/%s",
			      node->render_minor, name);
	if (r < 0)
		r = read_text(sysfs, text, "bus/pci/devices/%04x:%02x:%02x.%x/%s", node->domain,
			      node->location_id >> 8 & 0xff, node->location_id >> 3 & 0x1f,
			      node->location_id & 7, name);
	return r;
}

static bool read_device_number(const char *sysfs, const struct node *node, const char *name,
			       uint64_t *ret_number)
{
	char text[TEXT_BYTES + 1];

	return read_device(sysfs, node, name, text) == 0 && parse_number(text, ret_number);
}

/* Used without amdgpu's counters: returns the total size of KFD's memory banks. */
static uint64_t banks_bytes(const char *sysfs, uint32_t number)
{
	_cleanup_numbers_ struct numbers banks = {0};
	uint64_t total = 0;
	char name[96];

	snprintf(name, sizeof(name), TOPOLOGY "/%" PRIu32 "/mem_banks", number);
	if (list_numbers(sysfs, name, &banks) < 0)
		return 0;
	for (size_t i = 0; i < banks.count; i++) {
		char text[TEXT_BYTES + 1];
		uint64_t heap, bytes;

		if (read_text(sysfs, text, "%s/%" PRIu32 "/properties", name, banks.list[i]) < 0)
			continue;
		heap = property(text, "heap_type", UINT64_MAX);
		bytes = property(text, "size_in_bytes", 0);
		if ((heap == HEAP_PUBLIC || heap == HEAP_PRIVATE) &&
		    __builtin_add_overflow(total, bytes, &total))
			return 0;
	}
	return total;
}

static void read_memory(const char *sysfs, uint32_t number, const struct node *node,
			struct gcr_gpu_info *gpu)
{
	uint64_t total, used;

	if (!read_device_number(sysfs, node, "mem_info_vram_total", &total)) {
		gpu->total_bytes = banks_bytes(sysfs, number);
		return;
	}
	gpu->total_bytes = total;
	if (!read_device_number(sysfs, node, "mem_info_vram_used", &used))
		return;
	if (used > total)
		used = total;
	gpu->used_bytes = used;
	gpu->free_bytes = total - used;
	gpu->flags |= GCR_GPU_MEMORY;
}

/*
 * Reduces a name to one line of at most @most printable bytes: names are displayed and stored in
 * manifests.
 */
static void clean_name(char *text, size_t most)
{
	text[strcspn(text, "\n")] = '\0';
	if (strlen(text) > most)
		text[most] = '\0';
	for (char *letter = text; *letter; letter++)
		if (*letter < ' ' || *letter > '~')
			*letter = '?';
}

/*
 * Reads the GPU's name: the product name of server boards; else the chip's name, which newer
 * kernels do not know (they say "ip discovery"); else "AMD GPU".
 */
static void read_name(const char *sysfs, uint32_t number, const struct node *node,
		      struct gcr_gpu_info *gpu)
{
	char text[TEXT_BYTES + 1];

	if ((read_device(sysfs, node, "product_name", text) < 0 || !*text) &&
	    (read_text(sysfs, text, TOPOLOGY "/%" PRIu32 "/name", number) < 0 || !*text ||
	     strcmp(text, "ip discovery") == 0))
		strcpy(text, "AMD GPU");
	clean_name(text, GCR_NAME_BYTES - 1);
	strcpy(gpu->name, text);
}

static void read_gpu(const char *sysfs, uint32_t number, const struct node *node,
		     struct gcr_gpu_info *gpu)
{
	gcr_kfd_uuid(node->unique_id, node->domain, node->location_id, gpu->uuid);
	gpu->minor = node->render_minor <= INT32_MAX ? (int32_t)node->render_minor : -1;
	if (node->target_version <= UINT32_MAX)
		gpu->gfx_version = (uint32_t)node->target_version;
	read_memory(sysfs, number, node, gpu);
	read_name(sysfs, number, node, gpu);
}

static void mark_partitions(struct gcr_gpus_reply *reply)
{
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		for (uint32_t other = 0; other < i; other++)
			if (memcmp(reply->gpus[i].uuid, reply->gpus[other].uuid, GCR_UUID_BYTES) ==
			    0) {
				reply->gpus[i].flags |= GCR_GPU_MIG;
				reply->gpus[other].flags |= GCR_GPU_MIG;
			}
}

/* ---- processes ---- */

/* Returns true if the pids are valid in this PID namespace; the simulator's always are. */
static bool has_our_numbers(const char *sysfs)
{
	struct stat status;

	return strcmp(sysfs, "/sys") != 0 ||
	       (stat("/proc/self/ns/pid", &status) == 0 && status.st_ino == FIRST_PID_NAMESPACE);
}

static void read_processes(const char *sysfs, const struct node *nodes,
			   struct gcr_gpus_reply *reply, int32_t asked_pid)
{
	_cleanup_numbers_ struct numbers pids = {0};
	bool is_cut = false;

	if (!has_our_numbers(sysfs) || list_numbers(sysfs, PROC, &pids) < 0)
		return;
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		reply->gpus[i].flags |= GCR_GPU_PROCESSES;
	for (size_t at = 0; at < pids.count; at++) {
		if (pids.list[at] == 0 || pids.list[at] > INT32_MAX)
			continue;
		/* Others that a full list has no room for are not even read: there can be many. */
		if (reply->processes_count == GCR_GPU_PROCESSES_MAX &&
		    pids.list[at] != (uint32_t)asked_pid) {
			is_cut = true;
			continue;
		}
		for (uint32_t i = 0; i < reply->gpus_count; i++) {
			struct gcr_gpu_process process = {.pid = (int32_t)pids.list[at], .gpu = i};
			char text[TEXT_BYTES + 1];

			if (read_text(sysfs, text, PROC "/%" PRIu32 "/vram_%" PRIu32, pids.list[at],
				      nodes[i].gpu_id) < 0 ||
			    !parse_number(text, &process.bytes) || process.bytes == 0)
				continue;
			gcr_gpu_list_add(reply, &process, asked_pid);
		}
	}
	for (uint32_t i = 0; i < reply->gpus_count && is_cut; i++)
		reply->gpus[i].flags |= GCR_GPU_CUT;
}

/* ---- lists ---- */

void gcr_kfd_driver_version_below(const char *sysfs, char ret_version[GCR_NAME_BYTES])
{
	char text[TEXT_BYTES + 1];
	struct utsname kernel;

	if (read_text(sysfs, text, "module/amdgpu/version") < 0 || !*text) {
		strcpy(text, "");
		if (uname(&kernel) == 0)
			snprintf(text, sizeof(text), "%s", kernel.release);
	}
	clean_name(text, GCR_NAME_BYTES - 1);
	strcpy(ret_version, text);
}

int gcr_kfd_list_below(const char *sysfs, struct gcr_gpus_reply *ret_reply, int32_t asked_pid,
		       struct gcr_error *error)
{
	_cleanup_numbers_ struct numbers numbers = {0};
	struct node nodes[GCR_GPUS_MAX];
	int r;

	r = list_numbers(sysfs, TOPOLOGY, &numbers);
	if (r == -ENOENT || r == -ENOTDIR)
		return gcr_error_set(error, ENODEV,
				     "there is no %s/class/kfd: no AMD GPU, or its driver (amdgpu) "
				     "is not loaded",
				     sysfs);
	if (r < 0)
		return gcr_error_set(error, -r, "%s/" TOPOLOGY " cannot be read: %s", sysfs,
				     strerror(-r));
	if (numbers.count)
		qsort(numbers.list, numbers.count, sizeof(*numbers.list), compare_numbers);
	for (size_t i = 0; i < numbers.count && ret_reply->gpus_count < GCR_GPUS_MAX; i++) {
		struct node *node = &nodes[ret_reply->gpus_count];

		if (read_node(sysfs, numbers.list[i], node) < 0)
			continue;
		read_gpu(sysfs, numbers.list[i], node, &ret_reply->gpus[ret_reply->gpus_count++]);
	}
	mark_partitions(ret_reply);
	read_processes(sysfs, nodes, ret_reply, asked_pid);
	return 0;
}

void gcr_kfd_driver_version(char ret_version[GCR_NAME_BYTES])
{
	char sysfs[PATH_MAX];

	find_sysfs(sysfs);
	gcr_kfd_driver_version_below(sysfs, ret_version);
}

/*
 * Asks the simulator to update its files, which a simulated program that was killed could not do.
 */
static void refresh_simulator(void)
{
	static int (*refresh)(void);
	void *library;

	if (!refresh) {
		library = dlopen("libamdhip64.so", RTLD_NOW | RTLD_LOCAL);
		if (library)
			refresh = (int (*)(void))dlsym(library, "hipSimRefreshSysfs");
	}
	if (refresh)
		refresh();
}

int gcr_kfd_list(struct gcr_gpus_reply *ret_reply, int32_t asked_pid, struct gcr_error *error)
{
	char sysfs[PATH_MAX];

	if (find_sysfs(sysfs))
		refresh_simulator();
	return gcr_kfd_list_below(sysfs, ret_reply, asked_pid, error);
}
