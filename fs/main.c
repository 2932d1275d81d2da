/* SPDX-License-Identifier: MIT */
/*
 * The daemon's main program: starts its parts in order, and stops them in reverse. Threads start
 * only after the daemon has gone to the background.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "config.h"
#if HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "fs/base/counters.h"
#include "fs/base/credentials.h"
#include "fs/base/event.h"
#include "fs/base/log.h"
#include "fs/base/loop.h"
#include "fs/base/mountpoint.h"
#include "fs/base/own_environment.h"
#include "fs/base/pollers.h"
#include "fs/base/quota.h"
#include "fs/base/refusals.h"
#include "fs/base/waiter.h"
#include "fs/base/watchdog.h"
#include "fs/daemon.h"
#include "fs/engine/admission.h"
#include "fs/engine/emptying.h"
#include "fs/helper/helper.h"
#include "fs/helper/looker.h"
#include "fs/helper/receiver.h"
#include "fs/image/criu_run.h"
#include "fs/image/dump.h"
#include "fs/image/place.h"
#include "fs/image/restore.h"
#include "fs/job/operation.h"
#include "fs/job/recover.h"
#include "fs/job/sampler.h"
#include "fs/mount/render_turn.h"
#include "fs/mount/session.h"
#include "fs/options.h"
#include "fs/process/gpus.h"
#include "fs/process/process.h"
#include "fs/process/registry.h"
#include "fs/process/scan.h"
#include "fs/process/vendor.h"
#include "fs/store/store.h"
#include "fs/verb/pack_after.h"
#include "fs/verb/packing.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/trusted_path.h"

/* How long recovery may delay the mount at start; after that it continues in the background. */
#define RECOVERY_WAIT_USEC (10 * GCR_USEC_PER_SEC)

/* The check interval of the watchdog where systemd does not set one. */
#define WATCH_USEC (30 * GCR_USEC_PER_SEC)

#define MALLOC_ARENAS	  4
#define MALLOC_KEPT_BYTES (256 << 10)

#define LOCK_ATTEMPTS	25
#define LOCK_RETRY_MSEC 20

/* The daemon reports its start to the waiting parent through this pipe. */
static int ready_fd = -1;

static int fail(const struct gcr_error *error)
{
	gcr_log(LOG_ERR, 0, "%s", error->words);
	return EXIT_FAILURE;
}

/*
 * Reads fs.fuse.max_request_timeout (Linux 6.14), beyond which one request aborts the whole mount.
 * Returns microseconds; 0: no limit.
 */
static int64_t read_max_request(void)
{
	_cleanup_fclose_ FILE *file = fopen("/proc/sys/fs/fuse/max_request_timeout", "re");
	long seconds;

	if (!file || fscanf(file, "%ld", &seconds) != 1 || seconds <= 0)
		return 0;
	gcr_log(LOG_WARNING, 0,
		"fs.fuse.max_request_timeout is %ld s: verbs that take longer are given up",
		seconds);
	return seconds * GCR_USEC_PER_SEC;
}

/*
 * Takes the lock of the runtime directory. If a daemon was killed while it started a helper, the
 * child holds the lock until it executes the helper: retry for a moment.
 */
static int take_lock(int fd)
{
	for (int attempt = 0; attempt < LOCK_ATTEMPTS; attempt++) {
		if (!flock(fd, LOCK_EX | LOCK_NB))
			return 0;
		poll(NULL, 0, LOCK_RETRY_MSEC);
	}
	return -EBUSY;
}

