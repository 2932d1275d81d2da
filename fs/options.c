/* SPDX-License-Identifier: MIT */
/* Parses the command line with libfuse's option parser, and checks the mountpoint. */
#define FUSE_USE_VERSION 314
#include "fs/options.h"

#include <dirent.h>
#include <errno.h>
#include <fuse_opt.h>
#include <limits.h>
#include <mntent.h>
#include <stddef.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "fs/base/mountpoint.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/*
 * The store takes memory only for held data, and each freeze checks the machine's free memory: so
 * the default is high.
 */
#define STORE_SIZE_DEFAULT "80%"
#define STORE_UNIT_BYTES   (UINT64_C(2) << 20)

#define USER_TIMEOUT_DEFAULT_SEC 3600

enum key {
	KEY_HELP,
	KEY_VERSION,
};

const struct gcr_option_words gcr_options_table[] = {
	{"sim", NULL, "use the simulated GPU (its state is in $GPUCR_SIM_DIR)"},
	{"sim", "DIR", "the same, with its state in DIR"},
	{"worker_idle", "SEC", "end idle helper processes after SEC seconds (default 60)"},
	{"runtime_dir", "DIR", "records and socket (default /run/gpucrfs)"},
	{"store_size", "SIZE", "hold at most this much VRAM: 64G, 80% (default 80% of memory)"},
	{"pool", "SIZE", "keep so much memory ready for freezes (default 0)"},
	{"keep", "SIZE",
	 "keep so much of what was thawed, to freeze only what changes (default 0)"},
	{"pack_after", "SEC", "pack what has been frozen for SEC seconds (default 0: do not)"},
	{"spill", "DIR", "let packed VRAM go to this directory on a disk (default: none)"},
	{"spill_size", "SIZE", "take at most so much of that disk: 500G, 50% (default: all)"},
	{"criu", "PATH", "this CRIU for dump and restore (default: criu in PATH)"},
	{"user_connections", "N", "connections to the socket of one user (default 512)"},
	{"user_open_files", "N", "open files of the mount of one user (default 4096)"},
	{"user_text", "SIZE", "text that these hold (default 64M)"},
	{"user_places", "N", "places of one user (default 128)"},
	{"user_store", "SIZE", "what one user may hold of the store: 64G, 50% (default 80%)"},
	{"user_spill", "SIZE", "what one user may have on that disk: 64G, 50% (default 80%)"},
	{"user_verbs", "N", "verbs of one user under way (default 512)"},
	{"allow_user_dumps", NULL,
	 "let users dump their own processes (default: root alone dumps)"},
	{"user_dumps", "N", "dumps of one user under way (default 16)"},
	{"user_descriptors", "N", "descriptors of one user's verbs (default half of all users')"},
	{"user_timeout", "SEC", "the longest timeout= of a user (default 3600)"},
	{"user_subuids", "FILE", "whose subordinate ids are whose (default /etc/subuid)"},
	{"allow_swap", NULL, "allow VRAM that is held to be swapped to disk"},
	{"nopassthrough", NULL, "serve all reads of snapshots by the daemon"},
	{NULL, NULL, NULL},
};

#define OPTION(template, field, value)                               \
	{                                                            \
		template, offsetof(struct gcr_options, field), value \
	}

static const struct fuse_opt fuse_options[] = {
	OPTION("-f", foreground, 1),
	OPTION("sim", simulator, 1),
	OPTION("sim=%s", simulator_state, 0),
	OPTION("worker_idle=%u", worker_idle, 0),
	OPTION("runtime_dir=%s", runtime_directory, 0),
	OPTION("store_size=%s", store_size, 0),
	OPTION("pool=%s", pool, 0),
	OPTION("keep=%s", keep, 0),
	OPTION("pack_after=%u", pack_after, 0),
	OPTION("spill=%s", spill, 0),
	OPTION("spill_size=%s", spill_size, 0),
	OPTION("criu=%s", criu, 0),
	OPTION("user_connections=%s", user_most[GCR_QUOTA_CONNECTIONS], 0),
	OPTION("user_open_files=%s", user_most[GCR_QUOTA_OPEN_FILES], 0),
	OPTION("user_text=%s", user_most[GCR_QUOTA_TEXT], 0),
	OPTION("user_places=%s", user_most[GCR_QUOTA_PLACES], 0),
	OPTION("user_store=%s", user_most[GCR_QUOTA_STORE], 0),
	OPTION("user_spill=%s", user_most[GCR_QUOTA_SPILL], 0),
	OPTION("user_verbs=%s", user_most[GCR_QUOTA_VERBS], 0),
	OPTION("user_dumps=%s", user_most[GCR_QUOTA_DUMPS], 0),
	OPTION("user_descriptors=%s", user_most[GCR_QUOTA_DESCRIPTORS], 0),
	OPTION("user_timeout=%s", user_timeout, 0),
	OPTION("user_subuids=%s", user_subuids, 0),
	OPTION("allow_swap", allow_swap, 1),
	OPTION("allow_user_dumps", allow_user_dumps, 1),
	OPTION("nopassthrough", no_passthrough, 1),
	FUSE_OPT_KEY("-h", KEY_HELP),
	FUSE_OPT_KEY("--help", KEY_HELP),
	FUSE_OPT_KEY("-V", KEY_VERSION),
	FUSE_OPT_KEY("--version", KEY_VERSION),
	FUSE_OPT_END,
};

