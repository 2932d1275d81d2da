/* SPDX-License-Identifier: MIT */
/*
 * The messages of core-N.img, mm-N.img and ghost-file-N.img are those of images/core.proto,
 * rseq.proto, mm.proto, vma.proto and ghost-file.proto of CRIU 4.
 */
#include "criu-glue/image_check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "criu-glue/image.h"
#include "criu-glue/image_creds.h"
#include "criu-glue/image_memory.h"
#include "criu-glue/protobuf.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"

/* Field numbers. */
enum {
	FIELD_THREAD_CORE = 5, /* core_entry */
	FIELD_RSEQ = 15,       /* thread_core_entry */
	FIELD_RSEQ_ADDRESS = 1,
	FIELD_RSEQ_BYTES = 2,

	FIELD_MAPPINGS = 14, /* mm_entry */
	FIELD_MAPPING_START = 1,
	FIELD_MAPPING_END = 2,
	FIELD_MAPPING_FLAGS = 6,

	FIELD_GHOST_UID = 1, /* ghost_file_entry */
};

/* A bit that any thread can set itself. */
#define HARMLESS_BITS (1u << SECURE_KEEP_CAPS)

/* At the beginning of an image of deleted files: its message, which is followed by the contents. */
#define GHOST_BYTES_MAX 65536u

/* Memory of a thread for rseq(2); no bytes: it has none. */
struct area {
	uint64_t start, bytes;
};

#define TRUST "thaw trusted restores it"

/* ---- threads ---- */

/* Finds the memory for rseq(2) in an image core-N.img. -EIO. */
static int parse_area(const uint8_t *image, size_t bytes, struct area *ret_area)
{
	struct gcr_protobuf_field thread = {0}, rseq = {0}, start = {0}, size = {0};
	const uint8_t *at, *end = image + bytes, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_CORE, &at);

	if (!result)
		result = gcr_criu_image_next(&at, end, &message);
	if (result < 0 || at != end ||
	    !gcr_protobuf_find(message, end, FIELD_THREAD_CORE, GCR_PROTOBUF_BYTES, &thread) ||
	    !gcr_protobuf_find(thread.content, thread.content + thread.content_bytes, FIELD_RSEQ,
			       GCR_PROTOBUF_BYTES, &rseq) ||
	    !gcr_protobuf_find(rseq.content, rseq.content + rseq.content_bytes, FIELD_RSEQ_ADDRESS,
			       GCR_PROTOBUF_VARINT, &start) ||
	    !gcr_protobuf_find(rseq.content, rseq.content + rseq.content_bytes, FIELD_RSEQ_BYTES,
			       GCR_PROTOBUF_VARINT, &size))
		return -EIO;
	*ret_area = (struct area){.start = start.value, .bytes = start.value ? size.value : 0};
	return 0;
}

static int fail_thread(pid_t number, const char *words, struct gcr_error *error)
{
	return gcr_error_set(error, EACCES, "thread %d of the program %s (" TRUST ")", (int)number,
			     words);
}

static int fail_shared(pid_t number, struct gcr_error *error)
{
	return fail_thread(number, "shares its memory for rseq(2) with others", error);
}

/* Are all user ids of the thread root's? Then no other user can have changed its image. */
static bool is_roots(const struct gcr_image_creds *creds)
{
	return !creds->ids[GCR_CREDS_UID] && !creds->ids[GCR_CREDS_EUID] &&
	       !creds->ids[GCR_CREDS_SUID] && !creds->ids[GCR_CREDS_FSUID];
}

/*
 * Checks the secure bits of the thread, and finds its memory for rseq(2). *ret_area has no bytes if
 * that memory need not be checked. Errors, with a message: -EACCES, -EIO, -ENOMEM.
 */
static int check_thread(int images_fd, pid_t number, struct area *ret_area, struct gcr_error *error)
{
	_cleanup_(gcr_image_creds_finish) struct gcr_image_creds creds = {0};
	_cleanup_free_ void *bytes = NULL;
	char name[GCR_CRIU_NAME_BYTES];
	size_t size;
	int result;

	*ret_area = (struct area){0};
	result = gcr_criu_core_read(images_fd, number, name, &bytes, &size, error);
	if (result < 0)
		return result;
	result = gcr_image_creds_parse(bytes, size, &creds);
	if (!result && (creds.is_dead || is_roots(&creds)))
		return 0;
	if (!result)
		result = parse_area(bytes, size, ret_area);
	if (result < 0)
		return gcr_criu_image_fail(error, result, name);
	return creds.securebits & ~HARMLESS_BITS
		       ? fail_thread(number, "has secure bits, which the kernel does not confirm",
				     error)
		       : 0;
}

/* ---- the memory of a process ---- */

/*
 * Is the whole area in the mapping, and is the mapping private? *ret_is_file: the mapping is of a
 * file. False also if the message is damaged: then the area is in no mapping.
 */
