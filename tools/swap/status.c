/* SPDX-License-Identifier: MIT */
/*
 * The status of a watcher: a socket that sends the whole status to every client, and `gpucr-swap
 * status`, the client. The socket is in a directory that only its user can enter.
 */
#include "tools/swap/swap.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/sum.h"

#define ANSWER_MAX   (1 << 20)
#define ANSWER_SEC   5
#define METRICS_MARK "\nmetrics\n"

static double seconds(int64_t usec)
{
	return usec > 0 ? (double)usec / (double)GCR_USEC_PER_SEC : 0;
}

/* ---- why ---- */

static uint64_t need_of(const struct swap_process *process)
{
	uint64_t sum = 0;

	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++)
		sum = gcr_sum(sum, process->need_bytes[gpu]);
	return sum;
}

static void print_waiting(const struct swap_told *told, size_t i, FILE *stream)
{
	const struct swap_note *its = &told->notes[i];
	double left = seconds(its->until_usec - told->now_usec);

	switch (its->why) {
	case SWAP_WHY_BEHIND:
		fprintf(stream, "%d wants the same GPU for longer", its->other);
		break;
	case SWAP_WHY_MOVING:
		fprintf(stream, "a verb for %d is under way on its GPU", its->other);
		break;
	case SWAP_WHY_FIGURES:
		fputs("figures from after the last verb are waited for", stream);
		break;
	case SWAP_WHY_SLICE:
		fprintf(stream, "%d keeps its place for %.1f s more", its->other, left);
		break;
	case SWAP_WHY_ROOM:
		fputs("others are being frozen for it", stream);
		break;
	case SWAP_WHY_UNABLE:
		fprintf(stream, "%d is needed and could not be frozen; again in %.1f s", its->other,
			left);
		break;
	case SWAP_WHY_TOO_LARGE:
		/*
		 * A thaw can need more VRAM than the process holds: then only a failed thaw has
		 * shown the need.
		 */
		if (its->until_usec)
			fprintf(stream,
				"its thaw needs more than freezing all others gives on GPU %d; "
				"again in %.1f s",
				its->other, left);
		else
			fprintf(stream,
				"it needs %" PRIu64
				" MiB, more than freezing all others gives on GPU %d",
				need_of(&told->view->processes[i]) >> 20, its->other);
		break;
	default:
		fprintf(stream, "its last verb failed; again in %.1f s", left);
	}
}

void swap_print_why(const struct swap_told *told, size_t i, FILE *stream)
{
	switch (told->notes[i].why) {
	case SWAP_WHY_NOTHING:
		fputc('-', stream);
		break;
	case SWAP_WHY_NOT_OURS:
		fputs("left alone: not on these GPUs", stream);
		break;
	case SWAP_WHY_MUTE:
		fputs("left alone: it could not say that it wants its GPU back", stream);
		break;
	case SWAP_WHY_GOES:
		fputs("a verb for it is under way", stream);
		break;
	default:
		print_waiting(told, i, stream);
	}
}

/* ---- the watcher's side ---- */

static void print_gpus(const struct swap_config *config, FILE *stream)
{
	const char *comma = "";

	if (config->gpus == SWAP_ALL_GPUS) {
		fputs("all", stream);
		return;
	}
	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++)
		if (config->gpus & 1u << gpu) {
			fprintf(stream, "%s%u", comma, gpu);
			comma = ",";
		}
}

static int64_t waited_usec(const struct swap_process *process)
{
	bool is_waiting = process->wanted && process->wanted != SWAP_UNKNOWN;

	return is_waiting ? gcr_clock_real_usec() - (int64_t)process->wanted : 0;
}

static void print_processes(const struct swap_told *told, FILE *stream)
{
	fprintf(stream, "\n%-8s %-16s %-9s %8s  %s\n", "pid", "comm", "state", "waits", "why");
	for (size_t i = 0; i < told->view->situation.count; i++) {
		const struct swap_process *process = &told->view->processes[i];
		int64_t usec = waited_usec(process);
		char waits[32] = "-";

		if (usec > 0)
			snprintf(waits, sizeof(waits), "%.1fs", seconds(usec));
		fprintf(stream, "%-8d %-16s %-9s %8s  ", process->pid,
			*told->view->labels[i].comm ? told->view->labels[i].comm : "-",
			told->view->labels[i].state, waits);
		swap_print_why(told, i, stream);
		fputc('\n', stream);
	}
}

static void print_metrics(const struct swap_told *told, FILE *stream)
{
	const struct swap_counters *counters = told->counters;
	int64_t longest_usec = 0;
	unsigned int waiting = 0;

	for (size_t i = 0; i < told->view->situation.count; i++) {
		int64_t usec = waited_usec(&told->view->processes[i]);

		waiting += usec > 0;
		if (usec > longest_usec)
			longest_usec = usec;
	}
	fprintf(stream,
		"%" PRIu64 " %" PRIu64 " %.6f %" PRIu64 " %" PRIu64 " %" PRIu64 " %u %.6f %.6f\n",
		counters->waits, counters->turns, seconds(counters->wait_usec),
		counters->room_freezes, counters->idle_freezes, counters->failures, waiting,
		seconds(longest_usec), seconds(told->started_usec));
}