static int open_runtime_directory(struct gcr_daemon *daemon, struct gcr_error *error)
{
	const char *path = daemon->options.runtime_directory;
	_cleanup_close_ int fd = -1;
	_cleanup_close_ int lock_fd = -1;
	struct stat stat;

	/*
	 * Other users may connect to the socket in root's directory, but only root may write there.
	 */
	if (mkdir(path, daemon->only_uid == (uid_t)-1 ? 0755 : 0700) < 0 && errno != EEXIST)
		return gcr_error_set(error, errno, "cannot make %s: %s", path, strerror(errno));
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &stat) < 0)
		return gcr_error_set(error, errno, "cannot open %s: %s", path, strerror(errno));
	if (stat.st_uid != geteuid() || stat.st_mode & (S_IWGRP | S_IWOTH))
		return gcr_error_set(error, EPERM,
				     "%s belongs to somebody else or can be written by others",
				     path);
	lock_fd = openat(fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (lock_fd < 0)
		return gcr_error_set(error, errno, "cannot open %s/lock: %s", path,
				     strerror(errno));
	if (take_lock(lock_fd) < 0)
		return gcr_error_set(error, EBUSY,
				     "another gpucrfs runs with %s; -o runtime_dir=DIR makes a "
				     "second one possible",
				     path);
	TAKE_FD(lock_fd); /* held until the daemon ends */
	daemon->runtime_fd = TAKE_FD(fd);
	return 0;
}

/* The simulator's directory: of the option, of the environment, or the default. */
static int find_simulator(const struct gcr_daemon *daemon, char **ret_directory,
			  struct gcr_error *error)
{
	const char *given = getenv("GPUCR_SIM_DIR");
	char *directory;

	if (daemon->options.simulator_state)
		directory = strdup(daemon->options.simulator_state);
	else if (given && *given)
		return gcr_trusted_directory("GPUCR_SIM_DIR", given, ret_directory, error);
	else if (asprintf(&directory, "/dev/shm/gpucr-sim-%u", (unsigned int)geteuid()) < 0)
		directory = NULL;
	if (!directory)
		return gcr_error_set(error, ENOMEM, "out of memory");
	*ret_directory = directory;
	return 0;
}

/*
 * Sets the directory of the device files, and exports the simulator's directory to the helpers. On
 * real GPUs a helper must find none: it would believe what the files there say of GPUs.
 */
static int set_device_directory(struct gcr_daemon *daemon, struct gcr_error *error)
{
	int result;

	if (!daemon->options.simulator) {
		unsetenv("GPUCR_SIM_DIR");
		daemon->device_directory = strdup("/dev");
		return daemon->device_directory ? 0 : gcr_error_set(error, ENOMEM, "out of memory");
	}
	result = find_simulator(daemon, &daemon->device_directory, error);
	if (!result && setenv("GPUCR_SIM_DIR", daemon->device_directory, 1))
		result = gcr_error_set(error, ENOMEM, "out of memory");
	return result;
}

/* Directories of programs or libraries, which the variable @name of the environment may contain. */
static int from_environment(const char *name, const char *otherwise, char **ret_directories,
			    struct gcr_error *error)
{
	const char *value = getenv(name);

	if (value && *value)
		return gcr_trusted_paths(name, value, ret_directories, error);
	*ret_directories = strdup(otherwise);
	return *ret_directories ? 0 : gcr_error_set(error, ENOMEM, "out of memory");
}

static int find_programs(struct gcr_daemon *daemon, struct gcr_error *error)
{
	int result = from_environment("GPUCR_HELPER_DIR", GCR_HELPER_DIRECTORY,
				      &daemon->helper_directory, error);

	if (!result && daemon->options.simulator)
		result = from_environment("GPUCR_SIM_LIBDIR", GCR_SIMULATOR_DIRECTORY,
					  &daemon->simulator_libraries, error);
	return result;
}

static bool ignore_pid(pid_t pid, void *data)
{
	struct gcr_daemon *daemon = data;

	return gcr_vendor_owns_helper(daemon, pid);
}

static void pass_done(const struct gcr_scan_holder *holders, size_t count, void *data)
{
	struct gcr_daemon *daemon = data;

	gcr_processes_update(daemon->processes, holders, count);
}

/*
 * Creates the helpers of every vendor; those of a vendor without a GPU here stay unused. 0 or
 * -errno.
 */
