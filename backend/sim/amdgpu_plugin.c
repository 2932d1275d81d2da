/* SPDX-License-Identifier: MIT */
/*
 * The CRIU plugin that stands in for amdgpu_plugin.so of a real AMD GPU. Before the dump a
 * simulated HIP process releases everything that belongs to the machine and saves the contents of
 * its device memory in its own memory. After the restore (or after the dump, if the process
 * continues) the process gets everything back at the same addresses. The process does this itself:
 * the plugin sends requests to its restore thread, as cuCheckpointProcess* does. That thread must
 * be allowed to run, although CRIU has stopped it.
 *
 * CRIU calls all plugins in turn. If gpucrfs's own plugin is loaded, that plugin freezes the
 * process first, which needs HIP calls: this plugin then waits until CRIU has stopped all threads.
 * Otherwise this plugin begins while the process runs, so that threads inside a call can leave it.
 */
#include "backend/sim/checkpoint_message.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "criu-glue/plugin/criu_abi.h"

#define NAME		"amdgpu_plugin" /* name in the inventory image */
#define LOCK_TIMEOUT_MS 5000		/* CRIU allows 10 s for everything */

enum level { LEVEL_ERROR = 1, LEVEL_INFO = 3 };

static struct {
	int *pids; /* processes that have released their GPUs */
	size_t count;
	bool is_active, is_noted;
} dump;

/* Only the thread name is used, to find HIP processes. */
const struct sim_vendor sim_vendor = {.server_thread_name = "hip-sim-restore"};

