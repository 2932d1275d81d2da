/* SPDX-License-Identifier: MIT */
/*
 * A lying preload library in complete verbs. This process is the daemon, all of it but the mount
 * and the helper programs. First byte: the lowest 2 bits give the number of verbs; bit 2: the liar
 * has managed memory too; bit 3: the liar uses the honest program's GPU. Second byte: the verbs, 2
 * bits each: freeze, thaw, freeze data, or cancel of the verb under way. The rest controls the lies
 * (peer_program.c).
 *
 * At the same time an honest program is frozen and thawed, and must keep its contents. Each verb
 * must be answered in time. After the liar is killed, no task, process, file or descriptor of it
 * may be left.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/counters.h"
#include "fs/base/event.h"
#include "fs/base/loop.h"
#include "fs/base/quota.h"
#include "fs/base/refusals.h"
#include "fs/base/waiter.h"
#include "fs/daemon.h"
#include "fs/engine/admission.h"
#include "fs/helper/helper.h"
#include "fs/image/place.h"
#include "fs/job/operation.h"
#include "fs/job/sampler.h"
#include "fs/process/gpus.h"
#include "fs/process/library.h"
#include "fs/process/process.h"
#include "fs/process/registry.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "test/fuzz/fuzz.h"
#include "test/fuzz/peer.h"

/* Deadline of a verb on the liar, and how much later the answer may come on a busy machine. */
#define TIMEOUT_USEC (300 * GCR_USEC_PER_MSEC)
#define LATE_USEC    (4 * GCR_USEC_PER_SEC)
/* Time for everything to come to rest after the liar's death. */
#define QUIET_USEC   (15 * GCR_USEC_PER_SEC)

static struct gcr_daemon served = {.runtime_fd = -1, .only_uid = (uid_t)-1};
static char directory[64];
static char socket_path[96];
static struct peer_program *honest;
static struct gcr_process *honest_process;

/* ---- the daemon ---- */

static void start_daemon(void)
{
	struct gcr_error error = {0};
	int result;

	signal(SIGPIPE, SIG_IGN);
	for (unsigned int i = 0; i < GCR_BACKENDS_COUNT; i++) {
		struct gcr_vendor *vendor = &served.vendors[i];

		vendor->backend = gcr_backends[i];
		vendor->index = i;
		vendor->memory_links[0] = strdup("/nowhere/");
		CHECK(vendor->memory_links[0] && !gcr_helpers_create(NULL, &vendor->helpers));
	}
	if (geteuid())
		served.only_uid = geteuid();
	served.options.simulator = 1;
	served.options.runtime_directory = directory;
	served.options.store_bytes = 512ull << 20;
	served.device_directory = directory;
	served.runtime_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(served.runtime_fd >= 0);
	served.admission = gcr_admission_create();
	CHECK(served.admission);
	result = gcr_event_log_create(&served.events);
	result = result ? result : gcr_refusals_create(geteuid(), &served.refusals);
	result = result ? result
			: gcr_quota_create(&served.options.user_limits, "/nowhere", 0,
					   &served.quota);
	result = result ? result : gcr_counters_create(&served.counters);
	result = result ? result : gcr_loop_create(&served.loop);
	result = result ? result : gcr_processes_create(&served, &served.processes);
	result = result ? result : gcr_waiters_create(&served.waiters);
	result = result ? result : gcr_gpus_create(&served, &served.gpus, &error);
	result = result ? result : gcr_store_create(&served, &served.store, &error);
	result = result ? result : gcr_places_create(&served, &served.places);
	if (!result)
		gcr_operations_create(&served);
	result = result ? result : gcr_sampler_create(&served, &served.sampler);
	result = result ? result : gcr_registry_create(&served, &served.registry, &error);
	if (result)
		fprintf(stderr, "the daemon does not start: %s\n", error.words);
	CHECK(!result);
	atomic_store(&served.recovered, true);
}

static struct gcr_process *find(pid_t pid)
{
	struct gcr_process **list, *found = NULL;
	size_t count;