static int create_helpers(struct gcr_daemon *daemon)
{
	struct gcr_helpers_config config = {
		.helper_directory = daemon->helper_directory,
		.keep_stderr = daemon->options.foreground,
		.idle_usec = (int64_t)daemon->options.worker_idle * GCR_USEC_PER_SEC,
	};
	int result = 0;

	config.simulator_directory = daemon->simulator_libraries;
	for (unsigned int i = 0; i < GCR_BACKENDS_COUNT && !result; i++) {
		struct gcr_vendor *vendor = &daemon->vendors[i];

		vendor->backend = config.backend = gcr_backends[i];
		vendor->index = i;
		result = gcr_vendor_set_links(vendor, daemon->device_directory,
					      daemon->options.simulator);
		if (result < 0)
			return result;
		if (vendor->backend->memory_device &&
		    asprintf(&vendor->memory_device, "%s/%s", daemon->device_directory,
			     vendor->backend->memory_device) < 0) {
			vendor->memory_device = NULL;
			return -ENOMEM;
		}
		result = gcr_helpers_create(&config, &vendor->helpers);
	}
	return result;
}

/* Sets an error that lists the possible reasons for a machine without a usable GPU. */
static int fail_without_device(struct gcr_error *error)
{
	char words[GCR_ERROR_WORDS_MAX] = "";

	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		size_t used = strlen(words);

		snprintf(words + used, sizeof(words) - used, "%s%s; ", used ? "and " : "",
			 gcr_backends[i]->no_device_words);
	}
	return gcr_error_set(error, ENODEV, "%s-o sim shows how it works without a GPU", words);
}

static int start_scan(struct gcr_daemon *daemon, struct gcr_error *error)
{
	struct gcr_scan_config config = {
		.only_uid = daemon->only_uid,
		.ignore = ignore_pid,
		.look = gcr_looker_devices,
		.look_many = gcr_looker_devices_of_many,
		.owner_of = gcr_looker_owner,
		.pass = pass_done,
		.data = daemon,
	};
	char *paths[GCR_BACKENDS_COUNT] = {NULL};
	int result = 0;

	for (size_t i = 0; i < GCR_BACKENDS_COUNT && !result; i++) {
		const struct gcr_backend *backend = gcr_backends[i];

		if (!daemon->vendors[i].is_here)
			continue;
		if (asprintf(&paths[i], "%s/%s", daemon->device_directory,
			     backend->compute_device) < 0) {
			paths[i] = NULL;
			result = gcr_error_set(error, ENOMEM, "out of memory");
		}
		config.devices[i] = (struct gcr_scan_device){
			.path = paths[i],
			.mapped = backend->mapped_devices,
			.sibling = backend->gpu_device,
		};
	}
	if (!result && (result = gcr_scan_create(&config, &daemon->scan)) < 0)
		gcr_error_set(error, -result, "cannot watch the devices in %s: %s",
			      daemon->device_directory, strerror(-result));
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		free(paths[i]);
	return result;
}

static uid_t owner_of(uid_t uid, void *data)
{
	struct gcr_daemon *daemon = data;

	return gcr_quota_owner(daemon->quota, uid);
}

/*
 * Creates the quota. Called after raise_descriptor_limit(), whose result it uses, and before any
 * thread looks at processes.
 */
static int create_quota(struct gcr_daemon *daemon)
{
	const char *subuids = daemon->options.user_subuids;
	struct rlimit limit;
	uint64_t most = 0;
	int r;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur != RLIM_INFINITY)
		most = gcr_quota_descriptors(limit.rlim_cur);
	r = gcr_quota_create(&daemon->options.user_limits, subuids ? subuids : "/etc/subuid", most,
			     &daemon->quota);
	if (r == 0)
		gcr_looker_set_owners(owner_of, daemon);
	return r;
}

/* Creates what needs neither a GPU nor the store. Errors, with a message: -errno. */
static int create_tables(struct gcr_daemon *daemon, struct gcr_error *error)
{
	int result = gcr_event_log_create(&daemon->events);

	if (!result)
		result = gcr_refusals_create(geteuid(), &daemon->refusals);
	if (!result)
		result = create_quota(daemon);
	if (!result)
		result = gcr_counters_create(&daemon->counters);
	if (!result) {
		daemon->admission = gcr_admission_create();
		result = daemon->admission ? 0 : -ENOMEM;
	}
	if (!result)
		result = gcr_loop_create(&daemon->loop);
	if (!result)
		result = create_helpers(daemon);
	if (!result)
		result = gcr_processes_create(daemon, &daemon->processes);
	if (!result)
		result = gcr_waiters_create(&daemon->waiters);
	if (!result)
		result = gcr_render_turns_create(daemon->quota, &daemon->render_turns);
	if (result < 0)
		return gcr_error_set(error, -result, "cannot start: %s", strerror(-result));
	result = gcr_pollers_start();
	if (result < 0)
		return gcr_error_set(error, -result,
				     "cannot start the thread that notifies the pollers of events: "
				     "%s",
				     strerror(-result));
	return 0;
}