static void print_help(void)
{
	printf("usage: gpucrfs [-f] [-o opt[,opt]...] MOUNTPOINT\n\n"
	       "Every process that uses a GPU is a directory of MOUNTPOINT.\n\n"
	       "    -f                     stay in the foreground, messages to stderr\n"
	       "    -h, --help             print this\n"
	       "    -V, --version          print the version\n");
	for (const struct gcr_option_words *option = gcr_options_table; option->name; option++) {
		char name[32];

		snprintf(name, sizeof(name), "%s%s%s", option->name, option->value ? "=" : "",
			 option->value ? option->value : "");
		printf("    -o %-20s%s\n", name, option->words);
	}
}

static int process_argument(void *data, const char *argument, int key, struct fuse_args *rest)
{
	struct gcr_options *options = data;

	switch (key) {
	case KEY_HELP:
		print_help();
		exit(EXIT_SUCCESS);
	case KEY_VERSION:
		printf("gpucrfs %s\n", GCR_VERSION);
		exit(EXIT_SUCCESS);
	case FUSE_OPT_KEY_NONOPT:
		if (!options->mountpoint) {
			options->mountpoint = strdup(argument);
			return options->mountpoint ? 0 : -1;
		}
		fprintf(stderr, "gpucrfs: one mountpoint is enough: '%s' is too much\n", argument);
		return -1;
	default:
		fprintf(stderr, "gpucrfs: unknown option '%s' (gpucrfs --help lists them)\n",
			argument);
		return -1;
	}
}

/* The type of the filesystem mounted exactly at @path, for the caller to free; NULL: none. */
static char *mounted_type(const char *path)
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	char *type = NULL;
	struct mntent *mount;

	if (!mounts)
		return NULL;
	while ((mount = getmntent(mounts))) {
		if (!strcmp(mount->mnt_dir, path)) {
			free(type);
			type = strdup(mount->mnt_type);
		}
	}
	endmntent(mounts);
	return type;
}

/* Makes a path absolute without resolving the last component, which fails for a stale mount. */
static char *absolute_path(const char *path)
{
	_cleanup_free_ char *copy = strdup(path);
	_cleanup_free_ char *parent = NULL;
	char *result = realpath(path, NULL);
	char *slash;

	if (result || !copy || !*path)
		return result;
	while ((slash = strrchr(copy, '/')) && slash != copy && !slash[1])
		*slash = '\0';
	slash = strrchr(copy, '/');
	if (slash)
		*slash = '\0';
	parent = realpath(!slash ? "." : *copy ? copy : "/", NULL);
	if (!parent || asprintf(&result, "%s/%s", strcmp(parent, "/") ? parent : "",
				slash ? slash + 1 : copy) < 0)
		return NULL;
	return result;
}