	CHECK(!gcr_processes_list(served.processes, &list, &count));
	for (size_t i = 0; i < count; i++)
		if (list[i]->pid == pid)
			found = gcr_process_ref(list[i]);
	gcr_processes_list_free(list, count);
	return found;
}

/* Waits until the library of the process has registered; returns the process. */
static struct gcr_process *wait_registered(pid_t pid)
{
	int64_t until_usec = gcr_clock_usec() + LATE_USEC;

	for (;;) {
		struct gcr_process *process = find(pid);
		struct gcr_page_facts facts;

		if (process && !gcr_library_facts(process, &facts))
			return process;
		gcr_process_unref(process);
		CHECK(gcr_clock_usec() < until_usec);
		sched_yield();
	}
}

/* ---- verbs ---- */

struct wait {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_over;
	int number;
	int64_t begun_usec, over_usec;
};

static void is_answered(void *data, int number)
{
	struct wait *wait = data;

	pthread_mutex_lock(&wait->lock);
	wait->is_over = true;
	wait->number = number;
	wait->over_usec = gcr_clock_usec();
	pthread_cond_broadcast(&wait->changed);
	pthread_mutex_unlock(&wait->lock);
}

static void begin(struct gcr_process *process, enum gcr_verb verb, bool data, int64_t timeout_usec,
		  struct wait *wait)
{
	struct gcr_command command = {.verb = verb, .data = data, .timeout_usec = timeout_usec};
	struct gcr_waiter *waiter;
	struct gcr_error error = {0};
	bool is_done = false;
	int result;

	*wait = (struct wait){.begun_usec = gcr_clock_usec()};
	pthread_mutex_init(&wait->lock, NULL);
	pthread_cond_init(&wait->changed, NULL);
	CHECK(!gcr_waiter_create_local(is_answered, wait, &waiter));
	result =
		gcr_operation_start(&served, &command, &process, NULL, 1, waiter, &is_done, &error);
	if (result < 0 || is_done)
		is_answered(wait, -result);
	gcr_waiter_unref(waiter);
}

/* Waits for the end of the verb; returns its positive errno. */
static int end(struct wait *wait, int64_t within_usec)
{
	int64_t until_usec = wait->begun_usec + within_usec;

	pthread_mutex_lock(&wait->lock);
	while (!wait->is_over) {
		int result = gcr_cond_wait_until(&wait->changed, &wait->lock, until_usec);

		/* A verb has exceeded its deadline. */
		CHECK(wait->is_over || result != -ETIMEDOUT);
	}
	pthread_mutex_unlock(&wait->lock);
	CHECK(wait->over_usec - wait->begun_usec <= within_usec);
	pthread_cond_destroy(&wait->changed);
	pthread_mutex_destroy(&wait->lock);
	return wait->number;
}

static bool has_task(struct gcr_process *process)
{
	bool has;

	pthread_mutex_lock(&process->lock);
	has = process->task;
	pthread_mutex_unlock(&process->lock);
	return has;
}

static void wait_no_task(struct gcr_process *process)
{
	int64_t until_usec = gcr_clock_usec() + QUIET_USEC;

	while (has_task(process)) {
		CHECK(gcr_clock_usec() < until_usec);
		poll(NULL, 0, 1);
	}
}

/* ---- leftovers ---- */

static size_t count_entries(const char *path)
{
	_cleanup_closedir_ DIR *list = opendir(path);
	const struct dirent *entry;
	size_t count = 0;

	while (list && (entry = readdir(list)))
		count += *entry->d_name != '.';
	return count;
}

static size_t count_files(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return count_entries(path);
}

/* Threads of the daemon may finish their work a moment later, so the check retries. */
static void check_nothing_left(size_t descriptors)
{
	int64_t until_usec = gcr_clock_usec() + QUIET_USEC;
	size_t now;

	while ((now = count_entries("/proc/self/fd")) > descriptors || count_files("processes")) {
		if (gcr_clock_usec() > until_usec) {
			fprintf(stderr, "%zu descriptors, were %zu; %zu records\n", now,
				descriptors, count_files("processes"));
			CHECK(!"something is left");
		}
		poll(NULL, 0, 1);
	}
}

