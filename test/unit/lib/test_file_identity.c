/* SPDX-License-Identifier: MIT */
/*
 * lib/file_identity.c and lib/build_id.c: an unchanged file is recognised, and a different file at
 * the same path is detected.
 */
#include "lib/file_identity.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/hold_opening.h"
#include "test/unit/test.h"

#define MIB   (UINT64_C(1) << 20)
#define LARGE (64 * MIB + 1)
#define HUGE  (UINT64_C(1) << 40)
#define MANY  200

static char directory[] = "/tmp/gcr-identity-XXXXXX";
static const struct gcr_identity_options plain = {.threads = 3};

static char *path_of(const char *name)
{
	char *path = NULL;

	CHECK(asprintf(&path, "%s/%s", directory, name) > 0);
	return path;
}

static void write_at(const char *path, uint64_t offset, const void *bytes, size_t size)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && pwrite(fd, bytes, size, (off_t)offset) == (ssize_t)size);
}

/* Changes the byte at @offset. */
static void change(const char *path, uint64_t offset)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
	char byte;

	CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)offset) == 1);
	byte ^= 0x55;
	CHECK(pwrite(fd, &byte, 1, (off_t)offset) == 1);
}

static struct gcr_file_identity make(const char *path, bool is_append_only)
{
	struct gcr_file_identity file = {
		.path = strdup(path),
		.is_append_only = is_append_only,
		.kind = GCR_IDENTITY_KINDS,
	};
	struct gcr_error error = {0};
	int result = gcr_file_identities_make(&file, 1, &plain, &error);

	if (result)
		fprintf(stderr, "%s\n", error.words);
	CHECK(!result);
	return file;
}

static void check(const struct gcr_file_identity *file, int number, const char *words)
{
	struct gcr_error error = {0};
	int result = gcr_file_identities_check(file, 1, &plain, &error);

	if (result != -number || (number && !strstr(error.words, words))) {
		fprintf(stderr, "%d, %s; expected %s\n", result, error.words, words);
		CHECK(!"the check");
	}
	CHECK(!number ||
	      (error.number == number && !strncmp(error.words, file->path, strlen(file->path))));
	CHECK(gcr_file_identities_check(file, 1, &plain, NULL) == result);
}

static void test_small(void)
{
	_cleanup_free_ char *path = path_of("small"), *away = path_of("away");
	struct gcr_file_identity file;
	struct gcr_digest digest;

	write_at(path, 0, "0123456789", 10);
	file = make(path, false);
	gcr_digest_of("0123456789", 10, &digest);
	CHECK(file.kind == GCR_IDENTITY_DIGEST && file.bytes == 10);
	CHECK(gcr_digest_equal(&file.digest, &digest) && !file.build_id_bytes);
	check(&file, 0, NULL);
	for (uint64_t i = 0; i < 10; i++) {
		change(path, i);
		check(&file, ESTALE, ": what is in it is not what it was");
		change(path, i);
	}
	write_at(path, 10, "", 1);
	check(&file, ESTALE, ": it is 11 bytes long, not 10");
	CHECK(!truncate(path, 9));
	check(&file, ESTALE, ": it is 9 bytes long, not 10");
	write_at(path, 9, "9", 1);
	check(&file, 0, NULL);

	/*
	 * A missing or replaced file is detected; a symbolic link to the original file is accepted.
	 */
	CHECK(!rename(path, away));
	check(&file, ENOENT, ": it is not there");
	CHECK(!symlink(away, path));
	check(&file, 0, NULL);
	CHECK(!unlink(path) && !symlink("nowhere", path));
	check(&file, ENOENT, ": it is not there");
	CHECK(!unlink(path) && !symlink(path, path));
	check(&file, ELOOP, ": ");
	CHECK(!unlink(path) && !symlink("/dev/zero", path));
	check(&file, ESTALE, ": it is no regular file");
	CHECK(!unlink(path) && !mkfifo(path, 0600));
	check(&file, ESTALE, ": it is no regular file");
	CHECK(gcr_file_identities_make(&file, 1, &plain, NULL) == -ESTALE);
	CHECK(!unlink(path) && !mkdir(path, 0700));
	check(&file, ESTALE, ": it is no regular file");
	CHECK(!rmdir(path) && !rename(away, path));
	free(file.path);
	file.path = path_of("small/x");
	check(&file, ENOENT, ": it is not there");
	free(file.path);
	file.path = strdup(path);
	CHECK(gcr_file_identities_make(&file, 1, &plain, NULL) == 0);
	if (geteuid()) {
		CHECK(!chmod(path, 0));
		check(&file, EACCES, ": Permission denied");
	}
	CHECK(!unlink(path));
	free(file.path);

	write_at(path, 0, "", 0);
	file = make(path, false);
	CHECK(file.kind == GCR_IDENTITY_DIGEST && !file.bytes);
	check(&file, 0, NULL);
	CHECK(!unlink(path));
	free(file.path);
}