static int unmount_stale(const char *path)
{
	pid_t pid;
	int status;

	if (!umount2(path, MNT_DETACH))
		return 0;
	/* An ordinary user needs libfuse's helper. */
	pid = fork();
	if (!pid) {
		execlp("fusermount3", "fusermount3", "-u", "-z", path, (char *)NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
		return -EBUSY;
	return 0;
}

/*
 * Checks that the mountpoint is empty. With @is_ours, a daemon is expected to mount there again:
 * then files that are in the way are only reported, and the mount hides them.
 */
static int check_empty(const char *path, bool is_ours)
{
	_cleanup_closedir_ DIR *dir = opendir(path);
	const struct dirent *entry;

	if (!dir) {
		fprintf(stderr, "gpucrfs: %s: %s\n", path, strerror(errno));
		return -EINVAL;
	}
	while ((entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (!is_ours) {
			fprintf(stderr, "gpucrfs: %s is not empty\n", path);
			return -EINVAL;
		}
		fprintf(stderr,
			"gpucrfs: %s/%s is not of the mount and will be hidden by it: it was made "
			"while no gpucrfs was there, and what was written to it has done nothing\n",
			path, entry->d_name);
	}
	return 0;
}

/*
 * Has the mount no daemon any more? ECONNABORTED: its last descriptor was closed during the stat();
 * a daemon that is killed while it starts a helper leaves such a descriptor for a moment.
 */
static bool is_dead(const char *path)
{
	struct stat stat_buffer;

	return stat(path, &stat_buffer) < 0 && (errno == ENOTCONN || errno == ECONNABORTED);
}

static int check_mountpoint(struct gcr_options *options)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_free_ char *type = NULL;
	bool was_ours = false;

	path = absolute_path(options->mountpoint);
	if (!path) {
		fprintf(stderr, "gpucrfs: %s: %s\n", options->mountpoint, strerror(errno));
		return -EINVAL;
	}
	type = mounted_type(path);
	if (type && !strcmp(type, "fuse.gpucrfs") && is_dead(path)) {
		if (unmount_stale(path) < 0) {
			fprintf(stderr, "gpucrfs: the stale mount on %s cannot be removed\n", path);
			return -EINVAL;
		}
		was_ours = true;
		free(TAKE_PTR(type));
		type = mounted_type(path);
	}
	if (type && strcmp(type, "autofs")) {
		fprintf(stderr, "gpucrfs: something is mounted on %s already (%s)\n", path, type);
		return -EINVAL;
	}
	free(options->mountpoint);
	options->mountpoint = TAKE_PTR(path);
	gcr_mountpoint_reopen(options->runtime_directory, options->mountpoint);
	return check_empty(options->mountpoint,
			   was_ours || gcr_mountpoint_is_awaited(options->runtime_directory));
}

/*
 * Replaces *path by its absolute path, since a daemon in the background has / as its directory.
 * NULL stays. 0 or -errno.
 */
static int make_absolute(char **path)
{
	char *absolute = *path ? absolute_path(*path) : NULL;

	if (*path && !absolute) {
		fprintf(stderr, "gpucrfs: %s: %s\n", *path, strerror(errno));
		return -EINVAL;
	}
	free(*path);
	*path = absolute;
	return 0;
}

static int set_runtime_directory(struct gcr_options *options)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	int length;

	if (options->runtime_directory)
		return 0;
	if (geteuid() == 0)
		length = asprintf(&options->runtime_directory, "/run/gpucrfs");
	else if (runtime && *runtime == '/')
		length = asprintf(&options->runtime_directory, "%s/gpucrfs", runtime);
	else
		length = asprintf(&options->runtime_directory, "/tmp/gpucrfs-%u",
				  (unsigned int)geteuid());
	return length < 0 ? -ENOMEM : 0;
}

/*
 * Parses bytes, with a suffix K, M, G or T for powers of 1024, or a percentage of @whole; rounds
 * down to whole huge pages.
 */
static int parse_size_of(const char *name, const char *text, uint64_t whole, uint64_t *ret_bytes)
{
	static const char suffixes[] = "KMGT";
	const char *suffix;
	uint64_t bytes;
	char *end;

	errno = 0;
	bytes = strtoull(text, &end, 10);
	suffix = *end && !end[1] ? strchr(suffixes, *end) : NULL;
	if (*text < '0' || *text > '9' || errno)
		goto bad;
	if (!strcmp(end, "%")) {
		if (bytes > 100)
			goto bad;
		bytes = whole / 100 * bytes;
	} else if (suffix) {
		unsigned int shift = 10 * (unsigned int)(suffix - suffixes + 1);

		if (bytes > (uint64_t)INT64_MAX >> shift)
			goto bad;
		bytes <<= shift;
	} else if (*end || bytes > INT64_MAX) {
		goto bad;
	}
	*ret_bytes = bytes / STORE_UNIT_BYTES * STORE_UNIT_BYTES;
	return 0;
bad:
	fprintf(stderr, "gpucrfs: %s=%s: this is no size such as 64G or 80%%\n", name, text);
	return -EINVAL;
}

/*
 * Parses the value of option @name with parse_size_of(); a percentage refers to the machine's
 * memory.
 */
static int parse_size(const char *name, const char *text, uint64_t *ret_bytes)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	return parse_size_of(name, text, memory, ret_bytes);
}

