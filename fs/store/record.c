/* SPDX-License-Identifier: MIT */
/*
 * Writing and reading records (see record.h). All files are opened below the runtime directory's
 * descriptor and never through a symbolic link. The runtime directory is a tmpfs: no fsync.
 */
#include "fs/store/record.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/uuid.h"

#define DIRECTORY	 "processes"
#define VERSION_LINE	 "gpucrfs-record 1"
#define RECORD_BYTES_MAX 16384
#define NAME_BYTES	 48 /* "<pid>-<start_ticks>" */
#define SPARE_END	 ".new"
#define SPARE_BYTES	 (NAME_BYTES + sizeof("." SPARE_END))
#define BOOT_ID_BYTES	 37 /* a UUID as text, with its NUL */
/*
 * A record is filled up to a multiple of this, with room for the GPUs that a thaw may move it to:
 * then all versions of it are as long.
 */
#define FILLED_BYTES	 4096
#define FILLER		 "filler "
#define COMM_LINE_BYTES	 (sizeof("comm \n") + 3 * GCR_COMM_BYTES)
#define LINE_BYTES	 96 /* at least those of each line with a GPU */

static const char *const state_names[] = {
	[GCR_RECORD_FREEZING] = "freezing",
	[GCR_RECORD_FROZEN] = "frozen",
	[GCR_RECORD_THAWING] = "thawing",
	[GCR_RECORD_FAILED] = "failed",
};

const char *gcr_record_state_name(enum gcr_record_state state)
{
	return state_names[state];
}

static void record_name(char name[NAME_BYTES], pid_t pid, uint64_t start_ticks)
{
	snprintf(name, NAME_BYTES, "%d-%" PRIu64, (int)pid, start_ticks);
}

/* Makes the name of the spare of the record @name: see gcr_record_write(). */
static void spare_name(char spare[SPARE_BYTES], const char *name)
{
	snprintf(spare, SPARE_BYTES, ".%s" SPARE_END, name);
}

static bool is_uuid_text(const char *text)
{
	return gcr_uuid_parse(text, NULL) == 0;
}

static bool is_engine(const char *text)
{
	size_t length = strnlen(text, GCR_RECORD_ENGINE_BYTES);

	return length > 0 && length < GCR_RECORD_ENGINE_BYTES &&
	       strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
		       length;
}

/*
 * Reads the identifier of this boot: start times count from boot, so records of an earlier boot are
 * useless.
 */
static int read_boot_id(char boot_id[BOOT_ID_BYTES])
{
	_cleanup_close_ int fd = -1;
	ssize_t got;

	fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	got = read(fd, boot_id, BOOT_ID_BYTES - 1);
	if (got < 0)
		return -errno;
	boot_id[got] = '\0';
	return is_uuid_text(boot_id) ? 0 : -EPROTO;
}