/* Prints "mount MOUNT", the text for people, and the numbers for the metrics. */
static void print_answer(const struct swap_told *told, FILE *stream)
{
	const struct swap_counters *counters = told->counters;

	fprintf(stream, "mount %s\nwatcher %d\ngpus ", told->mount, (int)getpid());
	print_gpus(told->config, stream);
	fprintf(stream,
		"\nsince_usec %" PRId64 "\nidle_ms %" PRId64 "\nslice_ms %" PRId64
		"\nwaits %" PRIu64 "\nturns %" PRIu64 "\nwait_ms %" PRId64 "\nroom_freezes %" PRIu64
		"\nidle_freezes %" PRIu64 "\nfailures %" PRIu64 "\n",
		told->started_usec, told->config->idle_usec / GCR_USEC_PER_MSEC,
		told->config->slice_usec / GCR_USEC_PER_MSEC, counters->waits, counters->turns,
		counters->wait_usec / GCR_USEC_PER_MSEC, counters->room_freezes,
		counters->idle_freezes, counters->failures);
	print_processes(told, stream);
	fputs(METRICS_MARK, stream);
	print_metrics(told, stream);
}

void swap_answer(int fd, const struct swap_told *told)
{
	_cleanup_close_ int asker = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	_cleanup_free_ char *text = NULL;
	size_t bytes, sent = 0;
	ssize_t count = 1;
	int room = ANSWER_MAX;
	FILE *stream;

	if (asker < 0)
		return;
	stream = open_memstream(&text, &bytes);
	if (!stream)
		return;
	print_answer(told, stream);
	if (fclose(stream) == EOF)
		return;
	/* Bytes that do not fit into the socket's buffer are dropped: the watcher does not wait. */
	setsockopt(asker, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	while (sent < bytes && count > 0) {
		count = send(asker, text + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		sent += count > 0 ? (size_t)count : 0;
	}
}

/* ---- the directory ---- */

/*
 * Returns in @ret_path /run/gpucr-swap for root, else a directory in XDG_RUNTIME_DIR, else
 * /tmp/gpucr-swap-UID. 0 or -ENOMEM.
 */
static int directory_path(char **ret_path)
{
	const char *given = getenv("XDG_RUNTIME_DIR");
	int result;

	if (!geteuid())
		result = asprintf(ret_path, "/run/gpucr-swap");
	else if (given && *given == '/')
		result = asprintf(ret_path, "%s/gpucr-swap", given);
	else
		result = asprintf(ret_path, "/tmp/gpucr-swap-%u", (unsigned int)geteuid());
	return result < 0 ? -ENOMEM : 0;
}

/* Checks that the directory belongs to this user and no other user can enter. */
static int check_directory(const char *path, struct gcr_error *error)
{
	struct stat status;

	if (lstat(path, &status) < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || status.st_mode & 077)
		return gcr_error_set(error, EPERM,
				     "%s is not a directory of this user's alone; remove it", path);
	return 0;
}

static int make_address(const char *directory, const char *name, struct sockaddr_un *ret_address,
			struct gcr_error *error)
{
	*ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
	if ((size_t)snprintf(ret_address->sun_path, sizeof(ret_address->sun_path), "%s/%s",
			     directory, name) >= sizeof(ret_address->sun_path))
		return gcr_error_set(error, ENAMETOOLONG, "%s is too long for a socket", directory);
	return 0;
}

int swap_listen(char **ret_path, struct gcr_error *error)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	_cleanup_free_ char *directory = NULL;
	struct sockaddr_un address;
	char name[16];
	int result;

	snprintf(name, sizeof(name), "%d", (int)getpid());
	if (fd < 0 || directory_path(&directory) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (mkdir(directory, 0700) < 0 && errno != EEXIST)
		return gcr_error_set(error, errno, "%s: %s", directory, strerror(errno));
	result = check_directory(directory, error);
	if (!result)
		result = make_address(directory, name, &address, error);
	if (result < 0)
		return result;
	/* A socket of this pid belongs to a process that has ended. */
	unlink(address.sun_path);
	if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
	    chmod(address.sun_path, 0600) < 0 || listen(fd, 16) < 0)
		return gcr_error_set(error, errno, "%s: %s", address.sun_path, strerror(errno));
	*ret_path = strdup(address.sun_path);
	return TAKE_FD(fd);
}

void swap_unlisten(int fd, const char *path)
{
	if (fd < 0)
		return;
	if (path)
		unlink(path);
	close(fd);
}

/* ---- the client ---- */

static const struct family {
	const char *name, *type, *help;
} families[SWAP_TOTALS_COUNT] = {
	{"gpucrswap_waits_total", "counter", "Programs that have begun to wait for their GPU."},
	{"gpucrswap_turns_total", "counter", "Programs that were thawed as they wanted their GPU."},
	{"gpucrswap_wait_seconds_total", "counter", "For so long these had waited."},
	{"gpucrswap_room_freezes_total", "counter", "Programs that were frozen to make room."},
	{"gpucrswap_idle_freezes_total", "counter", "Programs that were frozen as they were idle."},
	{"gpucrswap_failures_total", "counter", "Verbs that failed."},
	{"gpucrswap_waiting", "gauge", "Programs that wait for their GPU now."},
	{"gpucrswap_longest_wait_seconds", "gauge", "For so long the first of them has waited."},
	{"gpucrswap_start_time_seconds", "gauge", "When the counters began, since 1970 (UTC)."},
};

static int ask(const char *directory, const char *name, char **ret_text)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval limit = {.tv_sec = ANSWER_SEC};
	_cleanup_free_ char *text = malloc(ANSWER_MAX);
	struct sockaddr_un address;
	struct gcr_error error;
	size_t used = 0;
	ssize_t got;

	if (fd < 0 || !text || make_address(directory, name, &address, &error) < 0)
		return -ENOMEM;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ||
	    connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	while ((got = read(fd, text + used, ANSWER_MAX - 1 - used)) > 0)
		used += (size_t)got;
	if (got < 0)
		return -errno;
	text[used] = '\0';
	*ret_text = TAKE_PTR(text);
	return 0;
}

