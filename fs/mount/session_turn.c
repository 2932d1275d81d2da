/* SPDX-License-Identifier: MIT */
/* The queue of requests, and for each operation a function that runs it as a job of that queue. */
#include "fs/mount/session_turn.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/credentials.h"
#include "fs/base/quota.h"
#include "fs/base/watchdog.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

/* Limits of the queue: jobs, and bytes to be written. */
#define OWNER_JOBS_MAX	1024
#define OWNER_BYTES_MAX (64ull << 20)
#define ALL_BYTES_MAX	(512ull << 20)

enum kind {
	JOB_OF_ITEM, /* a request below a `snapshot`, or a listing of the mount's root */
	JOB_OPEN,    /* of another file or directory */
	JOB_VERB,    /* a write to a `ctl` */
	KINDS_COUNT,
};

/* A request with the arguments of its operation. */
struct job {
	struct job *next;
	void (*run)(struct job *job);
	enum kind kind;
	struct owner *owner; /* set when the job has begun, or is queued */
	bool is_unfinished;  /* run() has done one step, and has not answered the request */

	fuse_req_t request;
	fuse_ino_t node;
	const char *name;
	fuse_ino_t new_node;
	const char *new_name;
	mode_t mode;
	int flags;
	struct stat stat;
	bool has_info;
	struct fuse_file_info info;
	const char *bytes;
	size_t size;
	off_t offset;
	struct gcr_subtree_allocation allocation;

	/* Copies that belong to a queued job; name, new_name and bytes then point to them. */
	char *own_name;
	char *own_new_name;
	char *own_bytes;
};

static const struct fuse_lowlevel_ops *real;
static const struct gcr_session_turns *session;

/*
 * A user who has jobs of one kind running or queued. A user with jobs of several kinds has as many
 * of these, so that the user's verbs do not wait behind the user's other requests.
 */
struct owner {
	struct owner *next;
	uid_t uid;
	enum kind kind;
	unsigned int running;
	uint64_t served_number; /* number of the last begun job; until then, of arrival */
	/* The user's queued jobs, in order of arrival. */
	struct job *first;
	struct job **last;
	unsigned int jobs;
	uint64_t bytes;
};

static struct {
	pthread_mutex_t lock; /* a leaf lock */
	struct owner *owners;
	unsigned int running[KINDS_COUNT];
	uint64_t number;
	uint64_t bytes; /* of all queued jobs */
} line = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the queue ---- */

static void job_free(struct job *job)
{
	free(job->own_name);
	free(job->own_new_name);
	free(job->own_bytes);
	free(job);
}

/*
 * Copies a job to be queued. The data that @job points to belong to the request, and are valid only
 * until its thread returns. NULL: out of memory.
 */
static struct job *job_copy(const struct job *job)
{
	struct job *copy = malloc(sizeof(*copy));
	bool has_bytes = job->bytes && job->size;

	if (!copy)
		return NULL;
	*copy = *job;
	copy->own_name = job->name ? strdup(job->name) : NULL;
	copy->own_new_name = job->new_name ? strdup(job->new_name) : NULL;
	copy->own_bytes = has_bytes ? malloc(job->size) : NULL;
	if ((job->name && !copy->own_name) || (job->new_name && !copy->own_new_name) ||
	    (has_bytes && !copy->own_bytes)) {
		job_free(copy);
		return NULL;
	}
	if (has_bytes)
		memcpy(copy->own_bytes, job->bytes, job->size);
	copy->name = copy->own_name;
	copy->new_name = copy->own_new_name;
	copy->bytes = copy->own_bytes;
	return copy;
}

static size_t bytes_of(const struct job *job)
{
	return job->bytes ? job->size : 0;
}

/*
 * The owner with this id, for jobs of the kind of @job, created if there was none; to be followed
 * by leave_locked(). NULL: out of memory.
 */
static struct owner *get_locked(uid_t uid, const struct job *job)
{
	struct owner *owner = line.owners;