static int set_store(struct gcr_options *options)
{
	if (parse_size("store_size", options->store_size ? options->store_size : STORE_SIZE_DEFAULT,
		       &options->store_bytes) < 0 ||
	    parse_size("pool", options->pool ? options->pool : "0", &options->pool_bytes) < 0 ||
	    parse_size("keep", options->keep ? options->keep : "0", &options->keep_bytes) < 0)
		return -EINVAL;
	if (!options->store_bytes) {
		fprintf(stderr, "gpucrfs: store_size=%s: it has to be at least 2M\n",
			options->store_size);
		return -EINVAL;
	}
	if (options->pool_bytes > options->store_bytes) {
		fprintf(stderr, "gpucrfs: pool=%s is more than the store's size\n", options->pool);
		return -EINVAL;
	}
	if (options->keep_bytes > options->store_bytes) {
		fprintf(stderr, "gpucrfs: keep=%s is more than the store's size\n", options->keep);
		return -EINVAL;
	}
	return 0;
}

static int parse_count(const char *name, const char *text, uint64_t *ret_count)
{
	char *end;

	errno = 0;
	*ret_count = strtoull(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno && *ret_count <= UINT32_MAX)
		return 0;
	fprintf(stderr, "gpucrfs: %s=%s: this is no number\n", name, text);
	return -EINVAL;
}

/*
 * Sets the limit of one user on the disk. A percentage refers to the room on the disk, which the
 * running daemon determines at each use.
 */
static void set_user_spill(struct gcr_options *options, const char *text)
{
	unsigned int percent = strchr(text, '%') ? (unsigned int)strtoul(text, NULL, 10) : 0;

	options->user_spill_percent = percent;
	if (percent)
		options->user_limits.most[GCR_QUOTA_SPILL] = 0;
}

/* Sets the limits of one user. 0: no limit; a small share of the store is not rounded down to 0. */
static int set_user_limits(struct gcr_options *options)
{
	static const char *const defaults[GCR_QUOTA_KINDS_COUNT] = {
		[GCR_QUOTA_CONNECTIONS] = "512", [GCR_QUOTA_OPEN_FILES] = "4096",
		[GCR_QUOTA_TEXT] = "64M",	 [GCR_QUOTA_PLACES] = "128",
		[GCR_QUOTA_STORE] = "80%",	 [GCR_QUOTA_SPILL] = "80%",
		[GCR_QUOTA_VERBS] = "512",	 [GCR_QUOTA_DUMPS] = "16",
		[GCR_QUOTA_DESCRIPTORS] = "0", /* gcr_quota_create() lowers it */
	};
	struct gcr_quota_limits *limits = &options->user_limits;
	const char *dumps = options->user_most[GCR_QUOTA_DUMPS];
	uint64_t seconds = USER_TIMEOUT_DEFAULT_SEC;

	if (dumps && !options->allow_user_dumps) {
		fprintf(stderr,
			"gpucrfs: user_dumps=%s is of no meaning without allow_user_dumps\n",
			dumps);
		return -EINVAL;
	}
	for (size_t i = 0; i < GCR_QUOTA_KINDS_COUNT; i++) {
		const char *text = options->user_most[i] ? options->user_most[i] : defaults[i];
		char name[32];
		int result;

		snprintf(name, sizeof(name), "user_%s", gcr_quota_kinds[i].name);
		result = gcr_quota_kinds[i].is_bytes
				 ? parse_size_of(name, text, options->store_bytes, &limits->most[i])
				 : parse_count(name, text, &limits->most[i]);
		if (result < 0)
			return result;
		if (!limits->most[i] && strcmp(text, "0") != 0)
			limits->most[i] = STORE_UNIT_BYTES;
		if (i == GCR_QUOTA_SPILL)
			set_user_spill(options, text);
	}
	if (options->user_timeout &&
	    parse_count("user_timeout", options->user_timeout, &seconds) < 0)
		return -EINVAL;
	limits->timeout_usec = (int64_t)seconds * GCR_USEC_PER_SEC;
	return 0;
}