static void __attribute__((format(printf, 2, 3))) tell(enum level level, const char *format, ...)
{
	char words[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(words, sizeof(words), format, arguments);
	va_end(arguments);
	if (print_on_level)
		print_on_level(level, "%s (%s): %s\n", level == LEVEL_ERROR ? "Error" : "Info",
			       NAME, words);
	else
		fprintf(stderr, "%s: %s\n", NAME, words);
}

/* Uses the machine from the process's environment, unless CRIU's environment names one. */
static void machine_find(int pid)
{
	_cleanup_close_ int fd = -1;
	static char text[1 << 17];
	char path[64];
	ssize_t length;

	if (getenv("GPUCR_SIM_DIR"))
		return;
	snprintf(path, sizeof(path), "/proc/%d/environ", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	for (char *word = text; word < text + length; word += strlen(word) + 1)
		if (!strncmp(word, "GPUCR_SIM_DIR=", 14))
			setenv("GPUCR_SIM_DIR", word + 14, 1);
}

/* A request runs in a separate thread: only CRIU's main thread may call ptrace. */
struct asking {
	int pid;
	struct checkpoint_request request;
	CUresult result;
	atomic_bool is_over;
};

static void *ask_it(void *data)
{
	struct asking *asking = data;

	asking->result = checkpoint_ask(asking->pid, &asking->request);
	atomic_store(&asking->is_over, true);
	return NULL;
}

/*
 * Lets a thread traced by CRIU run until the request is over, and passes on its signals. A SIGSTOP
 * (from a restore that is to leave the process stopped) is suppressed, and sent again afterwards.
 */
static int let_run(int tid, struct asking *asking)
{
	bool is_to_stop = false;
	int status;

	while (!atomic_load(&asking->is_over)) {
		int number;

		if (waitpid(tid, &status, __WALL | WNOHANG) != tid) {
			usleep(500);
			continue;
		}
		if (!WIFSTOPPED(status))
			return -ESRCH;
		number = status >> 16 ? 0 : WSTOPSIG(status);
		is_to_stop = is_to_stop || WSTOPSIG(status) == SIGSTOP;
		ptrace(PTRACE_CONT, tid, NULL, (void *)(uintptr_t)(number == SIGSTOP ? 0 : number));
	}
	if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0 || waitpid(tid, &status, __WALL) != tid ||
	    !WIFSTOPPED(status))
		return -ESRCH;
	if (is_to_stop)
		kill(asking->pid, SIGSTOP);
	return 0;
}

/*
 * Lets a process's restore thread run for one request; CRIU may have stopped the thread. Returns 0
 * or -1.
 */
static int ask(int pid, int tid, enum checkpoint_verb verb)
{
	struct asking asking = {.pid = pid,
				.request = {.verb = verb, .timeout_ms = LOCK_TIMEOUT_MS}};
	bool was_stopped;
	pthread_t thread;
	int r = 0;

	machine_find(pid);
	if (pthread_create(&thread, NULL, ask_it, &asking))
		return -1;
	was_stopped = !ptrace(PTRACE_CONT, tid, NULL, NULL);
	if (was_stopped)
		r = let_run(tid, &asking);
	pthread_join(thread, NULL);
	if (r < 0) {
		tell(LEVEL_ERROR, "thread %d of process %d cannot be stopped again", tid, pid);
		return -1;
	}
	if (asking.result)
		tell(LEVEL_ERROR, "process %d cannot %s: error %d", pid,
		     verb == CHECKPOINT_VERB_LEAVE ? "let go of its GPUs" : "have its GPUs again",
		     asking.result);
	return asking.result ? -1 : 0;
}

static bool has_left(int pid)
{
	for (size_t i = 0; i < dump.count; i++)
		if (dump.pids[i] == pid)
			return true;
	return false;
}

/* Returns -ENOTSUP after success, or if there is nothing to do: CRIU then calls the next plugin. */
static int leave(int pid)
{
	int tid = checkpoint_thread_find(pid);
	int *more;

	if (tid < 0 || has_left(pid))
		return -ENOTSUP;
	more = realloc(dump.pids, (dump.count + 1) * sizeof(*more));
	if (!more)
		return -1;
	dump.pids = more;
	if (ask(pid, tid, CHECKPOINT_VERB_LEAVE) < 0)
		return -1;
	dump.pids[dump.count++] = pid;
	if (!dump.is_noted && add_inventory_plugin && add_inventory_plugin(NAME) < 0)
		return -1;
	dump.is_noted = true;
	tell(LEVEL_INFO, "process %d has let go of its GPUs", pid);
	return -ENOTSUP;
}

static int is_own_plugin(struct dl_phdr_info *info, size_t bytes, void *data)
{
	const char *name = strrchr(info->dlpi_name, '/');

	return name && !strcmp(name, "/gpucr_plugin.so");
}

static int pause_devices(int pid)
{
	return dump.is_active && !dl_iterate_phdr(is_own_plugin, NULL) ? leave(pid) : -ENOTSUP;
}

static int checkpoint_devices(int pid)
{
	return dump.is_active ? leave(pid) : -ENOTSUP;
}

static int resume_devices_late(int pid)
{
	int tid = checkpoint_thread_find(pid);

	if (tid < 0)
		return -ENOTSUP;
	return ask(pid, tid, CHECKPOINT_VERB_RETURN) < 0 ? -1 : -ENOTSUP;
}

static int plugin_init(int stage)
{
	/* During a pre-dump the programs keep running. */
	dump.is_active = stage == GCR_CRIU_STAGE_DUMP;
	/*
	 * CRIU checks that each plugin of the inventory is present. Each process knows by itself
	 * whether its GPUs are to be restored.
	 */
	if (stage == GCR_CRIU_STAGE_RESTORE && check_and_remove_inventory_plugin)
		check_and_remove_inventory_plugin(NAME, strlen(NAME));
	return 0;
}

/*
 * The plugin does not know whether the processes will be killed, so all of them get their GPUs
 * back.
 */
static void plugin_exit(int stage, int result)
{
	for (size_t i = 0; stage == GCR_CRIU_STAGE_DUMP && i < dump.count; i++) {
		int tid = checkpoint_thread_find(dump.pids[i]);

		if (tid >= 0)
			ask(dump.pids[i], tid, CHECKPOINT_VERB_RETURN);
	}
	free(TAKE_PTR(dump.pids));
	dump.count = 0;
	dump.is_active = dump.is_noted = false;
}

extern struct gcr_criu_plugin CR_PLUGIN_DESC;
__attribute__((visibility("default"))) struct gcr_criu_plugin CR_PLUGIN_DESC = {
	.name = NAME,
	.init = plugin_init,
	.exit = plugin_exit,
	.version = GCR_CRIU_ABI_VERSION,
	.max_hooks = GCR_CRIU_HOOKS_COUNT,
	.hooks =
		{
			[GCR_CRIU_HOOK_RESUME_DEVICES_LATE] = (void *)resume_devices_late,
			[GCR_CRIU_HOOK_PAUSE_DEVICES] = (void *)pause_devices,
			[GCR_CRIU_HOOK_CHECKPOINT_DEVICES] = (void *)checkpoint_devices,
		},
};