/* Opens the GPUs, the store, and the places in it. Errors, with a message: -errno. */
static int open_store(struct gcr_daemon *daemon, struct gcr_error *error)
{
	int result = gcr_gpus_create(daemon, &daemon->gpus, error);

	if (result == -ENODEV && !daemon->options.simulator)
		return fail_without_device(error);
	if (!result)
		result = gcr_store_create(daemon, &daemon->store, error);
	if (result < 0)
		return result;
	gcr_store_count_by(daemon->store, gcr_credentials_payer);
	result = gcr_places_create(daemon, &daemon->places);
	if (result < 0)
		return gcr_error_set(error, -result, "what is incoming cannot be read: %s",
				     strerror(-result));
	return 0;
}

static int start_parts(struct gcr_daemon *daemon, struct gcr_error *error)
{
	int result = find_programs(daemon, error);

	/* Before any process is looked at. */
	if (!result)
		result = gcr_looker_start(daemon->helper_directory, daemon->options.foreground,
					  error);
	if (!result)
		result = create_tables(daemon, error);
	if (!result)
		result = open_store(daemon, error);
	if (result < 0)
		return result;
	gcr_operations_create(daemon);

	/* Stopped processes cannot take part in their recovery: they continue first. */
	gcr_dump_recover(daemon);

	/* Before the records are read: the trees that this ends may have records. */
	gcr_restores_recover(daemon);
	gcr_criu_sweep(daemon);

	/* Before a library can connect: afterwards the vendor of each recorded process is known. */
	result = gcr_recover_list(daemon);
	if (result < 0)
		return gcr_error_set(error, -result, "the records cannot be read: %s",
				     strerror(-result));

	result = gcr_emptying_start(daemon, error);
	if (result < 0)
		return result;
	result = gcr_receivers_start(daemon, daemon->helper_directory, daemon->options.foreground,
				     error);
	if (result < 0)
		return result;

	/* Before the registry: the sampler is notified of libraries. */
	result = gcr_sampler_create(daemon, &daemon->sampler);
	if (result < 0)
		return gcr_error_set(error, -result, "cannot start: %s", strerror(-result));
	result = gcr_registry_create(daemon, &daemon->registry, error);
	if (result < 0)
		return result;

	/*
	 * Before the first pass: the scan would remove a frozen process as one that released the
	 * GPU.
	 */
	result = gcr_recover(daemon);
	if (result < 0)
		return gcr_error_set(error, -result, "the records cannot be read: %s",
				     strerror(-result));
	gcr_store_sweep(daemon->store);
	result = gcr_pack_after_create(daemon, &daemon->pack_after);
	if (result < 0)
		return gcr_error_set(error, -result, "cannot start: %s", strerror(-result));

	result = start_scan(daemon, error);
	if (result < 0)
		return result;
	/* After the scan has started: this call asks the scan which processes use a GPU. */
	gcr_restores_recover_thawed(daemon);
	return 0;
}

/*
 * Stops the parts in reverse order; each part notifies only parts that still exist. Parts that were
 * never started (NULL) are allowed.
 */