/* The message shows the end of a path that is too long, and the cause. */
static void test_long_path(void)
{
	struct gcr_error error = {0};
	char name[251] = "";
	char *first, *second;
	struct gcr_file_identity file = {.kind = GCR_IDENTITY_DIGEST};

	memset(name, 'x', sizeof(name) - 1);
	first = path_of(name);
	CHECK(!mkdir(first, 0700));
	CHECK(asprintf(&second, "%s/%s-end", first, name) > 0);
	file.path = second;
	CHECK(gcr_file_identities_check(&file, 1, &plain, &error) == -ENOENT);
	CHECK(!strncmp(error.words, "...xxx", 6) && strstr(error.words, "x-end: it is not there"));
	CHECK(!rmdir(first));
	free(first);
	free(second);
}

/* A program's ELF file as a linker makes it, reduced to the parts that are read. */
struct program {
	Elf64_Ehdr header;
	Elf64_Phdr segments[2];
	Elf64_Nhdr other_note;
	char other_name[8];
	char other_words[4];
	Elf64_Nhdr note;
	char name[4];
	uint8_t build_id[20];
	char code[100];
};

static struct program make_program(void)
{
	struct program program = {
		.header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64},
			   .e_phoff = offsetof(struct program, segments),
			   .e_phentsize = sizeof(Elf64_Phdr),
			   .e_phnum = 2},
		.segments = {{.p_type = PT_LOAD},
			     {.p_type = PT_NOTE,
			      .p_offset = offsetof(struct program, other_note),
			      .p_filesz = offsetof(struct program, code) -
					  offsetof(struct program, other_note)}},
		.other_note = {.n_namesz = 6, .n_descsz = 1, .n_type = 7},
		.other_name = "other",
		.note = {.n_namesz = 4, .n_descsz = 20, .n_type = NT_GNU_BUILD_ID},
		.name = "GNU",
		.build_id = {0xde, 0xad, 0xbe, 0xef},
		.code = "code",
	};

	return program;
}

static void test_build_id(void)
{
	_cleanup_free_ char *path = path_of("program");
	struct program program = make_program();
	struct gcr_file_identity file;

	write_at(path, 0, &program, sizeof(program));
	file = make(path, false);
	CHECK(file.kind == GCR_IDENTITY_BUILD_ID && file.bytes == sizeof(program));
	CHECK(file.build_id_bytes == 20 && !memcmp(file.build_id, program.build_id, 20));
	check(&file, 0, NULL);
	/* A build id is trusted: a change of the code alone is not detected. */
	change(path, offsetof(struct program, code));
	check(&file, 0, NULL);
	change(path, offsetof(struct program, build_id) + 19);
	check(&file, ESTALE,
	      ": its build id is deadbeef00000000000000000000000000000055, not "
	      "deadbeef00000000000000000000000000000000");
	change(path, offsetof(struct program, build_id) + 19);
	change(path, offsetof(struct program, name));
	check(&file, ESTALE, ": its build id is not there, not deadbeef");
	change(path, offsetof(struct program, name));
	write_at(path, sizeof(program), "x", 1);
	check(&file, ESTALE, " bytes long, not ");
	free(file.path);
	/* A program file that grows is no longer identified by its build id, but by its digest. */
	file = make(path, true);
	CHECK(file.kind == GCR_IDENTITY_DIGEST && file.bytes == sizeof(program) + 1);
	free(file.path);
	CHECK(!unlink(path));
}

