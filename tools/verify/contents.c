/* SPDX-License-Identifier: MIT */
/*
 * gpucr-verify: compares the contents of files with their digests. Threads take pieces of files in
 * order, and read and digest the data; holes are not read, because the digest of a chunk of zeros
 * is known. The lock protects the position of the next piece and the counts. Marks and errors need
 * no lock: each belongs to one piece, or every thread would store the same value.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "tools/verify/verify.h"

#define PIECE_BYTES   (UINT64_C(16) << 20) /* taken by a thread at once: a multiple of a chunk */
#define BUFFER_BYTES  (1u << 20)	   /* read at once: fits into a core's own cache */
#define PROGRESS_USEC (GCR_USEC_PER_SEC / 5)

struct contents {
	/* Constant while threads run. */
	int files_fd;
	struct verify_file *files;
	size_t count;
	const struct gcr_digest *digests;
	uint8_t *differs;
	struct gcr_digest zero_chunk;
	uint64_t bytes;

	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned int running;
	size_t next; /* file and offset of the next piece */
	uint64_t offset;
	uint64_t bytes_done;
};

struct piece {
	struct verify_file *file;
	uint64_t begin;
	uint64_t end;
};

/* The state of one thread. */
struct reader {
	struct contents *contents;
	struct verify_file *file; /* the open file */
	int fd;
	uint8_t *buffer;

	/* In whole chunks: a hole up to data_begin, data from data_begin to data_end. */
	uint64_t known_from;
	uint64_t data_begin;
	uint64_t data_end;
};

static bool take_piece(struct contents *contents, uint64_t bytes_done, struct piece *ret_piece)
{
	GCR_LOCK_SCOPE(&contents->lock);

	contents->bytes_done += bytes_done;
	while (contents->next < contents->count &&
	       contents->offset >= contents->files[contents->next].bytes) {
		contents->next++;
		contents->offset = 0;
	}
	if (contents->next == contents->count)
		return false;
	ret_piece->file = &contents->files[contents->next];
	ret_piece->begin = contents->offset;
	ret_piece->end = ret_piece->file->bytes;
	if (ret_piece->end - ret_piece->begin > PIECE_BYTES)
		ret_piece->end = ret_piece->begin + PIECE_BYTES;
	contents->offset = ret_piece->end;
	return true;
}

static int open_file(struct reader *reader, struct verify_file *file)
{
	struct stat stat;

	if (reader->file == file)
		return 0;
	if (reader->fd >= 0)
		close(reader->fd);
	reader->file = NULL;
	reader->fd = gcr_beneath_open_file(reader->contents->files_fd, file->name, NULL);
	if (reader->fd < 0)
		return reader->fd;
	/* Bytes beyond the end must not be taken for a hole. */
	if (fstat(reader->fd, &stat) < 0)
		return -errno;
	if ((uint64_t)stat.st_size < file->bytes)
		return -ENODATA;
	/* A file with a block for every byte has no holes. */
	reader->known_from = reader->data_begin = 0;
	reader->data_end = stat.st_blocks >= stat.st_size / 512 ? file->bytes : 0;
	reader->file = file;
	return 0;
}

static void compare(struct reader *reader, uint64_t offset, const struct gcr_digest *found)
{
	const struct contents *contents = reader->contents;
	uint64_t number = reader->file->first_digest + offset / GCR_CHUNK_BYTES;

	if (!gcr_digest_equal(found, &contents->digests[number]))
		contents->differs[number] = 1;
}

/* Checks a hole from the start of a chunk to the end of a chunk (the last one may be short). */
static void check_hole(struct reader *reader, uint64_t begin, uint64_t end)
{
	for (uint64_t offset = begin; offset < end; offset += GCR_CHUNK_BYTES) {
		struct gcr_digest zeros = reader->contents->zero_chunk;

		if (end - offset < GCR_CHUNK_BYTES)
			gcr_digest_of_zeros(end - offset, &zeros);
		compare(reader, offset, &zeros);
	}
}

static int check_data(struct reader *reader, uint64_t begin, uint64_t end)
{
	while (begin < end) {
		size_t wanted = end - begin < BUFFER_BYTES ? end - begin : BUFFER_BYTES;
		struct gcr_digest found[BUFFER_BYTES / GCR_CHUNK_BYTES];

		for (size_t done = 0; done < wanted;) {
			ssize_t got = pread(reader->fd, reader->buffer + done, wanted - done,
					    (off_t)(begin + done));

			if (got < 0 && errno == EINTR)
				continue;
			if (got < 0)
				return -errno;
			if (!got) /* the file was that long a moment ago */
				return -ENODATA;
			done += (size_t)got;
		}
		gcr_digest_chunks(reader->buffer, wanted, found);
		for (size_t i = 0; i < gcr_digest_count(wanted); i++)
			compare(reader, begin + i * GCR_CHUNK_BYTES, &found[i]);
		begin += wanted;
	}
	return 0;
}

static uint64_t whole_chunks(uint64_t offset)
{
	return offset / GCR_CHUNK_BYTES * GCR_CHUNK_BYTES;
}

/*
 * Finds the data at or after @offset, and notes in @reader where it begins and ends. A file system
 * without holes reports everything as data, or reports an error. On tmpfs finding the next hole
 * takes a search page by page: this is done only once for all pieces of the same data.
 */