/*
 * Sets the limit of the disk. A percentage refers to the size of the disk, which is determined when
 * the disk is opened.
 */
static int set_spill(struct gcr_options *options)
{
	const char *of_user = options->user_most[GCR_QUOTA_SPILL];
	const char *size = options->spill_size;
	size_t length = size ? strlen(size) : 0;

	if (!options->spill && (size || of_user)) {
		fprintf(stderr, "gpucrfs: %s=%s is of no meaning without spill=DIR\n",
			size ? "spill_size" : "user_spill", size ? size : of_user);
		return -EINVAL;
	}
	if (!size)
		return 0;
	if (parse_size("spill_size", size, &options->spill_bytes) < 0)
		return -EINVAL;
	if (size[length - 1] == '%')
		options->spill_percent = (unsigned int)strtoul(size, NULL, 10);
	if (options->spill_bytes || options->spill_percent)
		return 0;
	fprintf(stderr, "gpucrfs: spill_size=%s: it has to be at least 2M\n", size);
	return -EINVAL;
}

/*
 * Makes the path of the disk's directory absolute. The directory need not exist: the daemon may
 * start without the disk.
 */
static int make_spill_absolute(struct gcr_options *options)
{
	_cleanup_free_ char *directory = NULL;
	char *path;

	if (!options->spill || *options->spill == '/')
		return 0;
	directory = getcwd(NULL, 0);
	if (!directory || asprintf(&path, "%s/%s", directory, options->spill) < 0) {
		fprintf(stderr, "gpucrfs: spill=%s: %s\n", options->spill, strerror(errno));
		return -EINVAL;
	}
	free(options->spill);
	options->spill = path;
	return 0;
}

/*
 * Rejects a directory within our mount, whose writes would come back to us. The check compares
 * inodes, since the mountpoint may have several paths. A directory that cannot be reached now is
 * checked when it is opened.
 */
static int check_spill(const struct gcr_options *options)
{
	_cleanup_free_ char *path = options->spill ? realpath(options->spill, NULL) : NULL;
	struct stat mountpoint;
	struct stat above;

	if (!path || stat(options->mountpoint, &mountpoint) < 0)
		return 0;
	for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
		*end = '\0';
		if (stat(*path ? path : "/", &above) < 0 || above.st_dev != mountpoint.st_dev ||
		    above.st_ino != mountpoint.st_ino)
			continue;
		fprintf(stderr, "gpucrfs: spill=%s is in the mountpoint\n", options->spill);
		return -EINVAL;
	}
	return 0;
}

int gcr_options_parse(int argc, char **argv, struct gcr_options *options)
{
	struct fuse_args arguments = FUSE_ARGS_INIT(argc, argv);
	int result;

	*options = (struct gcr_options){.worker_idle = GCR_WORKER_IDLE_DEFAULT_SEC};
	result = fuse_opt_parse(&arguments, options, fuse_options, process_argument);
	fuse_opt_free_args(&arguments);
	if (result < 0)
		return -EINVAL;
	if (!options->mountpoint) {
		fprintf(stderr, "gpucrfs: where to mount? usage: gpucrfs [-f] [-o opt[,opt]...] "
				"MOUNTPOINT\n");
		return -EINVAL;
	}
	if (options->simulator_state)
		options->simulator = 1;
	if (make_absolute(&options->simulator_state) < 0 ||
	    make_absolute(&options->runtime_directory) < 0 || make_absolute(&options->criu) < 0 ||
	    make_absolute(&options->user_subuids) < 0 || make_spill_absolute(options) < 0)
		return -EINVAL;
	if (set_runtime_directory(options) < 0)
		return -ENOMEM;
	if (set_store(options) < 0 || set_user_limits(options) < 0 || set_spill(options) < 0)
		return -EINVAL;
	if (check_mountpoint(options) < 0)
		return -EINVAL;
	return check_spill(options);
}

void gcr_options_finish(struct gcr_options *options)
{
	free(options->mountpoint);
	free(options->simulator_state);
	free(options->runtime_directory);
	free(options->store_size);
	free(options->pool);
	free(options->keep);
	free(options->spill);
	free(options->spill_size);
	free(options->criu);
	for (size_t i = 0; i < GCR_QUOTA_KINDS_COUNT; i++)
		free(options->user_most[i]);
	free(options->user_timeout);
	free(options->user_subuids);
}