/* Build ids that are missing or malformed. */
static void test_no_build_id(void)
{
	_cleanup_free_ char *path = path_of("broken");

#define NONE(statement)                                       \
	do {                                                  \
		struct program program = make_program();      \
		struct gcr_file_identity file;                \
                                                              \
		statement;                                    \
		write_at(path, 0, &program, sizeof(program)); \
		file = make(path, false);                     \
		CHECK(file.kind == GCR_IDENTITY_DIGEST);      \
		check(&file, 0, NULL);                        \
		free(file.path);                              \
	} while (0)

	NONE(program.header.e_ident[0] = 0);
	NONE(program.header.e_ident[EI_CLASS] = ELFCLASS32);
	NONE(program.header.e_phentsize = 1);
	NONE(program.header.e_phnum = 1);
	NONE(program.header.e_phoff = UINT64_MAX);
	NONE(program.header.e_phoff = INT64_MAX / 2);
	NONE(program.header.e_phoff = sizeof(program) - 1);
	NONE(program.segments[1].p_type = PT_LOAD);
	NONE(program.segments[1].p_offset = UINT64_MAX);
	NONE(program.segments[1].p_offset = sizeof(program));
	NONE(program.segments[1].p_filesz = UINT64_MAX);
	NONE(program.segments[1].p_filesz = 20);
	NONE(program.other_note.n_namesz = UINT32_MAX);
	NONE(program.other_note.n_descsz = UINT32_MAX);
	NONE(program.note.n_namesz = 3);
	NONE(program.note.n_namesz = UINT32_MAX - 2);
	NONE(program.note.n_descsz = 0);
	NONE(program.note.n_descsz = 1000);
	NONE(program.note.n_type = 1);
	NONE(program.name[0] = 'g');
#undef NONE
	CHECK(!unlink(path));
}

static void test_append_only(void)
{
	_cleanup_free_ char *path = path_of("log");
	struct gcr_file_identity file;

	write_at(path, 0, "line\n", 5);
	file = make(path, true);
	CHECK(file.kind == GCR_IDENTITY_DIGEST && file.bytes == 5);
	check(&file, 0, NULL);
	write_at(path, 5, "more\n", 5);
	check(&file, 0, NULL);
	change(path, 6);
	check(&file, 0, NULL);
	change(path, 4);
	check(&file, ESTALE, ": what it began with is not what it was");
	change(path, 4);
	CHECK(!truncate(path, 4));
	check(&file, ESTALE, ": it is 4 bytes long, not 5 or more");
	CHECK(!unlink(path));
	check(&file, ENOENT, ": it is not there");
	free(file.path);
}

/* Checks that the pieces of a sample begin where the header says. */
static void expect_sample(const char *path, uint64_t bytes, const struct gcr_digest *found)
{
	size_t total = (size_t)GCR_IDENTITY_PIECES * GCR_IDENTITY_PIECE_BYTES;
	_cleanup_free_ char *pieces = malloc(total);
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct gcr_digest digest;

	CHECK(pieces && fd >= 0);
	for (uint64_t i = 0; i < GCR_IDENTITY_PIECES; i++) {
		__extension__ unsigned __int128 product =
			(unsigned __int128)i * (bytes - GCR_IDENTITY_PIECE_BYTES);

		CHECK(pread(fd, pieces + i * GCR_IDENTITY_PIECE_BYTES, GCR_IDENTITY_PIECE_BYTES,
			    (off_t)(product / 63)) == GCR_IDENTITY_PIECE_BYTES);
	}
	gcr_digest_of(pieces, total, &digest);
	CHECK(gcr_digest_equal(&digest, found));
}

static void test_sample(void)
{
	_cleanup_free_ char *path = path_of("large");
	struct gcr_file_identity file;

	/* The largest file that is digested completely. */
	write_at(path, LARGE - 2, "x", 1);
	file = make(path, false);
	CHECK(file.kind == GCR_IDENTITY_DIGEST && file.bytes == 64 * MIB);
	change(path, 3 * MIB / 2 + 7);
	check(&file, ESTALE, ": what is in it is not what it was");
	free(file.path);

	write_at(path, LARGE - 1, "y", 1);
	file = make(path, false);
	CHECK(file.kind == GCR_IDENTITY_SAMPLE && file.bytes == LARGE);
	expect_sample(path, LARGE, &file.digest);
	check(&file, 0, NULL);
	for (uint64_t i = 0; i < GCR_IDENTITY_PIECES; i += 9) {
		uint64_t begin = i * (LARGE - GCR_IDENTITY_PIECE_BYTES) / 63;

		change(path, begin);
		check(&file, ESTALE, ": what is in it is not what it was");
		change(path, begin);
		change(path, begin + GCR_IDENTITY_PIECE_BYTES - 1);
		check(&file, ESTALE, ": what is in it is not what it was");
		change(path, begin + GCR_IDENTITY_PIECE_BYTES - 1);
		if (i == 63)
			continue;
		change(path, begin + GCR_IDENTITY_PIECE_BYTES); /* between two pieces */
		check(&file, 0, NULL);
	}
	write_at(path, LARGE, "z", 1);
	check(&file, ESTALE, " bytes long, not ");
	free(file.path);

	CHECK(!truncate(path, HUGE + 12345));
	change(path, HUGE + 12344);
	file = make(path, true);
	CHECK(file.kind == GCR_IDENTITY_SAMPLE && file.bytes == HUGE + 12345);
	expect_sample(path, HUGE + 12345, &file.digest);
	write_at(path, HUGE + 12345, "more", 4);
	check(&file, 0, NULL);
	change(path, HUGE + 12344);
	check(&file, ESTALE, ": what it began with is not what it was");
	free(file.path);
	CHECK(!unlink(path));
}