	while (owner && (owner->uid != uid || owner->kind != job->kind))
		owner = owner->next;
	if (owner)
		return owner;
	owner = malloc(sizeof(*owner));
	if (!owner)
		return NULL;
	/* A new owner precedes only owners that come later, or are served from now on. */
	*owner = (struct owner){
		.next = line.owners, .uid = uid, .kind = job->kind, .served_number = ++line.number};
	owner->last = &owner->first;
	line.owners = owner;
	return owner;
}

/* Frees the owner if no job of the owner is running or queued. */
static void leave_locked(struct owner *owner)
{
	struct owner **link = &line.owners;

	if (owner->running || owner->first)
		return;
	while (*link != owner)
		link = &(*link)->next;
	*link = owner->next;
	free(owner);
}

static bool may_begin_locked(const struct owner *owner)
{
	static const struct {
		unsigned int of_owner, of_all;
	} most[KINDS_COUNT] = {
		[JOB_OF_ITEM] = {GCR_SESSION_OWNER_ITEMS_MAX, GCR_SESSION_ITEMS_MAX},
		[JOB_OPEN] = {GCR_SESSION_OWNER_OPENS_MAX, GCR_SESSION_OPENS_MAX},
		[JOB_VERB] = {GCR_SESSION_OWNER_VERBS_MAX, GCR_SESSION_VERBS_MAX},
	};

	return owner->running < most[owner->kind].of_owner &&
	       line.running[owner->kind] < most[owner->kind].of_all;
}

/* Counts a job of @owner as running. */
static void begin_locked(struct owner *owner)
{
	owner->running++;
	owner->served_number = ++line.number;
	line.running[owner->kind]++;
}

static void append_locked(struct owner *owner, struct job *job)
{
	job->next = NULL;
	*owner->last = job;
	owner->last = &job->next;
	owner->jobs++;
	owner->bytes += bytes_of(job);
	line.bytes += bytes_of(job);
}

/*
 * Of the owners with the fewest running jobs, the one who was served longest ago. NULL: no owner
 * may begin a job.
 */
static struct owner *pick_locked(void)
{
	struct owner *best = NULL;

	for (struct owner *owner = line.owners; owner; owner = owner->next)
		if (owner->first && may_begin_locked(owner) &&
		    (!best || owner->running < best->running ||
		     (owner->running == best->running &&
		      owner->served_number < best->served_number)))
			best = owner;
	return best;
}

/* Takes the next job that may begin, and counts it as running. NULL: none. */
static struct job *take_locked(void)
{
	struct owner *owner = pick_locked();
	struct job *job = owner ? owner->first : NULL;

	if (!job)
		return NULL;
	owner->first = job->next;
	if (!owner->first)
		owner->last = &owner->first;
	owner->jobs--;
	owner->bytes -= bytes_of(job);
	line.bytes -= bytes_of(job);
	begin_locked(owner);
	return job;
}

/* Has the queue room for @job? */
static bool has_room_locked(const struct owner *owner, const struct job *job)
{
	uint64_t bytes = bytes_of(job);

	return line.bytes + bytes <= ALL_BYTES_MAX && owner->bytes + bytes <= OWNER_BYTES_MAX &&
	       owner->jobs < OWNER_JOBS_MAX;
}

/* Runs one step of @job. True: the job is not finished. */
static bool run_step(struct job *job)
{
	job->is_unfinished = false;
	job->run(job);
	return job->is_unfinished;
}

/*
 * A job of @owner has ended or, with @unfinished, has done a step and is queued again. Returns the
 * next job to run, or NULL.
 */
static struct job *end_turn(struct owner *owner, struct job *unfinished)
{
	struct job *next;
	GCR_LOCK_SCOPE(&line.lock);

	owner->running--;
	line.running[owner->kind]--;
	if (unfinished)
		append_locked(owner, unfinished);
	next = take_locked();
	leave_locked(owner);
	return next;
}

/*
 * Runs one step of a job that has waited in the queue; at the daemon's end it does not begin, so
 * that it does not delay that. True: the job is not finished.
 */