static bool has_area(const struct gcr_protobuf_field *mapping, const struct area *area,
		     bool *ret_is_file)
{
	struct gcr_protobuf_field start = {0}, end = {0}, flags = {0};
	const uint8_t *at = mapping->content, *behind = at + mapping->content_bytes;

	if (!gcr_protobuf_find(at, behind, FIELD_MAPPING_START, GCR_PROTOBUF_VARINT, &start) ||
	    !gcr_protobuf_find(at, behind, FIELD_MAPPING_END, GCR_PROTOBUF_VARINT, &end) ||
	    !gcr_protobuf_find(at, behind, FIELD_MAPPING_FLAGS, GCR_PROTOBUF_VARINT, &flags))
		return false;
	*ret_is_file = !(flags.value & MAP_ANONYMOUS);
	return area->start >= start.value && area->start < end.value &&
	       area->bytes <= end.value - area->start && flags.value & MAP_PRIVATE;
}

/*
 * Is the area in a private mapping, by an image mm-N.img? *ret_is_file: that mapping is of a file.
 * 1, 0, -EIO.
 */
static int is_own(const uint8_t *image, size_t bytes, const struct area *area, bool *ret_is_file)
{
	const uint8_t *at, *end = image + bytes, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_MM, &at);
	struct gcr_protobuf_field field;

	if (!result)
		result = gcr_criu_image_next(&at, end, &message);
	if (result < 0 || at != end)
		return -EIO;
	while (message < end) {
		if (!gcr_protobuf_next(&message, end, &field))
			return -EIO;
		if (field.number == FIELD_MAPPINGS && field.wire == GCR_PROTOBUF_BYTES &&
		    has_area(&field, area, ret_is_file))
			return 1;
	}
	return 0;
}

/* The place of rseq_cs in struct rseq of linux/rseq.h: where the kernel looks for the code. */
#define RSEQ_CODE_OFFSET 8u
#define RSEQ_CODE_BYTES	 8u
/* More than any kernel's struct rseq has. */
#define AREA_BYTES_MAX	 256u

bool gcr_image_kernel_clears_rseq(const char *release)
{
	unsigned int major = 0, minor = 0;

	return sscanf(release, "%u.%u", &major, &minor) == 2 &&
	       (major > 6 || (major == 6 && minor >= 15));
}

/* Does this kernel use rseq_cs as it finds it when a thread registers its memory for rseq(2)? */
static bool is_believed(void)
{
	struct utsname kernel;

	return uname(&kernel) < 0 || !gcr_image_kernel_clears_rseq(kernel.release);
}

/*
 * Checks the bytes of the area. If its mapping is of a file, the images must have all of them:
 * other users may write to the file. The field rseq_cs must be 0, unless this kernel clears it when
 * the thread registers the area, which the thread does with root's rights. Errors, with a message:
 * -EACCES, -EIO.
 */
static int check_contents(const struct gcr_image_memory *memory, pid_t number,
			  const struct area *area, bool is_file, struct gcr_error *error)
{
	uint8_t bytes[AREA_BYTES_MAX];
	size_t found, size = area->bytes < sizeof(bytes) ? area->bytes : sizeof(bytes);
	static const uint8_t none[RSEQ_CODE_BYTES];
	int result = gcr_image_read_memory(memory, area->start, bytes, size, &found, error);

	if (result < 0)
		return result;
	if (is_file && (found < size || size < area->bytes))
		return fail_shared(number, error);
	if (size < RSEQ_CODE_OFFSET + RSEQ_CODE_BYTES || !is_believed() ||
	    !memcmp(bytes + RSEQ_CODE_OFFSET, none, sizeof(none)))
		return 0;
	return fail_thread(number,
			   "is in a part of its program that rseq(2) is for, or has been, and this "
			   "kernel would believe it while CRIU restores the thread",
			   error);
}

/* What of a process is read once, for all of its threads. */
struct process {
	char name[GCR_CRIU_NAME_BYTES];
	void *image; /* mm-N.img; NULL: it had ended */
	size_t bytes;
	struct gcr_image_memory memory;
};

static void process_finish(struct process *process)
{
	free(process->image);
	gcr_image_close_memory(&process->memory);
}

static int read_process(int images_fd, pid_t pid, bool is_for_writing, struct process *process,
			struct gcr_error *error)
{
	int result = gcr_criu_mm_read(images_fd, pid, process->name, &process->image,
				      &process->bytes, error);

	return result < 0 || !process->image ? result
					     : gcr_image_open_memory(images_fd, pid, is_for_writing,
								     &process->memory, error);
}

static int check_area(const struct process *process, pid_t number, const struct area *area,
		      struct gcr_error *error)
{
	bool is_file = false;
	int result = process->image ? is_own(process->image, process->bytes, area, &is_file) : -EIO;

	if (result < 0)
		return gcr_criu_image_fail(error, result, process->name);
	return result ? check_contents(&process->memory, number, area, is_file, error)
		      : fail_shared(number, error);
}

static int check_process(int images_fd, const struct gcr_criu_tree *tree,
			 const struct gcr_criu_process *one, struct gcr_error *error)
{
	_cleanup_(process_finish) struct process process = {.memory.pages_fd = -1};
	int result = read_process(images_fd, one->pid, false, &process, error);

	for (size_t i = one->first; i < one->first + one->count && !result; i++) {
		struct area area;

		result = check_thread(images_fd, tree->threads[i], &area, error);
		if (!result && area.bytes)
			result = check_area(&process, tree->threads[i], &area, error);
	}
	return result;
}