static void test_kernels_own(void)
{
	_cleanup_free_ char *path = path_of("version");
	struct gcr_file_identity file = make("/proc/version", false);

	CHECK(file.kind == GCR_IDENTITY_NAME && !file.bytes);
	check(&file, 0, NULL);
	file.kind = GCR_IDENTITY_DIGEST;
	check(&file, ESTALE, ": it is now a file of the kernel's own");
	free(file.path);
	write_at(path, 0, "x", 1);
	file = make(path, false);
	CHECK(file.kind == GCR_IDENTITY_DIGEST);
	file.kind = GCR_IDENTITY_NAME;
	check(&file, ESTALE, ": it is no longer a file of the kernel's own");
	CHECK(!unlink(path));
	check(&file, ENOENT, ": it is not there");
	free(file.path);
}

static void test_refused_device(void)
{
	_cleanup_free_ char *path = path_of("ours");
	struct gcr_identity_options options = {.threads = 1};
	struct gcr_file_identity file;
	struct gcr_error error = {0};
	struct stat stat;

	write_at(path, 0, "x", 1);
	file = make(path, false);
	CHECK(!lstat(path, &stat));
	options.refused_device = stat.st_dev;
	CHECK(gcr_file_identities_make(&file, 1, &options, &error) == -EOPNOTSUPP);
	CHECK(strstr(error.words, "ours: it is in the mount of gpucrfs itself"));
	CHECK(gcr_file_identities_check(&file, 1, &options, &error) == -EOPNOTSUPP);
	options.refused_device = stat.st_dev + 1;
	CHECK(!gcr_file_identities_check(&file, 1, &options, &error));
	CHECK(!unlink(path));
	free(file.path);
}

/*
 * Many files and threads: the error is always that of the first bad file in the list, whichever
 * thread finds it.
 */
static void test_many(void)
{
	struct gcr_file_identity *files = calloc(MANY, sizeof(*files));
	struct gcr_identity_options options = {.threads = 1};
	char contents[10 + MANY] = "contents";
	struct gcr_error error;

	CHECK(files);
	for (size_t i = 0; i < MANY; i++) {
		char name[16];

		snprintf(name, sizeof(name), "%03zu", i);
		files[i].path = path_of(name);
		write_at(files[i].path, 0, contents, 10 + i);
		files[i].kind = GCR_IDENTITY_KINDS;
	}
	for (unsigned int threads = 0; threads <= 100; threads += 20) {
		options.threads = threads;
		CHECK(!gcr_file_identities_make(files, MANY, &options, &error));
		CHECK(!gcr_file_identities_check(files, MANY, &options, &error));
	}
	CHECK(!gcr_file_identities_make(files, 0, &options, &error));
	CHECK(!gcr_file_identities_check(NULL, 0, &options, &error));
	for (size_t i = 0; i < MANY; i++)
		CHECK(files[i].kind == GCR_IDENTITY_DIGEST && files[i].bytes == 10 + i);
	change(files[150].path, 5);
	change(files[23].path, 7);
	change(files[21].path, 3);
	CHECK(!unlink(files[22].path));
	for (int round = 0; round < 200 / TEST_SLOW; round++) {
		options.threads = 1 + (unsigned int)round % 8;
		CHECK(gcr_file_identities_check(files, MANY, &options, &error) == -ESTALE);
		CHECK(strstr(error.words, "/021: what is in it is not"));
		CHECK(gcr_file_identities_check(files + 22, MANY - 22, &options, &error) ==
		      -ENOENT);
		CHECK(strstr(error.words, "/022: it is not there"));
		CHECK(gcr_file_identities_make(files, MANY, &options, &error) == -ENOENT);
		CHECK(strstr(error.words, "/022: it is not there"));
		/*
		 * gcr_file_identities_make() has replaced the identities before the missing file:
		 * make the original ones again.
		 */
		change(files[21].path, 3);
		CHECK(!gcr_file_identities_make(files + 21, 1, &options, &error));
		change(files[21].path, 3);
		change(files[23].path, 7);
		CHECK(!gcr_file_identities_make(files + 23, 1, &options, &error));
		change(files[23].path, 7);
	}
	for (size_t i = 0; i < MANY; i++)
		unlink(files[i].path);
	gcr_file_identities_free(files, MANY);
	gcr_file_identities_free(NULL, 3);
}