static void stop_parts(struct gcr_daemon *daemon)
{
	/* The texts show all parts below. Opens that wait for figures are answered later. */
	gcr_render_turns_stop(daemon->render_turns);
	/* None are left after a regular end; after a failed start recovery may be under way. */
	gcr_restores_stop(daemon);
	gcr_operations_stop(daemon);
	gcr_pack_after_destroy(daemon->pack_after);
	gcr_packings_stop(daemon);
	if (daemon->loop)
		gcr_loop_stop(daemon->loop);
	gcr_sampler_destroy(daemon->sampler);
	gcr_scan_destroy(daemon->scan);
	gcr_registry_destroy(daemon->registry);
	gcr_gpus_destroy(daemon->gpus);
	gcr_admission_destroy(daemon->admission);
	gcr_waiters_destroy(daemon->waiters);
	/* The kernel wakes all pollers when the session ends. */
	gcr_pollers_stop();
	gcr_session_destroy(daemon);
	gcr_render_turns_destroy(daemon->render_turns);
	gcr_processes_destroy(daemon->processes);
	/* The last connections have been closed now. */
	gcr_receivers_stop();
	gcr_emptying_stop();
	gcr_places_destroy(daemon->places);
	gcr_store_destroy(daemon->store);
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		gcr_helpers_destroy(daemon->vendors[i].helpers);
		gcr_vendor_free_links(&daemon->vendors[i]);
		free(daemon->vendors[i].memory_device);
	}
	gcr_loop_destroy(daemon->loop);
	gcr_counters_destroy(daemon->counters);
	gcr_refusals_destroy(daemon->refusals);
	gcr_event_log_unref(daemon->events);
	gcr_looker_stop();
	gcr_quota_destroy(daemon->quota);
}

/*
 * Logs and reports readiness. Nothing in the daemon tests the mount by a request: a daemon killed
 * while it waits for its own answer would never end.
 */
static void tell_ready(struct gcr_daemon *daemon)
{
	char byte = 0;

	if (ready_fd >= 0)
		gcr_log_to_syslog();
	gcr_log(LOG_NOTICE, 0, "%s is mounted, %u GPU%s", daemon->options.mountpoint,
		gcr_gpus_count(daemon->gpus), gcr_gpus_count(daemon->gpus) == 1 ? "" : "s");
#if HAVE_SYSTEMD
	sd_notify(0, "READY=1");
#endif
	if (ready_fd >= 0) {
		_cleanup_close_ int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

		dup2(null_fd, STDIN_FILENO);
		dup2(null_fd, STDOUT_FILENO);
		dup2(null_fd, STDERR_FILENO);
		if (write(ready_fd, &byte, 1) == 1)
			close(ready_fd);
		ready_fd = -1;
	}
}

#if HAVE_SYSTEMD
static void tell_well(void)
{
	sd_notify(0, "WATCHDOG=1");
}
#endif

static int start_watchdog(struct gcr_watchdog **ret_watchdog)
{
	struct gcr_watchdog_config config = {
		.legal_usec = GCR_WATCHDOG_LEGAL_USEC,
		.period_usec = WATCH_USEC,
	};
#if HAVE_SYSTEMD
	uint64_t usec;

	/* Three times per interval: one notification may be late on a busy machine. */
	if (sd_watchdog_enabled(0, &usec) > 0) {
		config.well = tell_well;
		if (usec / 3 < WATCH_USEC)
			config.period_usec = (int64_t)(usec / 3);
	}
#endif
	return gcr_watchdog_create(&config, ret_watchdog);
}

static void *wait_for_signals(void *data)
{
	struct gcr_daemon *daemon = data;
	sigset_t signals;
	int number;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	while (sigwait(&signals, &number))
		;
	gcr_log(LOG_NOTICE, 0, "stopping; frozen processes stay frozen");
#if HAVE_SYSTEMD
	sd_notify(0, "STOPPING=1");
#endif
	gcr_restores_stop(daemon);
	gcr_operations_stop(daemon);
	gcr_packings_stop(daemon);
	gcr_session_stop(daemon);
	return NULL;
}

/* Resets SIGCHLD, which our parent process may have had ignored: waitpid() would not work then. */
static void notice_children(void)
{
	signal(SIGCHLD, SIG_DFL);
}

static void block_signals(void)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/*
 * Opens descriptors 0 to 2 if they were closed at our start: otherwise our own files would get
 * these numbers, and the helpers' stderr would be such a file.
 */
static void have_standard_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