/* ---- mounts, and deleted files ---- */

/* Finds the user of an image ghost-file-N.img, of which these are the first bytes. -EIO. */
static int parse_ghost(const uint8_t *image, size_t bytes, uint64_t *ret_uid)
{
	struct gcr_protobuf_field uid = {0};
	const uint8_t *at, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_GHOST, &at);

	if (!result && at < image + bytes)
		result = gcr_criu_image_next(&at, image + bytes, &message);
	else
		result = -EIO;
	if (result < 0 ||
	    !gcr_protobuf_find(message, at, FIELD_GHOST_UID, GCR_PROTOBUF_VARINT, &uid) ||
	    !uid.number)
		return -EIO;
	*ret_uid = uid.value;
	return 0;
}

static int check_ghost(int images_fd, const char *name, const struct gcr_image_owner *owner,
		       struct gcr_error *error)
{
	_cleanup_close_ int fd = gcr_beneath_open_file(images_fd, name, NULL);
	_cleanup_free_ uint8_t *bytes = malloc(GHOST_BYTES_MAX);
	ssize_t got = fd < 0 || !bytes ? -1 : pread(fd, bytes, GHOST_BYTES_MAX, 0);
	uint64_t uid;

	if (!bytes)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (got < 0 || parse_ghost(bytes, (size_t)got, &uid) < 0)
		return gcr_criu_image_fail(error, -EIO, name);
	if (uid == owner->uid)
		return 0;
	return gcr_error_set(error, EACCES,
			     "the program has a deleted file of user %u open, which its own user "
			     "may not make again (thaw trusted makes it as root)",
			     (unsigned int)uid);
}

/*
 * Checks all deleted files, and that the tree has no mount namespace of its own. There CRIU makes
 * files as root, by paths that the user can have made: any user gets such a namespace, with mounts
 * of his choice, by a set-user-ID program.
 */
static int check_files(int images_fd, const struct gcr_image_owner *owner, struct gcr_error *error)
{
	static const char ghost[] = "ghost-file-", mounts[] = "mountpoints-";
	_cleanup_closedir_ DIR *directory = NULL;
	const struct dirent *entry;
	int result = gcr_beneath_list(images_fd, ".", &directory);

	if (result < 0)
		return gcr_error_set(error, EIO, "the directory of CRIU's images: %s",
				     strerror(-result));
	while (!result && (entry = readdir(directory))) {
		if (!strncmp(entry->d_name, mounts, strlen(mounts)))
			result = gcr_error_set(
				error, EACCES,
				"the program has a mount namespace of its own, in which CRIU "
				"would make files of user %u as root (thaw trusted does so)",
				(unsigned int)owner->uid);
		if (!result && !strncmp(entry->d_name, ghost, strlen(ghost)))
			result = check_ghost(images_fd, entry->d_name, owner, error);
	}
	return result;
}

int gcr_image_check(int images_fd, const struct gcr_image_owner *owner, struct gcr_error *error)
{
	_cleanup_(gcr_criu_tree_finish) struct gcr_criu_tree tree = {0};
	int result = gcr_criu_tree_read(images_fd, &tree, error);

	for (size_t i = 0; i < tree.count && !result; i++)
		result = check_process(images_fd, &tree, &tree.processes[i], error);
	return result ? result : check_files(images_fd, owner, error);
}

/* ---- at a dump ---- */

static int clear_process(int images_fd, const struct gcr_criu_tree *tree,
			 const struct gcr_criu_process *one, struct gcr_error *error)
{
	_cleanup_(process_finish) struct process process = {.memory.pages_fd = -1};
	int result = read_process(images_fd, one->pid, true, &process, error);

	for (size_t i = one->first; i < one->first + one->count && !result && process.image; i++) {
		_cleanup_free_ void *bytes = NULL;
		struct area area = {0};
		char name[GCR_CRIU_NAME_BYTES];
		size_t size;

		result =
			gcr_criu_core_read(images_fd, tree->threads[i], name, &bytes, &size, error);
		if (!result && parse_area(bytes, size, &area) < 0)
			result = gcr_criu_image_fail(error, -EIO, name);
		if (!result && area.bytes >= RSEQ_CODE_OFFSET + RSEQ_CODE_BYTES)
			result = gcr_image_clear_memory(&process.memory,
							area.start + RSEQ_CODE_OFFSET,
							RSEQ_CODE_BYTES, error);
	}
	return result;
}

int gcr_image_clear_rseq(int images_fd, struct gcr_error *error)
{
	_cleanup_(gcr_criu_tree_finish) struct gcr_criu_tree tree = {0};
	int result = gcr_criu_tree_read(images_fd, &tree, error);

	for (size_t i = 0; i < tree.count && !result; i++)
		result = clear_process(images_fd, &tree, &tree.processes[i], error);
	return result;
}