static void *set_flag(void *flag)
{
	atomic_store((atomic_bool *)flag, true);
	return NULL;
}

static void *cut_file(void *path)
{
	CHECK(!truncate(path, 1));
	return NULL;
}

/* A file too large to read: the check ends when it is cancelled, or when the file ends. */
static void test_cancel(void)
{
	atomic_bool cancel = false;
	struct gcr_identity_options options = {.threads = 2, .cancel = &cancel};
	struct gcr_file_identity files[2] = {{.kind = GCR_IDENTITY_DIGEST, .bytes = HUGE},
					     {.kind = GCR_IDENTITY_DIGEST, .bytes = HUGE}};
	struct gcr_error error = {0};
	pthread_t thread;

	files[0].path = path_of("endless");
	files[1].path = strdup(files[0].path);
	write_at(files[0].path, 0, "x", 1);
	CHECK(!truncate(files[0].path, HUGE));
	CHECK(!pthread_create(&thread, NULL, set_flag, &cancel));
	CHECK(gcr_file_identities_check(files, 2, &options, &error) == -ECANCELED);
	CHECK(!pthread_join(thread, NULL));
	CHECK(gcr_file_identities_check(files, 2, &options, &error) == -ECANCELED);
	CHECK(gcr_file_identities_make(files, 2, &options, &error) == -ECANCELED);
	cancel = false;
	files[0].kind = files[1].kind = GCR_IDENTITY_DIGEST;
	files[0].bytes = files[1].bytes = HUGE;
	CHECK(!pthread_create(&thread, NULL, cut_file, files[0].path));
	CHECK(gcr_file_identities_check(files, 2, &options, &error) == -ESTALE);
	CHECK(!pthread_join(thread, NULL));
	CHECK(!unlink(files[0].path));
	free(files[0].path);
	free(files[1].path);
}

/* A file system that does not answer blocks a thread of the library, but not the caller. */
static void test_no_answer(void)
{
	_cleanup_free_ char *path = path_of("held"), *other = path_of("other");
	struct gcr_file_identity files[2] = {{0}};
	struct gcr_identity_options options = {.threads = 2};
	struct gcr_error error = {0};
	int64_t since_usec;
	int fd;

	write_at(path, 0, "held", 4);
	write_at(other, 0, "other", 5);
	fd = hold_opening(path);
	if (fd < 0)
		return;
	files[0].path = path;
	files[1].path = other;
	since_usec = gcr_clock_usec();
	options.deadline_usec = since_usec + 100 * GCR_USEC_PER_MSEC;
	CHECK(gcr_file_identities_make(files, 2, &options, &error) == -ETIMEDOUT);
	CHECK(error.number == ETIMEDOUT && *error.words);
	CHECK(gcr_clock_usec() > since_usec + 100 * GCR_USEC_PER_MSEC);
	allow_opening(fd);
	options.deadline_usec = 0;
	CHECK(gcr_file_identities_make(files, 2, &options, &error) == 0);
	CHECK(files[0].bytes == 4 && files[1].bytes == 5);
	CHECK(unlink(path) == 0 && unlink(other) == 0);
}

static void test_list(void)
{
	char paths[][8] = {"/a", "/b\nc", "/d e%", "/f\r", "/proc/x", "/\xff"};
	struct gcr_file_identity files[GCR_ARRAY_SIZE(paths)] = {{0}};
	size_t bytes = 0, left_out = 0;
	char *text = NULL;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(paths); i++)
		files[i].path = paths[i];
	files[4].kind = GCR_IDENTITY_NAME;
	CHECK(!gcr_file_identities_list(files, GCR_ARRAY_SIZE(paths), &text, &bytes, &left_out));
	CHECK(!strcmp(text, "/a\n/d e%\n/\xff\n") && bytes == strlen(text) && left_out == 2);
	free(TAKE_PTR(text));
	CHECK(!gcr_file_identities_list(files, 0, &text, &bytes, &left_out));
	CHECK(!strcmp(text, "") && !bytes && !left_out);
	free(text);
}

int main(void)
{
	CHECK(mkdtemp(directory));
	test_small();
	test_long_path();
	test_build_id();
	test_no_build_id();
	test_append_only();
	test_sample();
	test_kernels_own();
	test_refused_device();
	test_many();
	test_cancel();
	test_no_answer();
	test_list();
	CHECK(!rmdir(directory));
	return 0;
}
