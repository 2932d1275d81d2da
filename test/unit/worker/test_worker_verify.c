/* SPDX-License-Identifier: MIT */
/*
 * gpucr-worker verifies files on their way into VRAM: content that differs anywhere from what was
 * frozen is refused, unless the session is not to be verified.
 */
#include <ftw.h>

#include "test/unit/worker/image.h"

static void flip_byte(int fd, off_t at)
{
	unsigned char byte;

	CHECK(pread(fd, &byte, 1, at) == 1);
	byte ^= 0x10;
	CHECK(pwrite(fd, &byte, 1, at) == 1);
}

/*
 * Expects the way in to be refused with a message that names the file and the @offset. No VRAM is
 * in use before and afterwards.
 */
static void refuse_in(struct worker *worker, struct image *image, size_t index, uint64_t offset)
{
	char name[GCR_EXTENT_NAME_BYTES], words[128];
	size_t before = free_of(0);

	gcr_extent_name(&image->process.extents[index], name);
	snprintf(words, sizeof(words), "vram/%s is not what was frozen", name);
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, &image->process, 0));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	REFUSED(worker_do(worker, GCR_MESSAGE_COPY), EIO, words);
	snprintf(words, sizeof(words), "at offset %llu is another", (unsigned long long)offset);
	REFUSED(EIO, EIO, words);
	CHECK(session_export(worker, &image->process) == EINVAL);
	DONE(worker_do(worker, GCR_MESSAGE_END));
	CHECK(free_of(0) == before);
}

static void rename_to(const struct image *image, size_t index, const char *name, bool back)
{
	char own[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(&image->process.extents[index], own);
	CHECK(!renameat(image->process.directory, back ? name : own, image->process.directory,
			back ? own : name));
}

static void swap_files(const struct image *image, size_t left, size_t right)
{
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(&image->process.extents[right], name);
	rename_to(image, left, "left", false);
	rename_to(image, right, "right", false);
	rename_to(image, left, "right", true);
	rename_to(image, right, "left", true);
}

/*
 * Content that differs from the frozen one anywhere is refused; the right content comes in
 * afterwards.
 */
static void test_verify(void)
{
	static const struct {
		size_t index;
		uint64_t at;
	} places[] = {
		{0, 0},
		{0, CHUNK - 1},
		{0, CHUNK},
		{0, 2 * MIB - 1},
		{1, 0},
		{1, 9 * MIB + 77},
		{1, 10 * MIB - 1},
		{2, 3 * MIB},
		{4, 2 * MIB - CHUNK},
		{5, 6 * MIB - 1},
	};
	/* One is larger than a slot of the ring. */
	static const uint64_t bytes[] = {2 * MIB, 10 * MIB, 6 * MIB, 6 * MIB, 2 * MIB, 6 * MIB};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(bytes, GCR_ARRAY_SIZE(bytes));
	size_t before = free_of(0);
	char *memory;
	int fd;

	memset(image.memory[1] + 4 * MIB, 0, PIECE);
	go_out(&worker, &image);
	process_release(&image.process, true);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(places); i++) {
		fd = process_open(&image.process, places[i].index);
		flip_byte(fd, (off_t)places[i].at);
		refuse_in(&worker, &image, places[i].index, places[i].at / CHUNK * CHUNK);
		flip_byte(fd, (off_t)places[i].at);
		close(fd);
	}

	/* A hole gets a byte, and data become a hole. */
	fd = process_open(&image.process, 1);
	write_file(&image, 1, 5 * MIB + 3, "x", 1);
	refuse_in(&worker, &image, 1, 5 * MIB);
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * MIB, PIECE));
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8 * MIB, PIECE));
	refuse_in(&worker, &image, 1, 8 * MIB);
	write_file(&image, 1, 8 * MIB, image.memory[1] + 8 * MIB, PIECE);
	close(fd);
	/* Two differences: the message names the first. */
	fd = process_open(&image.process, 2);
	flip_byte(fd, 5 * MIB);
	flip_byte(fd, 2 * MIB + 1);
	refuse_in(&worker, &image, 2, 2 * MIB);
	flip_byte(fd, 5 * MIB);
	flip_byte(fd, 2 * MIB + 1);
	close(fd);
	/* Changed digests: the last byte of one, and the first byte of all. */
	flip_byte(image.process.digests, process_digests_offset(&image.process, 3) +
						 70 * GCR_DIGEST_BYTES + GCR_DIGEST_BYTES - 1);
	refuse_in(&worker, &image, 3, 70 * CHUNK);
	flip_byte(image.process.digests, process_digests_offset(&image.process, 0));
	refuse_in(&worker, &image, 0, 0);
	flip_byte(image.process.digests, process_digests_offset(&image.process, 0));
	flip_byte(image.process.digests, process_digests_offset(&image.process, 3) +
						 70 * GCR_DIGEST_BYTES + GCR_DIGEST_BYTES - 1);
	swap_files(&image, 2, 5);
	refuse_in(&worker, &image, 2, 0);
	swap_files(&image, 2, 5);

	/* A retry in the same session succeeds once the file is right again. */
	fd = process_open(&image.process, 4);
	flip_byte(fd, 100);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &image.process, 0));
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EIO, "at offset 0 is another");
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EIO, "at offset 0 is another");
	flip_byte(fd, 100);
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	DONE(session_export(&worker, &image.process));
	OK(CU(cuMemImportFromShareableHandle)(&image.process.handles[4],
					      (void *)(intptr_t)image.process.fds[4],
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	memory = process_read_handle(&image.process, 4, image.process.handles[4]);
	CHECK(!memcmp(memory, image.memory[4], bytes[4]));
	free(memory);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_release(&image.process, true);
	CHECK(free_of(0) == before);
	come_in(&worker, &image);

	/* With GCR_SESSION_UNVERIFIED, edited bytes come in. */
	image.memory[4][100] ^= 0x10;
	flip_byte(fd, 100);
	close(fd);
	make_new(image.memory[1] + 4 * MIB, PIECE);
	write_file(&image, 1, 4 * MIB, image.memory[1] + 4 * MIB, PIECE);
	image.process.flags = GCR_SESSION_UNVERIFIED;
	come_in(&worker, &image);
	image.process.flags = 0;
	process_release(&image.process, true);
	refuse_in(&worker, &image, 1, 4 * MIB);
	image_destroy(&image);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	worker_test_begin(1);
	test_verify();
	store_leave();
	return 0;
}
