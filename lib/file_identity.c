/* SPDX-License-Identifier: MIT */
/*
 * Identities of files, made and checked by threads that take one file after the other. A job's lock
 * protects the first failure; each file is used by one thread only.
 */
#include "lib/file_identity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/hex.h"
#include "lib/lock.h"

#define READ_BYTES (1u << 20)

/* Interval at which the caller's cancel flag is polled. */
#define LOOK_USEC     (50 * GCR_USEC_PER_MSEC)
/* Time that a file system has to answer after a cancellation. */
#define PATIENCE_USEC (5 * GCR_USEC_PER_SEC)

/* The end of a path up to this length goes into a message, so that there is room for the rest. */
#define PATH_WORDS_BYTES 300

/*
 * The work of one call, shared by its threads and the caller; the last of them destroys it. The job
 * has its own copies of everything, since a thread that waits for a file system may outlive the
 * call.
 */
struct job {
	/* constant while there are threads */
	bool is_making;			 /* else checking */
	struct gcr_file_identity *files; /* each used by one thread */
	size_t count;
	struct gcr_identity_options options;
	struct gcr_file_rights *rights; /* NULL: our own */

	atomic_size_t next;
	atomic_bool has_failed;
	atomic_bool is_cancelled;

	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned int threads; /* threads at work */
	unsigned int users;   /* threads and the caller */
	bool is_left;	      /* the caller has left */
	size_t failed;	      /* index of the first file with an error */
	int result;
	struct gcr_error error;
};

/* The state of one thread. */
struct reader {
	const struct gcr_identity_options *options;
	struct gcr_digest_stream *stream;
	uint8_t *buffer;
	const char *path;
	struct gcr_error *error;
};

static int fail(const struct reader *reader, int number, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int fail(const struct reader *reader, int number, const char *format, ...)
{
	size_t length = strlen(reader->path);
	const char *path = reader->path;
	char words[GCR_ERROR_WORDS_MAX - PATH_WORDS_BYTES];
	va_list values;

	va_start(values, format);
	vsnprintf(words, sizeof(words), format, values);
	va_end(values);
	if (length > PATH_WORDS_BYTES)
		path += length - PATH_WORDS_BYTES;
	return gcr_error_set(reader->error, number, "%s%s: %s", path == reader->path ? "" : "...",
			     path, words);
}

static bool is_cancelled(const struct gcr_identity_options *options)
{
	return atomic_load_explicit(options->cancel, memory_order_relaxed);
}

/* ---- opening ---- */

/*
 * Is the file on a file system whose contents are generated on access, so that even opening or
 * reading has effects?
 */
static bool is_kernels_own(int fd)
{
	static const uint32_t magics[] = {
		PROC_SUPER_MAGIC, SYSFS_MAGIC,	 CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
		DEBUGFS_MAGIC,	  TRACEFS_MAGIC, SECURITYFS_MAGIC,   SELINUX_MAGIC,
		BINFMTFS_MAGIC,	  BPF_FS_MAGIC,
	};
	struct statfs status;

	if (fstatfs(fd, &status) < 0)
		return false;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(magics); i++)
		if ((uint32_t)status.f_type == magics[i])
			return true;
	return false;
}

/*
 * Returns an O_PATH descriptor of the file, after checking that it is a regular file on an allowed
 * file system. -ENOENT, -EOPNOTSUPP, -ESTALE, ..., with a message: see gcr_file_identities_make().
 */
static int find_file(const struct reader *reader)
{
	_cleanup_close_ int fd = open(reader->path, O_PATH | O_CLOEXEC);
	dev_t refused = reader->options->refused_device;
	struct statx status;

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return fail(reader, ENOENT, "it is not there");
	if (fd < 0)
		return fail(reader, errno, "%s", strerror(errno));
	/* Without asking its file system, which may be our own mount. */
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) < 0)
		return fail(reader, errno, "%s", strerror(errno));
	if (refused && makedev(status.stx_dev_major, status.stx_dev_minor) == refused)
		return fail(reader, EOPNOTSUPP, "it is in the mount of gpucrfs itself");
	if (!S_ISREG(status.stx_mode))
		return fail(reader, ESTALE, "it is no regular file");
	return TAKE_FD(fd);
}

/* Opens the file that was found, even if its path leads elsewhere by now. */
static int open_file(const struct reader *reader, int found_fd, uint64_t *ret_bytes)
{
	_cleanup_close_ int fd = -1;
	const int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	char path[sizeof("/proc/self/fd/") + 3 * sizeof(int)];
	struct stat status;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", found_fd);
	/* If the file has a lease, O_NONBLOCK returns an error instead of waiting. */
	if (reader->options->rights)
		fd = gcr_file_rights_open(reader->options->rights, path, flags);
	else
		fd = open(path, flags);
	if (fd < 0 && reader->options->rights)
		return fail(reader, -fd, "%s", strerror(-fd));
	if (fd < 0 || fstat(fd, &status) < 0)
		return fail(reader, errno, "%s", strerror(errno));
	*ret_bytes = (uint64_t)status.st_size;
	return TAKE_FD(fd);
}