static void unmount(void)
{
	char path[96];

	kill(honest->pid, SIGKILL);
	snprintf(path, sizeof(path), "%s/store", directory);
	umount2(path, MNT_DETACH);
	rmdir(path);
	snprintf(path, sizeof(path), "%s/processes", directory);
	rmdir(path);
	unlink(socket_path);
	rmdir(directory);
}

static size_t prepare(void)
{
	const char *parent = getenv("TMPDIR");
	struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
	struct wait wait;
	size_t count;

	/* A low limit: leaked descriptors are noticed, and descriptor tables stay small. */
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	/* The store is mounted in a private mount namespace, which ends with this process. */
	if (!geteuid())
		CHECK(!unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	snprintf(directory, sizeof(directory), "%s/gpucrfs-fuzz-XXXXXX", parent ? parent : "/tmp");
	CHECK(mkdtemp(directory) && !chmod(directory, 0755));
	snprintf(socket_path, sizeof(socket_path), "%s/socket", directory);
	start_daemon();
	honest = peer_program_start(socket_path, 1, 2, 0, NULL, 0);
	atexit(unmount);
	honest_process = wait_registered(honest->pid);
	begin(honest_process, GCR_VERB_FREEZE, false, 0, &wait);
	CHECK(!end(&wait, QUIET_USEC));
	begin(honest_process, GCR_VERB_THAW, false, 0, &wait);
	CHECK(!end(&wait, QUIET_USEC));
	wait_no_task(honest_process);
	count = count_entries("/proc/self/fd");
	/*
	 * The sampler of the GPUs, and the removal of thawed files, open descriptors for a moment:
	 * take the minimum.
	 */
	for (int i = 0; i < 20; i++) {
		size_t now = count_entries("/proc/self/fd");

		count = now < count ? now : count;
		poll(NULL, 0, 10);
	}
	return count + 8;
}

/* Carries out a verb on the liar and one on the honest program at the same time. */
static void do_verb(struct gcr_process *process, unsigned int which, unsigned int round)
{
	enum gcr_verb verb = which == 1 ? GCR_VERB_THAW : GCR_VERB_FREEZE;
	struct wait its, honests;
	int number;

	begin(honest_process, round % 2 ? GCR_VERB_THAW : GCR_VERB_FREEZE, false, 0, &honests);
	if (which == 3) {
		gcr_operation_cancel(&process, 1, NULL, NULL, NULL);
	} else {
		begin(process, verb, which == 2, TIMEOUT_USEC, &its);
		number = end(&its, TIMEOUT_USEC + LATE_USEC);
		CHECK(number >= 0 && number < 4096);
	}
	number = end(&honests, QUIET_USEC);
	if (number)
		fprintf(stderr, "the honest program: %s\n", strerrorname_np(number));
	CHECK(!number);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static size_t descriptors;
	struct peer_program *liar;
	struct gcr_process *process;
	unsigned int verbs;
	struct wait wait;

	if (size < 2 || size > 4096)
		return 0;
	if (!descriptors)
		descriptors = prepare();
	liar = peer_program_start(socket_path, data[0] & 8 ? 1 : 0, 2, data[0] & 4 ? 1 : 0,
				  data + 2, size - 2);
	process = wait_registered(liar->pid);
	verbs = data[0] % 4 + 1;
	for (unsigned int i = 0; i < verbs; i++)
		do_verb(process, data[1] >> 2 * i & 3, i);
	if (verbs % 2) {
		begin(honest_process, GCR_VERB_THAW, false, 0, &wait);
		CHECK(!end(&wait, QUIET_USEC));
	}
	wait_no_task(honest_process);
	CHECK(peer_program_is_right(honest));

	peer_program_end(liar);
	CHECK(gcr_process_has_ended(process));
	wait_no_task(process);
	gcr_process_unref(process);
	check_nothing_left(descriptors);
	return 0;
}