static bool is_about(const char *text, const char *mount)
{
	size_t length = strlen(mount);

	return !strncmp(text, "mount ", 6) && !strncmp(text + 6, mount, length) &&
	       text[6 + length] == '\n';
}

bool swap_parse_totals(const char *text, struct swap_totals *ret_totals)
{
	const char *gpus = strstr(text, "\ngpus "), *numbers = strstr(text, METRICS_MARK);
	struct swap_totals its = {.gpus = ""};
	char *end;

	if (!gpus || !numbers)
		return false;
	snprintf(its.gpus, sizeof(its.gpus), "%.*s", (int)strcspn(gpus + 6, "\n"), gpus + 6);
	numbers += strlen(METRICS_MARK);
	for (size_t i = 0; i < SWAP_TOTALS_COUNT; i++, numbers = end)
		its.values[i] = strtod(numbers, &end);
	*ret_totals = its;
	return true;
}

/* Adds a watcher's counters; watchers of the same GPUs share one series. */
static int add_totals(const char *text, struct swap_totals **totals, size_t *count)
{
	struct swap_totals its, *more;

	if (!swap_parse_totals(text, &its))
		return 0;
	for (size_t i = 0; i < *count; i++)
		if (!strcmp((*totals)[i].gpus, its.gpus)) {
			for (size_t j = 0; j + 1 < GCR_ARRAY_SIZE(families); j++)
				(*totals)[i].values[j] += its.values[j];
			return 0;
		}
	more = realloc(*totals, (*count + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	*totals = more;
	more[(*count)++] = its;
	return 0;
}

static void print_families(const struct swap_totals *totals, size_t count)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(families); i++) {
		const struct family *family = &families[i];
		size_t length = strlen(family->name);

		/* OpenMetrics names a family of counters without the suffix _total. */
		if (!strcmp(family->type, "counter"))
			length -= strlen("_total");
		printf("# HELP %.*s %s\n# TYPE %.*s %s\n", (int)length, family->name, family->help,
		       (int)length, family->name, family->type);
		for (size_t j = 0; j < count; j++)
			printf("%s{gpus=\"%s\"} %.15g\n", family->name, totals[j].gpus,
			       totals[j].values[i]);
	}
	puts("# EOF");
}

static void print_text(char *text, size_t found)
{
	char *mark = strstr(text, METRICS_MARK);

	if (mark)
		*mark = '\0';
	printf("%s%s\n", found ? "\n" : "", text);
}

int swap_status(const char *mount, bool is_metrics)
{
	_cleanup_free_ struct swap_totals *totals = NULL;
	_cleanup_free_ char *directory = NULL;
	_cleanup_closedir_ DIR *list = NULL;
	size_t found = 0, totals_count = 0;
	const struct dirent *entry;
	struct gcr_error error;

	if (directory_path(&directory) < 0)
		return 1;
	list = check_directory(directory, &error) < 0 ? NULL : opendir(directory);
	while (list && (entry = readdir(list))) {
		_cleanup_free_ char *text = NULL;

		if (*entry->d_name == '.' || ask(directory, entry->d_name, &text) < 0 ||
		    !is_about(text, mount))
			continue;
		if (is_metrics)
			add_totals(text, &totals, &totals_count);
		else
			print_text(text, found);
		found++;
	}
	if (!found) {
		fprintf(stderr, "gpucr-swap: no gpucr-swap watch of this user's runs for %s\n",
			mount);
		return 1;
	}
	if (is_metrics)
		print_families(totals, totals_count);
	return fflush(stdout) == EOF;
}