static bool run_queued(struct job *job)
{
	const struct gcr_daemon *daemon = fuse_req_userdata(job->request);

	if (!fuse_session_exited(daemon->session))
		return run_step(job);
	fuse_reply_err(job->request, ENODEV);
	return false;
}

/* Runs @job (NULL: none), and then queued jobs, until none may begin. */
static void run_line(struct job *job)
{
	while (job) {
		struct owner *owner = job->owner;
		bool is_unfinished = run_queued(job);

		if (!is_unfinished)
			job_free(job);
		job = end_turn(owner, is_unfinished ? job : NULL);
	}
}

/*
 * Runs the first step of @job, which stays the caller's; the rest is queued. Without memory for
 * that, the job is run to its end at once.
 */
static void run_first(struct job *job)
{
	struct job *rest = NULL;

	while (!rest && run_step(job))
		rest = job_copy(job);
	run_line(end_turn(job->owner, rest));
}

/* 1: the job has begun; 0: it may not begin yet; -ENOMEM. */
static int try_begin(struct job *job, uid_t uid)
{
	int result;
	GCR_LOCK_SCOPE(&line.lock);

	job->owner = get_locked(uid, job);
	if (!job->owner)
		return -ENOMEM;
	result = may_begin_locked(job->owner);
	if (result)
		begin_locked(job->owner);
	leave_locked(job->owner);
	return result;
}

/*
 * Queues @job, which the queue then owns. *ret_next as of end_turn(). -EAGAIN: no room in the
 * queue; -ENOMEM.
 */
static int stand_in_line(struct job *job, uid_t uid, struct job **ret_next)
{
	int result = 0;
	GCR_LOCK_SCOPE(&line.lock);

	job->owner = get_locked(uid, job);
	if (!job->owner)
		return -ENOMEM;
	if (has_room_locked(job->owner, job))
		append_locked(job->owner, job);
	else
		result = -EAGAIN;
	leave_locked(job->owner);
	/* Running jobs may have ended since try_begin(), so that a queued job can begin. */
	*ret_next = result ? NULL : take_locked();
	return result;
}

/* Runs @job now, or queues it for user @uid; without room in the queue the answer is -EAGAIN. */
static void submit(struct job *job, uid_t uid)
{
	const struct gcr_daemon *daemon = fuse_req_userdata(job->request);
	struct job *copy, *next = NULL;
	uid_t owner;
	int result;

	if (!gcr_quota_is_limited(daemon->quota, uid)) {
		while (run_step(job))
			;
		return;
	}
	owner = gcr_quota_owner(daemon->quota, uid);
	result = try_begin(job, owner);
	if (result > 0) {
		run_first(job);
		return;
	}
	copy = result ? NULL : job_copy(job);
	result = copy ? stand_in_line(copy, owner, &next) : -ENOMEM;
	if (result < 0) {
		fuse_reply_err(job->request, -result);
		if (copy)
			job_free(copy);
		return;
	}
	run_line(next);
}

/* ---- the operations ---- */

/*
 * lookup and getattr are not queued: they take a few system calls, and the kernel may keep
 * directories locked during them (two for a rename).
 */

static bool is_below(fuse_ino_t node)
{
	return gcr_node_is_in_subtree(gcr_node_kind(node));
}

/*
 * The user that a request counts for. For an open file that is its opener, because other processes
 * may act for the opener. For a request by name uid 0 may be root of a container; this check
 * neither waits nor costs much, because root of the host makes many requests.
 */
static uid_t user_of(fuse_req_t request, const struct fuse_file_info *info)
{
	const struct fuse_ctx *caller = fuse_req_ctx(request);

	if (info && info->fh)
		return session->opener(info);
	return gcr_credentials_seem_counted(caller->pid, caller->uid);
}

/*
 * The user that a write to a `ctl` counts for: the opener of the file or, if the opener is not
 * limited, the writer, for whom the opener may have opened the file.
 */