static void find_data(struct reader *reader, uint64_t offset)
{
	uint64_t bytes = reader->file->bytes;
	off_t data, hole;

	if (offset >= reader->known_from && offset < reader->data_end)
		return;
	data = lseek(reader->fd, (off_t)offset, SEEK_DATA);
	if (data < 0 && errno == ENXIO)
		data = (off_t)bytes;
	if (data < (off_t)offset)
		data = (off_t)offset;
	hole = data < (off_t)bytes ? lseek(reader->fd, data, SEEK_HOLE) : data;
	reader->known_from = offset;
	reader->data_begin = whole_chunks((uint64_t)data);
	reader->data_end = hole > data ? whole_chunks((uint64_t)hole + GCR_CHUNK_BYTES - 1) : bytes;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static int check_piece(struct reader *reader, const struct piece *piece)
{
	uint64_t begin = piece->begin;
	int result = open_file(reader, piece->file);

	while (begin < piece->end && !result) {
		uint64_t end;

		find_data(reader, begin);
		if (begin < reader->data_begin) {
			end = lesser(reader->data_begin, piece->end);
			check_hole(reader, begin, end);
		} else {
			end = lesser(reader->data_end, piece->end);
			result = check_data(reader, begin, end);
		}
		begin = end;
	}
	return result;
}

static void *work(void *argument)
{
	struct contents *contents = argument;
	_cleanup_free_ uint8_t *buffer = aligned_alloc(4096, BUFFER_BYTES);
	struct reader reader = {.contents = contents, .fd = -1, .buffer = buffer};
	struct piece piece = {0};

	while (take_piece(contents, piece.end - piece.begin, &piece)) {
		int result = buffer ? check_piece(&reader, &piece) : -ENOMEM;

		if (result < 0) {
			GCR_LOCK_SCOPE(&contents->lock);
			if (!piece.file->error)
				piece.file->error = -result;
		}
	}
	if (reader.fd >= 0)
		close(reader.fd);
	pthread_mutex_lock(&contents->lock);
	contents->running--;
	pthread_cond_signal(&contents->ended);
	pthread_mutex_unlock(&contents->lock);
	return NULL;
}

static void print_progress(const struct verify *verify, const struct contents *contents,
			   uint64_t done, int64_t usec)
{
	bool in_place = verify->options->progress_in_place;
	double bytes = (double)contents->bytes;

	fprintf(stderr, "%s%s%s%.0f %% of %.1f GB, %.1f GB/s%s", in_place ? "\r" : "",
		verify->path ? verify->path : "", verify->path ? ": " : "",
		bytes > 0 ? 100 * (double)done / bytes : 100, bytes / 1e9,
		usec > 0 ? (double)done / (double)usec / 1000 : 0, in_place ? "\033[K" : "\n");
	fflush(stderr);
}

static void wait_for_threads(const struct verify *verify, struct contents *contents)
{
	int64_t since_usec = gcr_clock_usec();
	bool shown = false;

	pthread_mutex_lock(&contents->lock);
	while (contents->running) {
		int64_t until_usec = gcr_clock_usec() + PROGRESS_USEC;
		uint64_t done;

		if (!verify->options->progress) {
			pthread_cond_wait(&contents->ended, &contents->lock);
			continue;
		}
		if (!gcr_cond_wait_until(&contents->ended, &contents->lock, until_usec))
			continue;
		done = contents->bytes_done;
		pthread_mutex_unlock(&contents->lock);
		print_progress(verify, contents, done, gcr_clock_usec() - since_usec);
		shown = true;
		pthread_mutex_lock(&contents->lock);
	}
	pthread_mutex_unlock(&contents->lock);
	if (verify->options->progress && !verify->options->progress_in_place)
		print_progress(verify, contents, contents->bytes_done,
			       gcr_clock_usec() - since_usec);
	else if (shown)
		fputs("\r\033[K", stderr);
}

void verify_contents(const struct verify *verify, int files_fd, struct verify_file *files,
		     size_t count, const struct gcr_digest *digests, uint8_t *ret_differs)
{
	struct contents contents = {
		.files_fd = files_fd,
		.files = files,
		.count = count,
		.digests = digests,
		.differs = ret_differs,
	};
	pthread_t threads[VERIFY_THREADS_MAX];
	unsigned int started = 0;
	uint64_t pieces = 0;

	pthread_mutex_init(&contents.lock, NULL);
	pthread_cond_init(&contents.ended, NULL);
	gcr_digest_of_zeros(GCR_CHUNK_BYTES, &contents.zero_chunk);
	for (size_t i = 0; i < count; i++) {
		contents.bytes += files[i].bytes;
		pieces += files[i].bytes / PIECE_BYTES + (files[i].bytes % PIECE_BYTES != 0);
	}
	while (started < verify->options->threads && started < pieces) {
		pthread_mutex_lock(&contents.lock);
		contents.running++;
		pthread_mutex_unlock(&contents.lock);
		if (pthread_create(&threads[started], NULL, work, &contents) != 0) {
			pthread_mutex_lock(&contents.lock);
			contents.running--;
			pthread_mutex_unlock(&contents.lock);
			break;
		}
		started++;
	}
	if (started) {
		wait_for_threads(verify, &contents);
	} else if (pieces) {
		contents.running++;
		work(&contents);
	}
	for (unsigned int i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	pthread_cond_destroy(&contents.ended);
	pthread_mutex_destroy(&contents.lock);
}