/* ---- contents ---- */

static int add(const struct reader *reader, int fd, uint64_t offset, uint64_t bytes)
{
	while (bytes) {
		size_t wanted = bytes < READ_BYTES ? bytes : READ_BYTES;
		ssize_t got;

		if (is_cancelled(reader->options))
			return fail(reader, ECANCELED, "it was cancelled");
		got = pread(fd, reader->buffer, wanted, (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return fail(reader, errno, "%s", strerror(errno));
		if (!got)
			return fail(reader, ESTALE, "it has become shorter meanwhile");
		gcr_digest_stream_add(reader->stream, reader->buffer, (size_t)got);
		offset += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	return 0;
}

/* Digests the first @bytes of a file: all of them, or pieces. */
static int digest(const struct reader *reader, int fd, enum gcr_identity_kind kind, uint64_t bytes,
		  struct gcr_digest *ret_digest)
{
	const uint64_t last = GCR_IDENTITY_PIECES - 1;
	int result = 0;

	if (kind == GCR_IDENTITY_DIGEST) {
		result = add(reader, fd, 0, bytes);
	} else {
		uint64_t room = bytes - GCR_IDENTITY_PIECE_BYTES;

		/* N * room / 63, without overflow */
		for (uint64_t i = 0; i <= last && !result; i++)
			result = add(reader, fd, room / last * i + room % last * i / last,
				     GCR_IDENTITY_PIECE_BYTES);
	}
	/* On failure too: resets the stream for the next file. */
	gcr_digest_stream_end(reader->stream, ret_digest);
	return result;
}

static int make(const struct reader *reader, struct gcr_file_identity *file)
{
	_cleanup_close_ int found_fd = find_file(reader);
	_cleanup_close_ int fd = -1;

	if (found_fd < 0)
		return found_fd;
	file->bytes = 0;
	file->build_id_bytes = 0;
	file->kind = GCR_IDENTITY_NAME;
	if (is_kernels_own(found_fd))
		return 0;
	fd = open_file(reader, found_fd, &file->bytes);
	if (fd < 0)
		return fd;
	if (!file->is_append_only)
		file->build_id_bytes = (uint32_t)gcr_build_id_read(fd, file->build_id);
	if (file->build_id_bytes)
		file->kind = GCR_IDENTITY_BUILD_ID;
	else if (file->bytes <= GCR_IDENTITY_WHOLE_MAX)
		file->kind = GCR_IDENTITY_DIGEST;
	else
		file->kind = GCR_IDENTITY_SAMPLE;
	return file->kind == GCR_IDENTITY_BUILD_ID
		       ? 0
		       : digest(reader, fd, file->kind, file->bytes, &file->digest);
}

static void put_build_id(const uint8_t *build_id, size_t bytes, char *to)
{
	for (size_t i = 0; i < bytes; i++)
		to = gcr_hex_put(to, build_id[i]);
	*to = '\0';
}

static int check_build_id(const struct reader *reader, int fd, const struct gcr_file_identity *file)
{
	char then[2 * GCR_BUILD_ID_BYTES + 1], now[2 * GCR_BUILD_ID_BYTES + 1];
	uint8_t build_id[GCR_BUILD_ID_BYTES];
	size_t bytes = gcr_build_id_read(fd, build_id);

	if (bytes == file->build_id_bytes && memcmp(build_id, file->build_id, bytes) == 0)
		return 0;
	put_build_id(build_id, bytes, now);
	put_build_id(file->build_id, file->build_id_bytes, then);
	return fail(reader, ESTALE, "its build id is %s, not %s", bytes ? now : "not there", then);
}

static int check(const struct reader *reader, const struct gcr_file_identity *file)
{
	_cleanup_close_ int found_fd = find_file(reader);
	_cleanup_close_ int fd = -1;
	struct gcr_digest found;
	uint64_t bytes = 0;
	int result;

	if (found_fd < 0)
		return found_fd;
	if (is_kernels_own(found_fd) != (file->kind == GCR_IDENTITY_NAME))
		return fail(reader, ESTALE, "it is %s file of the kernel's own",
			    file->kind == GCR_IDENTITY_NAME ? "no longer a" : "now a");
	if (file->kind == GCR_IDENTITY_NAME)
		return 0;
	fd = open_file(reader, found_fd, &bytes);
	if (fd < 0)
		return fd;
	if (file->is_append_only ? bytes < file->bytes : bytes != file->bytes)
		return fail(reader, ESTALE, "it is %" PRIu64 " bytes long, not %" PRIu64 "%s",
			    bytes, file->bytes, file->is_append_only ? " or more" : "");
	if (file->kind == GCR_IDENTITY_BUILD_ID)
		return check_build_id(reader, fd, file);
	result = digest(reader, fd, file->kind, file->bytes, &found);
	if (!result && !gcr_digest_equal(&found, &file->digest))
		result = fail(reader, ESTALE,
			      file->is_append_only ? "what it began with is not what it was"
						   : "what is in it is not what it was");
	return result;
}

/* ---- threads ---- */

static void job_unref(struct job *job)
{
	unsigned int users;

	if (!job)
		return;
	pthread_mutex_lock(&job->lock);
	users = --job->users;
	pthread_mutex_unlock(&job->lock);
	if (users)
		return;
	gcr_file_identities_free(job->files, job->count);
	gcr_file_rights_destroy(job->rights);
	pthread_cond_destroy(&job->ended);
	pthread_mutex_destroy(&job->lock);
	free(job);
}

GCR_DEFINE_CLEANUP(struct job *, job_unref);

/* Records a failure. Files are taken in order, so all files before a failed one have been taken. */
static void note(struct job *job, size_t index, int result, const struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&job->lock);

	atomic_store(&job->has_failed, true);
	if (job->result && index >= job->failed)
		return;
	job->failed = index;
	job->result = result;
	job->error = *error;
}

static void work(struct job *job)
{
	_cleanup_(gcr_digest_stream_destroy_cleanup) struct gcr_digest_stream *stream =
		gcr_digest_stream_create();
	_cleanup_free_ uint8_t *buffer = malloc(READ_BYTES);
	_cleanup_(gcr_file_rights_give_back_cleanup) struct gcr_file_rights *ours = NULL;
	const struct gcr_file_rights *rights = job->rights;
	int taken = rights ? gcr_file_rights_take(rights, &ours) : 0;
	struct gcr_error error = {0};
	struct reader reader = {
		.options = &job->options,
		.stream = stream,
		.buffer = buffer,
		.error = &error,
	};

	while (!atomic_load(&job->has_failed)) {
		size_t index = atomic_fetch_add(&job->next, 1);
		int result;

		if (index >= job->count)
			break;
		reader.path = job->files[index].path;
		if (!stream || !buffer)
			result = fail(&reader, ENOMEM, "out of memory");
		else if (taken < 0)
			result = fail(&reader, -taken, "its reader's rights: %s", strerror(-taken));
		else if (is_cancelled(&job->options))
			result = fail(&reader, ECANCELED, "it was cancelled");
		else if (job->is_making)
			result = make(&reader, &job->files[index]);
		else
			result = check(&reader, &job->files[index]);
		if (result < 0)
			note(job, index, result, &error);
	}
}

static void *run(void *argument)
{
	struct job *job = argument;
	bool is_last;

	work(job);
	pthread_mutex_lock(&job->lock);
	job->threads--;
	is_last = !job->threads && job->is_left;
	pthread_cond_signal(&job->ended);
	pthread_mutex_unlock(&job->lock);
	if (is_last && job->options.over)
		job->options.over(job->options.data);
	job_unref(job);
	return NULL;
}

/* Starts the threads; succeeds if at least one has started. */
static int start(struct job *job)
{
	unsigned int wanted = job->options.threads ? job->options.threads : 1;
	int result = 0;

	if (wanted > GCR_IDENTITY_THREADS_MAX)
		wanted = GCR_IDENTITY_THREADS_MAX;
	if (wanted > job->count)
		wanted = (unsigned int)job->count;
	for (unsigned int i = 0; i < wanted && !result; i++) {
		pthread_t thread;

		pthread_mutex_lock(&job->lock);
		result = pthread_create(&thread, NULL, run, job);
		if (!result) {
			pthread_detach(thread);
			job->threads++;
			job->users++;
		}
		pthread_mutex_unlock(&job->lock);
	}
	return result;
}

/* Waits until all threads have ended, or the job is cancelled and some do not end. */
static int await_end(struct job *job, const struct gcr_identity_options *options)
{
	int64_t cancelled_usec = 0;
	int reason = 0;

	GCR_LOCK_SCOPE(&job->lock);

	while (job->threads) {
		int64_t now_usec = gcr_clock_usec();
		int64_t until_usec = now_usec + LOOK_USEC;

		if (!reason && options->cancel && atomic_load(options->cancel))
			reason = ECANCELED;
		else if (!reason && options->deadline_usec && now_usec >= options->deadline_usec)
			reason = ETIMEDOUT;
		if (reason && !cancelled_usec) {
			cancelled_usec = now_usec;
			atomic_store(&job->is_cancelled, true);
		}
		if (reason && now_usec > cancelled_usec + PATIENCE_USEC) {
			job->is_left = true;
			if (options->left)
				options->left(options->data);
			return -reason;
		}
		gcr_cond_wait_until(&job->ended, &job->lock, until_usec);
	}
	return reason && job->result == -ECANCELED ? -reason : job->result;
}

/* Makes a job with copies of all of the caller's data that threads use. */
static struct job *job_create(const struct gcr_file_identity *files, size_t count,
			      const struct gcr_identity_options *options)
{
	_cleanup_(job_unref_cleanup) struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	pthread_mutex_init(&job->lock, NULL);
	pthread_cond_init(&job->ended, NULL);
	job->users = 1;
	job->options = *options;
	job->options.cancel = &job->is_cancelled;
	/* Here too, since the threads can be done before anybody waits for them. */
	if (options->cancel && atomic_load(options->cancel))
		atomic_init(&job->is_cancelled, true);
	job->files = calloc(count + 1, sizeof(*job->files));
	if (options->rights)
		job->rights = gcr_file_rights_copy(options->rights);
	job->options.rights = job->rights;
	if (!job->files || (options->rights && !job->rights))
		return NULL;
	for (; job->count < count; job->count++) {
		job->files[job->count] = files[job->count];
		job->files[job->count].path = strdup(files[job->count].path);
		if (!job->files[job->count].path)
			return NULL;
	}
	return TAKE_PTR(job);
}

/*
 * Does the work of one call. @made: the files whose identities are made; NULL: those of @files are
 * checked. *ret_left: threads are still running.
 */
static int do_job(const struct gcr_file_identity *files, struct gcr_file_identity *made,
		  size_t count, const struct gcr_identity_options *options, bool *ret_left,
		  struct gcr_error *error)
{
	_cleanup_(job_unref_cleanup) struct job *job = job_create(files, count, options);
	int result;

	if (!job)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (!count)
		return 0;
	job->is_making = made;
	result = start(job);
	if (result && !job->threads)
		return gcr_error_set(error, ENOMEM, "cannot start a thread: %s", strerror(result));
	result = await_end(job, options);
	*ret_left = job->is_left; /* set by this thread only */
	if (result == -ETIMEDOUT)
		return gcr_error_set(error, ETIMEDOUT,
				     "the files that are open could not be read in time");
	if (result == -ECANCELED)
		return gcr_error_set(error, ECANCELED, "the reading of files was cancelled");
	for (size_t i = 0; made && i < count; i++) {
		char *path = made[i].path;

		made[i] = job->files[i];
		made[i].path = path;
	}
	if (result < 0)
		*error = job->error;
	return result;
}

static int do_job_and_tell(const struct gcr_file_identity *files, struct gcr_file_identity *made,
			   size_t count, const struct gcr_identity_options *options,
			   struct gcr_error *error)
{
	struct gcr_error unused;
	bool is_left = false;
	int result = do_job(files, made, count, options, &is_left, error ? error : &unused);

	if (!is_left && options->over)
		options->over(options->data);
	return result;
}

int gcr_file_identities_make(struct gcr_file_identity *files, size_t count,
			     const struct gcr_identity_options *options, struct gcr_error *error)
{
	return do_job_and_tell(files, files, count, options, error);
}

int gcr_file_identities_check(const struct gcr_file_identity *files, size_t count,
			      const struct gcr_identity_options *options, struct gcr_error *error)
{
	return do_job_and_tell(files, NULL, count, options, error);
}

/* ---- lists ---- */

void gcr_file_identities_free(struct gcr_file_identity *files, size_t count)
{
	for (size_t i = 0; files && i < count; i++)
		free(files[i].path);
	free(files);
}

int gcr_file_identities_list(const struct gcr_file_identity *files, size_t count, char **ret_text,
			     size_t *ret_bytes, size_t *ret_left_out)
{
	_cleanup_free_ char *text = NULL;
	size_t left_out = 0, bytes = 0;
	FILE *stream = open_memstream(&text, &bytes);

	if (!stream)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		if (files[i].kind == GCR_IDENTITY_NAME)
			continue;
		if (strpbrk(files[i].path, "\n\r"))
			left_out++;
		else
			fprintf(stream, "%s\n", files[i].path);
	}
	if (fclose(stream) != 0)
		return -ENOMEM;
	*ret_text = TAKE_PTR(text);
	*ret_bytes = bytes;
	*ret_left_out = left_out;
	return 0;
}