static uid_t user_of_verb(fuse_req_t request, const struct fuse_file_info *info)
{
	const struct gcr_daemon *daemon = fuse_req_userdata(request);
	uid_t opener = session->opener(info);

	return gcr_quota_is_limited(daemon->quota, opener) ? opener : user_of(request, NULL);
}

static void submit_with(struct job *job, const struct fuse_file_info *info)
{
	uid_t uid = job->kind == JOB_VERB ? user_of_verb(job->request, info)
					  : user_of(job->request, info);

	job->has_info = info;
	if (info)
		job->info = *info;
	submit(job, uid);
}

static struct fuse_file_info *info_of(struct job *job)
{
	return job->has_info ? &job->info : NULL;
}

static void run_setattr(struct job *job)
{
	real->setattr(job->request, job->node, &job->stat, job->flags, info_of(job));
}

static void turn_setattr(fuse_req_t request, fuse_ino_t node, struct stat *stat, int valid,
			 struct fuse_file_info *info)
{
	struct job job = {.run = run_setattr,
			  .request = request,
			  .node = node,
			  .stat = *stat,
			  .flags = valid};

	if (!is_below(node))
		real->setattr(request, node, stat, valid, info);
	else
		submit_with(&job, info);
}

static void run_mkdir(struct job *job)
{
	real->mkdir(job->request, job->node, job->name, job->mode);
}

static void turn_mkdir(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct job job = {
		.run = run_mkdir, .request = request, .node = parent, .name = name, .mode = mode};

	if (is_below(parent))
		submit_with(&job, NULL);
	else
		run_mkdir(&job);
}

static void run_unlink(struct job *job)
{
	real->unlink(job->request, job->node, job->name);
}

static void turn_unlink(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct job job = {.run = run_unlink, .request = request, .node = parent, .name = name};

	if (is_below(parent))
		submit_with(&job, NULL);
	else
		run_unlink(&job);
}

static void run_rmdir(struct job *job)
{
	real->rmdir(job->request, job->node, job->name);
}

static void turn_rmdir(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct job job = {.run = run_rmdir, .request = request, .node = parent, .name = name};

	if (is_below(parent))
		submit_with(&job, NULL);
	else
		run_rmdir(&job);
}

static void run_rename(struct job *job)
{
	real->rename(job->request, job->node, job->name, job->new_node, job->new_name,
		     (unsigned int)job->flags);
}

static void turn_rename(fuse_req_t request, fuse_ino_t parent, const char *name,
			fuse_ino_t new_parent, const char *new_name, unsigned int flags)
{
	struct job job = {.run = run_rename,
			  .request = request,
			  .node = parent,
			  .name = name,
			  .new_node = new_parent,
			  .new_name = new_name,
			  .flags = (int)flags};

	/*
	 * The kernel allows one rename between two directories at a time in the whole mount, and
	 * keeps both directories locked: if that one waited, all others would wait too.
	 */
	if (is_below(parent) && parent == new_parent)
		submit_with(&job, NULL);
	else
		run_rename(&job);
}

static void run_open(struct job *job)
{
	real->open(job->request, job->node, &job->info);
}

static void turn_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	struct job job = {.run = run_open,
			  .kind = is_below(node) ? JOB_OF_ITEM : JOB_OPEN,
			  .request = request,
			  .node = node};

	submit_with(&job, info);
}

static void run_opendir(struct job *job)
{
	real->opendir(job->request, job->node, &job->info);
}

/* The listing of the mount's root looks at each process if the caller is in another pid namespace.
 */
static void turn_opendir(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	bool is_long = is_below(node) || node == FUSE_ROOT_ID;
	struct job job = {.run = run_opendir,
			  .kind = is_long ? JOB_OF_ITEM : JOB_OPEN,
			  .request = request,
			  .node = node};

	submit_with(&job, info);
}

static void run_create(struct job *job)
{
	real->create(job->request, job->node, job->name, job->mode, &job->info);
}

static void turn_create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
			struct fuse_file_info *info)
{
	struct job job = {
		.run = run_create, .request = request, .node = parent, .name = name, .mode = mode};