static int open_records(int directory_fd, bool create)
{
	int fd;

	if (create && mkdirat(directory_fd, DIRECTORY, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(directory_fd, DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/*
 * Writes the line with the name of a process, which may hold any byte: blanks, '%' and non-printing
 * bytes become %XX.
 */
static void write_comm(char line[COMM_LINE_BYTES], const char *comm)
{
	char *at = line + sprintf(line, "comm ");

	for (size_t i = 0; i < GCR_COMM_BYTES && comm[i]; i++) {
		unsigned char byte = (unsigned char)comm[i];

		if (byte > 0x20 && byte < 0x7f && byte != '%')
			*at++ = (char)byte;
		else
			at += sprintf(at, "%%%02x", byte);
	}
	strcpy(at, "\n");
}

static void print_uuid(FILE *stream, const uint8_t uuid[GCR_UUID_BYTES])
{
	for (size_t byte = 0; byte < GCR_UUID_BYTES; byte++)
		fprintf(stream, "%02x", uuid[byte]);
}

static void print_moves(FILE *stream, const char *name, const struct gcr_moves *moves)
{
	for (uint32_t i = 0; i < moves->count; i++) {
		fprintf(stream, "%s ", name);
		print_uuid(stream, moves->pairs[i].from);
		fputc(' ', stream);
		print_uuid(stream, moves->pairs[i].to);
		fputc('\n', stream);
	}
}

/*
 * Prints a line that has no meaning, and fills the record up; @rest_bytes: of what follows that
 * line. There is room for three lines for each GPU: its own, and those of two places that it may be
 * moved to.
 */
static void print_filler(FILE *stream, const struct gcr_record *record, size_t rest_bytes)
{
	size_t lines = 3 * (size_t)record->gpus_count;
	size_t bytes = FILLED_BYTES / 4 + lines * LINE_BYTES;
	long printed = ftell(stream);
	size_t used = (size_t)printed + strlen(FILLER "\n") + rest_bytes;

	bytes = (bytes + FILLED_BYTES - 1) / FILLED_BYTES * FILLED_BYTES;
	if (printed >= 0 && used <= bytes)
		fprintf(stream, FILLER "%*s\n", (int)(bytes - used), "");
}

static int print_record(const struct gcr_record *record, char **ret_text, size_t *ret_bytes)
{
	char boot_id[BOOT_ID_BYTES];
	char comm[COMM_LINE_BYTES];
	_cleanup_free_ char *text = NULL;
	size_t bytes = 0;
	FILE *stream;
	int r;

	if (record->pid <= 0 || (unsigned int)record->state >= GCR_ARRAY_SIZE(state_names) ||
	    !is_uuid_text(record->generation) || !is_engine(record->engine) ||
	    record->since_usec < 0 || record->gpus_count > GCR_GPUS_MAX ||
	    record->moved.count > GCR_GPUS_MAX || record->moving.count > GCR_GPUS_MAX)
		return -EINVAL;
	r = read_boot_id(boot_id);
	if (r < 0)
		return r;
	stream = open_memstream(&text, &bytes);
	if (!stream)
		return -errno;
	fprintf(stream,
		VERSION_LINE "\nboot %s\npid %d\nstart_ticks %" PRIu64 "\nstate %s\n"
			     "generation %s\nengine %s\nsince_usec %" PRId64 "\n",
		boot_id, (int)record->pid, record->start_ticks, state_names[record->state],
		record->generation, record->engine, record->since_usec);
	for (uint32_t i = 0; i < record->gpus_count; i++) {
		fputs("gpu ", stream);
		print_uuid(stream, record->gpus[i].uuid);
		fprintf(stream, " %" PRIu64 "\n", record->gpus[i].bytes);
	}
	print_moves(stream, "moved", &record->moved);
	print_moves(stream, "moving", &record->moving);
	if (record->swap_pid > 0)
		fprintf(stream, "swap %d %" PRIu64 "\n", (int)record->swap_pid,
			record->swap_start_ticks);
	if (record->frozen_for_pid > 0)
		fprintf(stream, "frozen_for %d %" PRIu64 "\n", (int)record->frozen_for_pid,
			record->frozen_for_start_ticks);
	write_comm(comm, record->comm);
	/* Not last: a record that was cut short has no comm. */
	print_filler(stream, record, strlen(comm));
	fputs(comm, stream);
	/* The stream owns the text until fclose(), which also reports a lack of memory. */
	if (fclose(stream) != 0)
		return -ENOMEM;
	*ret_text = TAKE_PTR(text);
	*ret_bytes = bytes;
	return 0;
}

static int write_all(int fd, const char *text, size_t bytes)
{
	while (bytes) {
		ssize_t written = write(fd, text, bytes);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return -errno;
		text += written;
		bytes -= (size_t)written;
	}
	return 0;
}

/*
 * Opens the file at the spare's name for writing, and makes one if there is none. A file that the
 * daemon has not made there is removed. Returns a descriptor, which the caller closes, or -errno.
 */
static int open_spare(int records_fd, const char *spare)
{
	int fd = openat(records_fd, spare,
			O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat status;

	if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
	    status.st_uid == geteuid() && status.st_nlink == 1 && !(status.st_mode & 077))
		return fd;
	if (fd >= 0)
		close(fd);
	if (unlinkat(records_fd, spare, 0) < 0 && errno != ENOENT)
		return -errno;
	fd = openat(records_fd, spare, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/* Overwrites the spare with @text, which takes no room if the spare is as long already. -errno. */
static int write_spare(int records_fd, const char *spare, const char *text, size_t bytes)
{
	_cleanup_close_ int fd = open_spare(records_fd, spare);
	int r = fd < 0 ? fd : write_all(fd, text, bytes);

	/* Longer, if it comes from a version whose records had more. */
	return r == 0 && ftruncate(fd, (off_t)bytes) < 0 ? -errno : r;
}

/*
 * Makes a spare if there is none, and brings it to the length of a record, so that a later write
 * finds the room. -errno.
 */
static int provide_spare(int records_fd, const char *spare, const char *text, size_t bytes)
{
	struct stat status;

	if (fstatat(records_fd, spare, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
	    S_ISREG(status.st_mode) && (size_t)status.st_size == bytes)
		return 0;
	return write_spare(records_fd, spare, text, bytes);
}

/* Gives the spare the name of the record, and an older record the name of the spare. -errno. */
static int put_in_place(int records_fd, const char *spare, const char *name)
{
	if (renameat2(records_fd, spare, records_fd, name, RENAME_EXCHANGE) == 0)
		return 0;
	/* There is no older record, or the filesystem cannot exchange names. */
	return renameat(records_fd, spare, records_fd, name) < 0 ? -errno : 0;
}

int gcr_record_write(int directory_fd, const struct gcr_record *record)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int records_fd = -1;
	char spare[SPARE_BYTES];
	char name[NAME_BYTES];
	size_t bytes = 0;
	bool is_first;
	int kept = 0;
	int r;

	r = print_record(record, &text, &bytes);
	if (r < 0)
		return r;
	records_fd = open_records(directory_fd, true);
	if (records_fd < 0)
		return records_fd;
	record_name(name, record->pid, record->start_ticks);
	spare_name(spare, name);
	is_first = faccessat(records_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0;
	r = write_spare(records_fd, spare, text, bytes);
	if (r == 0)
		r = put_in_place(records_fd, spare, name);
	if (r == 0)
		kept = provide_spare(records_fd, spare, text, bytes);
	if (is_first && (r < 0 || kept < 0)) {
		/* Without a spare a thaw might find no room: it is better not to freeze. */
		unlinkat(records_fd, name, 0);
		unlinkat(records_fd, spare, 0);
		return r < 0 ? r : kept;
	}
	return r;
}

int gcr_record_remove(int directory_fd, pid_t pid, uint64_t start_ticks)
{
	_cleanup_close_ int records_fd = -1;
	char spare[SPARE_BYTES];
	char name[NAME_BYTES];

	records_fd = open_records(directory_fd, false);
	if (records_fd < 0)
		return records_fd == -ENOENT ? 0 : records_fd;
	record_name(name, pid, start_ticks);
	spare_name(spare, name);
	if (unlinkat(records_fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	unlinkat(records_fd, spare, 0);
	return 0;
}

/* Parses a whole decimal number up to @limit, without sign or leading zero. */
static bool parse_number(const char *text, uint64_t limit, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (!isdigit((unsigned char)*text) || (text[0] == '0' && text[1]))
		return false;
	for (; *text; text++) {
		uint64_t digit = (uint64_t)(*text - '0');

		if (!isdigit((unsigned char)*text) || value > (limit - digit) / 10)
			return false;
		value = value * 10 + digit;
	}
	*ret_value = value;
	return true;
}

static int hex_digit(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static bool parse_hex_byte(const char *text, uint8_t *ret_byte)
{
	int high = hex_digit(text[0]);
	int low = high < 0 ? -1 : hex_digit(text[1]);

	if (low < 0)
		return false;
	*ret_byte = (uint8_t)(high * 16 + low);
	return true;
}

/* A record being parsed; `record` is filled line by line and used only if all of it is valid. */
struct parse {
	struct gcr_record record;
	char boot_id[BOOT_ID_BYTES];
	unsigned int keys_seen; /* bit of each row of keys[] */
};

static bool parse_boot(const char *value, struct parse *parse)
{
	if (!is_uuid_text(value))
		return false;
	memcpy(parse->boot_id, value, sizeof(parse->boot_id));
	return true;
}

static bool parse_pid(const char *value, struct parse *parse)
{
	uint64_t number;

	if (!parse_number(value, INT_MAX, &number) || number == 0)
		return false;
	parse->record.pid = (pid_t)number;
	return true;
}

static bool parse_start_ticks(const char *value, struct parse *parse)
{
	return parse_number(value, UINT64_MAX, &parse->record.start_ticks);
}

static bool parse_state(const char *value, struct parse *parse)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(state_names); i++) {
		if (strcmp(value, state_names[i]) == 0) {
			parse->record.state = (enum gcr_record_state)i;
			return true;
		}
	}
	return false;
}

static bool parse_generation(const char *value, struct parse *parse)
{
	if (!is_uuid_text(value))
		return false;
	memcpy(parse->record.generation, value, sizeof(parse->record.generation));
	return true;
}

static bool parse_engine(const char *value, struct parse *parse)
{
	if (!is_engine(value))
		return false;
	memcpy(parse->record.engine, value, strlen(value) + 1);
	return true;
}

static bool parse_since(const char *value, struct parse *parse)
{
	uint64_t number;

	if (!parse_number(value, INT64_MAX, &number))
		return false;
	parse->record.since_usec = (int64_t)number;
	return true;
}

static bool parse_uuid(const char *value, uint8_t ret_uuid[GCR_UUID_BYTES])
{
	for (size_t i = 0; i < GCR_UUID_BYTES; i++, value += 2)
		if (!parse_hex_byte(value, &ret_uuid[i]))
			return false;
	return true;
}

static bool parse_gpu(const char *value, struct parse *parse)
{
	struct gcr_record *record = &parse->record;

	if (record->gpus_count == GCR_GPUS_MAX)
		return false;
	if (!parse_uuid(value, record->gpus[record->gpus_count].uuid))
		return false;
	value += 2 * GCR_UUID_BYTES;
	if (*value != ' ' ||
	    !parse_number(value + 1, UINT64_MAX, &record->gpus[record->gpus_count].bytes))
		return false;
	record->gpus_count++;
	return true;
}

static bool parse_move(const char *value, struct gcr_moves *moves)
{
	struct gcr_gpu_pair *pair = &moves->pairs[moves->count];

	if (moves->count == GCR_GPUS_MAX || strlen(value) != 4 * GCR_UUID_BYTES + 1 ||
	    value[2 * GCR_UUID_BYTES] != ' ' || !parse_uuid(value, pair->from) ||
	    !parse_uuid(value + 2 * GCR_UUID_BYTES + 1, pair->to))
		return false;
	moves->count++;
	return true;
}

static bool parse_moved(const char *value, struct parse *parse)
{
	return parse_move(value, &parse->record.moved);
}

static bool parse_moving(const char *value, struct parse *parse)
{
	return parse_move(value, &parse->record.moving);
}

static bool parse_process(const char *value, pid_t *ret_pid, uint64_t *ret_start_ticks)
{
	const char *blank = strchr(value, ' ');
	char pid[16] = "";
	uint64_t number;

	if (!blank || (size_t)(blank - value) >= sizeof(pid))
		return false;
	memcpy(pid, value, (size_t)(blank - value));
	if (!parse_number(pid, INT_MAX, &number) || !number ||
	    !parse_number(blank + 1, UINT64_MAX, ret_start_ticks))
		return false;
	*ret_pid = (pid_t)number;
	return true;
}

static bool parse_swap(const char *value, struct parse *parse)
{
	return parse_process(value, &parse->record.swap_pid, &parse->record.swap_start_ticks);
}

static bool parse_frozen_for(const char *value, struct parse *parse)
{
	return parse_process(value, &parse->record.frozen_for_pid,
			     &parse->record.frozen_for_start_ticks);
}

static bool parse_comm(const char *value, struct parse *parse)
{
	size_t used = 0;

	while (*value) {
		uint8_t byte = (uint8_t)*value++;

		if (byte == '%') {
			if (!parse_hex_byte(value, &byte) || byte == 0)
				return false;
			value += 2;
		}
		if (used == sizeof(parse->record.comm) - 1)
			return false;
		parse->record.comm[used++] = (char)byte;
	}
	parse->record.comm[used] = '\0';
	return true;
}

static const struct key {
	const char *name;
	bool (*parse)(const char *value, struct parse *parse);
	bool may_repeat; /* may be missing or repeated; the other keys occur exactly once */
} keys[] = {
	{"boot", parse_boot, false},
	{"pid", parse_pid, false},
	{"start_ticks", parse_start_ticks, false},
	{"state", parse_state, false},
	{"generation", parse_generation, false},
	{"engine", parse_engine, false},
	{"since_usec", parse_since, false},
	{"gpu", parse_gpu, true},
	{"moved", parse_moved, true},
	{"moving", parse_moving, true},
	{"swap", parse_swap, true},
	{"frozen_for", parse_frozen_for, true},
	{"comm", parse_comm, false},
};

static bool parse_line(char *line, struct parse *parse)
{
	char *value = strchr(line, ' ');

	if (!value)
		return false;
	*value++ = '\0';
	for (size_t i = 0; i < GCR_ARRAY_SIZE(keys); i++) {
		if (strcmp(line, keys[i].name) != 0)
			continue;
		if (!keys[i].may_repeat && parse->keys_seen & 1u << i)
			return false;
		parse->keys_seen |= 1u << i;
		return keys[i].parse(value, parse);
	}
	return true; /* a key of a later version */
}

static bool parse_record(char *text, struct parse *parse)
{
	char *rest = text;
	char *line = strsep(&rest, "\n");

	if (strcmp(line, VERSION_LINE) != 0)
		return false;
	while ((line = strsep(&rest, "\n"))) {
		/* the last line ends with a newline, too: a file cut short is no record */
		if (!rest)
			break;
		if (!parse_line(line, parse))
			return false;
	}
	if (!line || *line != '\0')
		return false;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(keys); i++)
		if (!keys[i].may_repeat && !(parse->keys_seen & 1u << i))
			return false;
	return true;
}

static int read_record(int records_fd, const char *name, struct parse *parse)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -1;
	char expected[NAME_BYTES];
	struct stat status;
	size_t used = 0;

	fd = openat(records_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) < 0)
		return -errno;
	if (!S_ISREG(status.st_mode))
		return -EBADMSG;
	if (status.st_uid != geteuid() || status.st_mode & 022)
		return -EPERM;
	if (status.st_size > RECORD_BYTES_MAX)
		return -EFBIG;
	text = malloc(RECORD_BYTES_MAX + 1);
	if (!text)
		return -ENOMEM;
	while (used < RECORD_BYTES_MAX) {
		ssize_t got = read(fd, text + used, RECORD_BYTES_MAX - used);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		used += (size_t)got;
	}
	text[used] = '\0';
	if (strlen(text) != used || !parse_record(text, parse))
		return -EBADMSG;
	record_name(expected, parse->record.pid, parse->record.start_ticks);
	return strcmp(expected, name) == 0 ? 0 : -EBADMSG;
}

int gcr_record_read(int directory_fd, pid_t pid, uint64_t start_ticks,
		    struct gcr_record *ret_record)
{
	_cleanup_close_ int records_fd = -1;
	char boot_id[BOOT_ID_BYTES];
	struct parse parse = {};
	char name[NAME_BYTES];
	int r;

	r = read_boot_id(boot_id);
	if (r < 0)
		return r;
	records_fd = open_records(directory_fd, false);
	if (records_fd < 0)
		return records_fd;
	record_name(name, pid, start_ticks);
	r = read_record(records_fd, name, &parse);
	if (r < 0)
		return r;
	if (strcmp(parse.boot_id, boot_id) != 0)
		return -ENOENT;
	*ret_record = parse.record;
	return 0;
}

int gcr_record_end_exchange(int directory_fd, pid_t pid, uint64_t start_ticks)
{
	_cleanup_close_ int records_fd = -1;
	struct parse parse = {};
	char name[NAME_BYTES];
	int r;

	records_fd = open_records(directory_fd, false);
	if (records_fd < 0)
		return records_fd == -ENOENT ? 0 : records_fd;
	record_name(name, pid, start_ticks);
	r = read_record(records_fd, name, &parse);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (!parse.record.swap_pid && !parse.record.frozen_for_pid)
		return 0;
	parse.record.swap_pid = parse.record.frozen_for_pid = 0;
	return gcr_record_write(directory_fd, &parse.record);
}

struct names {
	char (*list)[NAME_BYTES];
	size_t count;
};

static void free_names(struct names *names)
{
	free(names->list);
}

/* Opens the directory of the records for reading its names; the caller closes *ret_directory.
 * -errno. */
static int open_stream(int records_fd, DIR **ret_directory)
{
	int fd = openat(records_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	*ret_directory = fdopendir(fd);
	if (*ret_directory)
		return 0;
	close(fd);
	return -ENOMEM;
}

/*
 * Lists the names of the records. All are read first, so that writes and removals by the visitor do
 * not disturb the walk.
 */
static int list_names(int records_fd, struct names *names,
		      void (*unreadable)(const char *name, int error, void *data), void *data)
{
	_cleanup_closedir_ DIR *directory = NULL;
	size_t room = 0;
	int r = open_stream(records_fd, &directory);

	if (r < 0)
		return r;
	for (;;) {
		struct dirent *entry;

		errno = 0;
		entry = readdir(directory);
		if (!entry)
			return -errno;
		/* "." and "..", and records that are being written. */
		if (entry->d_name[0] == '.')
			continue;
		if (strlen(entry->d_name) >= NAME_BYTES) {
			if (unreadable)
				unreadable(entry->d_name, EBADMSG, data);
			continue;
		}
		if (names->count == room) {
			void *larger;

			room = room ? room * 2 : 16;
			larger = reallocarray(names->list, room, NAME_BYTES);
			if (!larger)
				return -ENOMEM;
			names->list = larger;
		}
		memcpy(names->list[names->count++], entry->d_name, strlen(entry->d_name) + 1);
	}
}

int gcr_record_each(int directory_fd, int (*visit)(const struct gcr_record *record, void *data),
		    void (*unreadable)(const char *name, int error, void *data), void *data)
{
	_cleanup_(free_names) struct names names = {};
	_cleanup_close_ int records_fd = -1;
	char boot_id[BOOT_ID_BYTES];
	int r;

	records_fd = open_records(directory_fd, false);
	if (records_fd < 0)
		return records_fd == -ENOENT ? 0 : records_fd;
	r = read_boot_id(boot_id);
	if (r < 0)
		return r;
	r = list_names(records_fd, &names, unreadable, data);
	if (r < 0)
		return r;
	for (size_t i = 0; i < names.count; i++) {
		struct parse parse = {};

		r = read_record(records_fd, names.list[i], &parse);
		if (r == -ENOENT) /* removed since */
			continue;
		if (r < 0) {
			if (unreadable)
				unreadable(names.list[i], -r, data);
			continue;
		}
		if (strcmp(parse.boot_id, boot_id) != 0)
			continue;
		r = visit(&parse.record, data);
		if (r)
			return r;
	}
	return 0;
}

/* Removes the files of @records_fd that are no records, except for spares of records. -errno. */
static int remove_unfinished(int records_fd)
{
	_cleanup_closedir_ DIR *directory = NULL;
	const struct dirent *entry;
	int r = open_stream(records_fd, &directory);

	if (r < 0)
		return r;
	while ((entry = readdir(directory))) {
		size_t length = strlen(entry->d_name);
		char name[NAME_BYTES];
		bool is_spare = entry->d_name[0] == '.' && length > strlen(SPARE_END) + 1 &&
				length < SPARE_BYTES &&
				!strcmp(entry->d_name + length - strlen(SPARE_END), SPARE_END);

		if (entry->d_name[0] != '.')
			continue;
		snprintf(name, sizeof(name), "%.*s",
			 is_spare ? (int)(length - strlen(SPARE_END) - 1) : 0, entry->d_name + 1);
		/* Unlinking "." and ".." fails. */
		if (!is_spare || faccessat(records_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
			unlinkat(records_fd, entry->d_name, 0);
	}
	return 0;
}

/*
 * Gives a record of an earlier version, or of a daemon that died before it had made one, its spare.
 * @data: the directory of the records. If there is no room, a later write says so. Returns 0.
 */
static int give_spare(const struct gcr_record *record, void *data)
{
	_cleanup_free_ char *text = NULL;
	const int *records_fd = data;
	char spare[SPARE_BYTES];
	char name[NAME_BYTES];
	size_t bytes = 0;

	if (print_record(record, &text, &bytes) < 0)
		return 0;
	record_name(name, record->pid, record->start_ticks);
	spare_name(spare, name);
	provide_spare(*records_fd, spare, text, bytes);
	return 0;
}

int gcr_record_prepare(int directory_fd)
{
	_cleanup_close_ int records_fd = open_records(directory_fd, false);
	int r;

	if (records_fd < 0)
		return records_fd == -ENOENT ? 0 : records_fd;
	r = remove_unfinished(records_fd);
	if (r == 0)
		gcr_record_each(directory_fd, give_spare, NULL, &records_fd);
	return r;
}