/* Raises the descriptor limit to the maximum: each pidfd, event reader and task needs one. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int serve(struct gcr_daemon *daemon)
{
	struct gcr_watchdog *watchdog = NULL;
	struct gcr_error error = {0};
	pthread_t signals;
	int result;

	result = open_runtime_directory(daemon, &error);
	if (!result)
		result = set_device_directory(daemon, &error);
	if (!result)
		result = start_parts(daemon, &error);
	if (!result)
		gcr_operations_wait(RECOVERY_WAIT_USEC);
	if (!result)
		gcr_recover_swaps(daemon);
	if (!result)
		gcr_mountpoint_protect(daemon);
	if (!result)
		result = gcr_session_create(daemon, tell_ready, &error);
	if (result < 0) {
		stop_parts(daemon);
		gcr_mountpoint_release(daemon);
		return fail(&error);
	}
	gcr_mountpoint_mounted();
	result = -start_watchdog(&watchdog);
	if (!result)
		result = pthread_create(&signals, NULL, wait_for_signals, daemon);
	if (!result) {
		result = gcr_session_run(daemon);
		/* Before the session's descriptor is closed: the pollers' thread writes to it. */
		gcr_pollers_stop();
		/* No process may wait for a mount that is no longer served. */
		if (result < 0)
			gcr_session_unmount(daemon);
		/* The session also ends by an unmount: the signal stops the signal thread then. */
		pthread_kill(signals, SIGTERM);
		pthread_join(signals, NULL);
	}
	gcr_watchdog_destroy(watchdog);
	stop_parts(daemon);
	gcr_mountpoint_release(daemon);
	return result ? EXIT_FAILURE : EXIT_SUCCESS;
}

/*
 * Forks, and returns in the child. The parent waits until the mount is ready, and exits with the
 * daemon's status.
 */
static int go_to_background(void)
{
	int pipe_fds[2];
	char byte;
	pid_t pid;

	if (pipe2(pipe_fds, O_CLOEXEC) < 0 || (pid = fork()) < 0) {
		fprintf(stderr, "gpucrfs: cannot go to the background: %s\n", strerror(errno));
		return -EAGAIN;
	}
	if (pid) {
		ssize_t length;

		close(pipe_fds[1]);
		do {
			length = read(pipe_fds[0], &byte, 1);
		} while (length < 0 && errno == EINTR);
		_exit(length == 1 ? EXIT_SUCCESS : EXIT_FAILURE);
	}
	close(pipe_fds[0]);
	ready_fd = pipe_fds[1];
	setsid();
	return chdir("/") < 0 ? -errno : 0;
}

/*
 * Limits memory that glibc keeps. Many threads live for one verb each, and glibc would keep each
 * one's peak in arenas, whose number depends on the CPUs: so there are few arenas, and large blocks
 * are returned at once.
 */
static void keep_little_memory(void)
{
	mallopt(M_ARENA_MAX, MALLOC_ARENAS);
	mallopt(M_MMAP_THRESHOLD, MALLOC_KEPT_BYTES);
	mallopt(M_TRIM_THRESHOLD, MALLOC_KEPT_BYTES);
}

int main(int argc, char **argv)
{
	struct gcr_daemon daemon = {
		.runtime_fd = -1,
		.only_uid = geteuid() == 0 ? (uid_t)-1 : geteuid(),
	};
	int result;

	keep_little_memory();
	have_standard_descriptors();
	notice_children();
	if (gcr_own_environment_check() < 0) {
		fprintf(stderr, "gpucrfs: out of memory\n");
		return EXIT_FAILURE;
	}
	if (gcr_options_parse(argc, argv, &daemon.options) < 0) {
		gcr_options_finish(&daemon.options);
		return EXIT_FAILURE;
	}
	if (access("/dev/fuse", R_OK | W_OK) < 0) {
		fprintf(stderr, "gpucrfs: /dev/fuse: %s\n", strerror(errno));
		gcr_options_finish(&daemon.options);
		return EXIT_FAILURE;
	}
	if (!daemon.options.foreground && go_to_background() < 0) {
		gcr_options_finish(&daemon.options);
		return EXIT_FAILURE;
	}
	block_signals();
	raise_descriptor_limit();
	daemon.max_request_usec = read_max_request();
	result = serve(&daemon);
	if (daemon.runtime_fd >= 0)
		close(daemon.runtime_fd);
	free(daemon.device_directory);
	free(daemon.helper_directory);
	free(daemon.simulator_libraries);
	gcr_options_finish(&daemon.options);
	return result;
}