	if (is_below(parent))
		submit_with(&job, info);
	else
		real->create(request, parent, name, mode, info);
}

static void run_read(struct job *job)
{
	real->read(job->request, job->node, job->size, job->offset, &job->info);
}

static void turn_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
		      struct fuse_file_info *info)
{
	struct job job = {
		.run = run_read, .request = request, .node = node, .size = size, .offset = offset};

	if (is_below(node))
		submit_with(&job, info);
	else
		real->read(request, node, size, offset, info);
}

static void run_write(struct job *job)
{
	real->write(job->request, job->node, job->bytes, job->size, job->offset, &job->info);
}

static void turn_write(fuse_req_t request, fuse_ino_t node, const char *bytes, size_t size,
		       off_t offset, struct fuse_file_info *info)
{
	bool is_ctl = gcr_node_is_ctl(gcr_node_kind(node));
	struct job job = {.run = run_write,
			  .kind = is_ctl ? JOB_VERB : JOB_OF_ITEM,
			  .request = request,
			  .node = node,
			  .bytes = bytes,
			  .size = size,
			  .offset = offset};

	if (is_below(node) || is_ctl)
		submit_with(&job, info);
	else
		real->write(request, node, bytes, size, offset, info);
}

static void run_lseek(struct job *job)
{
	real->lseek(job->request, job->node, job->offset, job->flags, &job->info);
}

static void turn_lseek(fuse_req_t request, fuse_ino_t node, off_t offset, int whence,
		       struct fuse_file_info *info)
{
	struct job job = {.run = run_lseek,
			  .request = request,
			  .node = node,
			  .offset = offset,
			  .flags = whence};

	if (is_below(node))
		submit_with(&job, info);
	else
		real->lseek(request, node, offset, whence, info);
}

/* The watchdog sees each step as an operation of its own; it sees other operations as a whole. */
static void run_fallocate(struct job *job)
{
	const struct gcr_daemon *daemon = fuse_req_userdata(job->request);
	struct gcr_watched watched;

	/* Do not delay the end of the daemon. */
	if (fuse_session_exited(daemon->session)) {
		fuse_reply_err(job->request, ENODEV);
		return;
	}
	gcr_watchdog_begin(&watched, "fallocate", job->node, gcr_node_name(job->node),
			   fuse_req_ctx(job->request)->pid);
	job->is_unfinished = !session->allocate_some(job->request, &job->allocation, &job->info);
	gcr_watchdog_end(&watched);
}

static void turn_fallocate(fuse_req_t request, fuse_ino_t node, int mode, off_t offset,
			   off_t length, struct fuse_file_info *info)
{
	struct job job = {.run = run_fallocate, .request = request, .node = node};

	if (offset < 0 || length < 0 || length > INT64_MAX - offset) {
		fuse_reply_err(request, EFBIG);
		return;
	}
	job.allocation = (struct gcr_subtree_allocation){
		.mode = mode, .offset = (uint64_t)offset, .end = (uint64_t)(offset + length)};
	if (is_below(node))
		submit_with(&job, info);
	else
		fuse_reply_err(request, EPERM);
}

const struct fuse_lowlevel_ops *gcr_session_in_turn(const struct fuse_lowlevel_ops *operations,
						    const struct gcr_session_turns *turns)
{
	static struct fuse_lowlevel_ops in_turn;

	real = operations;
	session = turns;
	in_turn = *operations;
	in_turn.setattr = turn_setattr;
	in_turn.mkdir = turn_mkdir;
	in_turn.unlink = turn_unlink;
	in_turn.rmdir = turn_rmdir;
	in_turn.rename = turn_rename;
	in_turn.open = turn_open;
	in_turn.opendir = turn_opendir;
	in_turn.create = turn_create;
	in_turn.read = turn_read;
	in_turn.write = turn_write;
	in_turn.lseek = turn_lseek;
	in_turn.fallocate = turn_fallocate;
	return &in_turn;
}
