/* SPDX-License-Identifier: MIT */
/* The credentials in CRIU's images, compared with those of a process that runs. */
#include "criu-glue/creds.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/unit/child.h"
#include "test/unit/criu/message.h"
#include "test/unit/test.h"

#define SOME_UID 4001
#define SOME_GID 4002

static char directory[] = "/tmp/gcr-creds-XXXXXX";
static int images_fd;

static void write_image(const char *name, uint32_t kind, const struct message *messages,
			size_t count)
{
	const uint32_t magic[2] = {0x54564319, kind};
	int fd = openat(images_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, magic, sizeof(magic)) == sizeof(magic));
	for (size_t i = 0; i < count; i++) {
		uint32_t length = (uint32_t)messages[i].used;

		CHECK(write(fd, &length, sizeof(length)) == sizeof(length));
		CHECK(write(fd, messages[i].bytes, length) == (ssize_t)length);
	}
	close(fd);
}

/* What is written into the image of a thread. */
struct creds {
	uint64_t ids[8];
	uint64_t sets[5];
	uint64_t groups[8];
	unsigned int groups_count;
	uint64_t securebits;
	bool no_new_privs;
	bool is_old; /* of CRIU 3: without the ambient set */
	bool is_packed;
	unsigned int state;
};

static void put_set(struct message *message, unsigned int field, uint64_t set)
{
	put_number(message, field, (uint32_t)set);
	put_number(message, field, set >> 32);
}

static void write_core(pid_t number, const struct creds *creds)
{
	struct message core = {0}, task = {0}, thread = {0}, inner = {0};
	char name[32];

	for (unsigned int i = 0; i < 8; i++)
		put_number(&inner, i + 1, creds->ids[i]);
	for (unsigned int i = 0; i < 4; i++)
		put_set(&inner, i + 9, creds->sets[i]);
	put_number(&inner, 13, creds->securebits);
	if (creds->is_packed) {
		struct message groups = {0};

		for (unsigned int i = 0; i < creds->groups_count; i++)
			put(&groups, creds->groups[i]);
		put_message(&inner, 14, &groups);
	} else {
		for (unsigned int i = 0; i < creds->groups_count; i++)
			put_number(&inner, 14, creds->groups[i]);
	}
	put_number(&inner, 18, creds->no_new_privs);
	if (!creds->is_old)
		put_set(&inner, 19, creds->sets[4]);
	put_number(&task, 1, creds->state);
	put_number(&thread, 1, 0);
	put_message(&thread, 10, &inner);
	put_number(&core, 1, 1);
	put_message(&core, 3, &task);
	put_message(&core, 5, &thread);
	snprintf(name, sizeof(name), "core-%d.img", (int)number);
	write_image(name, 0x55053847, &core, 1);
}

static void write_tree(const pid_t *pids, size_t count, pid_t thread)
{
	struct message messages[4] = {0};

	for (size_t i = 0; i < count; i++) {
		put_number(&messages[i], 1, (uint64_t)pids[i]);
		put_number(&messages[i], 2, i ? (uint64_t)pids[0] : 0);
		put_number(&messages[i], 5, (uint64_t)pids[i]);
		if (!i && thread)
			put_number(&messages[i], 5, (uint64_t)thread);
	}
	write_image("pstree.img", 0x50273030, messages, count);
}

/* The credentials of a process, as the kernel says. */
static struct creds creds_of(pid_t pid)
{
	static const char *const sets[] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"};
	struct creds creds = {.state = 1};
	char path[64], line[4096];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		uint64_t *ids = creds.ids;

		if (!strncmp(line, "Uid:", 4))
			CHECK(sscanf(line + 4, "%" SCNu64 "%" SCNu64 "%" SCNu64 "%" SCNu64, &ids[0],
				     &ids[2], &ids[4], &ids[6]) == 4);
		if (!strncmp(line, "Gid:", 4))
			CHECK(sscanf(line + 4, "%" SCNu64 "%" SCNu64 "%" SCNu64 "%" SCNu64, &ids[1],
				     &ids[3], &ids[5], &ids[7]) == 4);
		if (!strncmp(line, "NoNewPrivs:", 11))
			creds.no_new_privs = strchr(line, '1');
		for (size_t i = 0; i < GCR_ARRAY_SIZE(sets); i++)
			if (!strncmp(line, sets[i], 6))
				creds.sets[i] = strtoull(line + 7, NULL, 16);
		if (!strncmp(line, "Groups:", 7))
			for (char *at = line + 7, *end; creds.groups_count < 8; at = end) {
				uint64_t group = strtoull(at, &end, 10);

				if (end == at)
					break;
				creds.groups[creds.groups_count++] = group;
			}
	}
	fclose(file);
	return creds;
}

static int check(pid_t pid, const char *words)
{
	struct gcr_error error = {0};
	int result = gcr_criu_check_creds(images_fd, &pid, 1, false, &error);

	CHECK(error.number == -result);
	if (words && !strstr(error.words, words))
		fprintf(stderr, "found %s, expected %s\n", error.words, words);
	CHECK(!words || strstr(error.words, words));
	return result;
}

static void become_somebody(const char *argument)
{
	const gid_t groups[] = {4100, 4003, 4004};

	(void)argument;
	if (geteuid())
		return;
	CHECK(!setgroups(GCR_ARRAY_SIZE(groups), groups));
	CHECK(!setresgid(SOME_GID, SOME_GID, SOME_GID) && !setresuid(SOME_UID, SOME_UID, SOME_UID));
}

/* Each number that differs is found, in either direction. */
static void test_differences(pid_t pid)
{
	const struct creds right = creds_of(pid);
	struct creds creds = right;

	write_tree(&pid, 1, 0);
	write_core(pid, &creds);
	CHECK(!check(pid, NULL));
	for (unsigned int i = 0; i < 8; i++) {
		creds = right;
		creds.ids[i] = 0;
		if (!right.ids[i])
			creds.ids[i] = 1;
		write_core(pid, &creds);
		CHECK(check(pid, "other user or group ids") == -EPERM);
	}
	for (unsigned int i = 0; i < 5; i++)
		for (unsigned int bit = 0; bit < 64; bit += 21) {
			creds = right;
			creds.sets[i] ^= UINT64_C(1) << bit;
			write_core(pid, &creds);
			CHECK(check(pid, "other Cap") == -EPERM);
		}
	creds = right;
	creds.no_new_privs = !right.no_new_privs;
	write_core(pid, &creds);
	CHECK(check(pid, "no_new_privs") == -EPERM);
	creds = right;
	creds.groups[creds.groups_count++] = 0;
	write_core(pid, &creds);
	CHECK(check(pid, "other groups") == -EPERM);
}

/* A thread that CRIU has restored may have less, but no more. */
static void test_restored(pid_t pid)
{
	const struct creds right = creds_of(pid);
	struct creds creds = right;
	struct gcr_error error;

	write_tree(&pid, 1, 0);
	write_core(pid, &creds);
	CHECK(!gcr_criu_check_creds(images_fd, &pid, 1, true, &error));
	creds.sets[3] = right.sets[3] | UINT64_C(1) << 62;
	write_core(pid, &creds);
	CHECK(!gcr_criu_check_creds(images_fd, &pid, 1, true, &error));
	if (right.sets[3]) {
		creds.sets[3] = right.sets[3] & (right.sets[3] - 1);
		write_core(pid, &creds);
		CHECK(gcr_criu_check_creds(images_fd, &pid, 1, true, &error) == -EPERM);
	}
	creds = right;
	creds.no_new_privs = !right.no_new_privs;
	write_core(pid, &creds);
	CHECK(gcr_criu_check_creds(images_fd, &pid, 1, true, &error) ==
	      (right.no_new_privs ? 0 : -EPERM));
	creds = right;
	creds.ids[0]++;
	write_core(pid, &creds);
	CHECK(gcr_criu_check_creds(images_fd, &pid, 1, true, &error) == -EPERM);
}

static void test_groups(pid_t pid)
{
	const struct creds right = creds_of(pid);
	struct creds creds = right;

	write_tree(&pid, 1, 0);
	/* In any order, and packed. */
	for (unsigned int i = 0; i < right.groups_count; i++)
		creds.groups[i] = right.groups[right.groups_count - 1 - i];
	write_core(pid, &creds);
	CHECK(!check(pid, NULL));
	creds.is_packed = true;
	write_core(pid, &creds);
	CHECK(!check(pid, NULL));
	if (!right.groups_count)
		return;
	creds.groups[0]++;
	write_core(pid, &creds);
	CHECK(check(pid, "other groups") == -EPERM);
	creds = right;
	creds.groups_count--;
	write_core(pid, &creds);
	CHECK(check(pid, "other groups") == -EPERM);
}

/* The kernel does not tell securebits: the images may have those that the process may set. */
static void test_securebits(pid_t pid)
{
	struct creds creds = creds_of(pid);
	bool may_set = creds.sets[1] & UINT64_C(1) << CAP_SETPCAP;

	write_tree(&pid, 1, 0);
	for (unsigned int bit = 0; bit < 32; bit++) {
		creds.securebits = UINT64_C(1) << bit;
		write_core(pid, &creds);
		if (may_set || creds.securebits == SECBIT_KEEP_CAPS)
			CHECK(!check(pid, NULL));
		else
			CHECK(check(pid, "securebits") == -EPERM);
	}
	creds.securebits = UINT64_C(1) << 32;
	write_core(pid, &creds);
	CHECK(check(pid, "damaged") == -EIO);
}

/* An image without the ambient set cannot be compared with it. */
static void test_old(pid_t pid)
{
	struct creds creds = creds_of(pid);

	creds.is_old = true;
	write_tree(&pid, 1, 0);
	write_core(pid, &creds);
	CHECK(!check(pid, NULL));
}

static void *wait_for_signal(void *data)
{
	pid_t *tid = data;

	__atomic_store_n(tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	pause();
	return NULL;
}

/* Each thread has its own image; one that has ended cannot be compared. */
static void test_threads(void)
{
	struct creds creds = creds_of(getpid());
	pid_t pid = getpid(), tid = 0;
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, wait_for_signal, &tid));
	while (!__atomic_load_n(&tid, __ATOMIC_ACQUIRE))
		usleep(1000);
	write_core(pid, &creds);
	write_core(tid, &creds);
	write_tree(&pid, 1, pid);
	CHECK(check(pid, "is twice in") == -EPERM);
	write_tree(&tid, 1, pid);
	CHECK(check(pid, "is in another process in") == -EPERM);
	write_tree(&pid, 1, 0);
	CHECK(check(pid, "is not in") == -EPERM);
	write_tree(&pid, 1, tid);
	CHECK(!check(pid, NULL));
	creds.ids[2]++;
	write_core(tid, &creds);
	CHECK(check(pid, "other user or group ids") == -EPERM);
	creds.ids[2]--;
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	write_core(tid, &creds);
	CHECK(check(pid, "has ended since CRIU dumped it") == -EBUSY);
}

/* A process that was killed; and one that was dead when CRIU looked. */
static void test_ended(struct child child)
{
	struct creds creds = creds_of(child.pid), own = creds_of(getpid());
	const pid_t pids[] = {getpid(), child.pid};
	struct gcr_error error = {0};
	siginfo_t info;

	write_tree(pids, 2, 0);
	write_core(pids[0], &own);
	write_core(pids[1], &creds);
	CHECK(!gcr_criu_check_creds(images_fd, pids, 2, false, &error));
	creds.state = 2;
	write_core(pids[1], &creds);
	CHECK(gcr_criu_check_creds(images_fd, pids, 2, false, &error) == -EPERM);
	creds.state = 1;
	write_core(pids[1], &creds);
	/* The process has to be one of the tree, not just any. */
	CHECK(gcr_criu_check_creds(images_fd, pids, 1, false, &error) == -EBUSY);
	CHECK(!kill(child.pid, SIGKILL));
	CHECK(!waitid(P_PID, (id_t)child.pid, &info, WEXITED | WNOWAIT));
	CHECK(gcr_criu_check_creds(images_fd, pids, 2, false, &error) == -EBUSY);
	CHECK(waitpid(child.pid, NULL, 0) == child.pid);
	CHECK(gcr_criu_check_creds(images_fd, pids, 2, false, &error) == -EBUSY);
	creds.state = 2;
	write_core(pids[1], &creds);
	CHECK(!gcr_criu_check_creds(images_fd, pids, 2, false, &error));
}

static void test_damaged(void)
{
	struct creds creds = creds_of(getpid());
	struct message messages[2] = {0};
	pid_t pid = getpid();
	char name[32];

	snprintf(name, sizeof(name), "core-%d.img", (int)pid);
	write_tree(&pid, 1, 0);
	unlinkat(images_fd, name, 0);
	CHECK(check(pid, NULL) == -EIO);
	creds.ids[0] |= UINT64_C(1) << 32;
	write_core(pid, &creds);
	CHECK(check(pid, "damaged") == -EIO);
	/* Without credentials, and with a second message. */
	put_number(&messages[0], 1, 1);
	write_image(name, 0x55053847, messages, 1);
	CHECK(check(pid, "damaged") == -EIO);
	write_image(name, 0x55053847, messages, 2);
	CHECK(check(pid, "damaged") == -EIO);
	write_image(name, 0x50273030, messages, 1);
	CHECK(check(pid, "damaged") == -EIO);
	write_image("pstree.img", 0x50273030, messages, 0);
	CHECK(check(pid, "damaged") == -EIO);
}

/* Removes the images, and the directory. */
static void remove_all(void)
{
	_cleanup_closedir_ DIR *images = fdopendir(images_fd);
	const struct dirent *entry;

	CHECK(images);
	while ((entry = readdir(images)))
		unlinkat(images_fd, entry->d_name, 0);
	CHECK(!rmdir(directory));
}

int main(void)
{
	struct child child;

	CHECK(mkdtemp(directory));
	images_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(images_fd >= 0);
	child = start_child(become_somebody, NULL);
	test_differences(getpid());
	test_differences(child.pid);
	test_groups(child.pid);
	test_restored(child.pid);
	test_securebits(getpid());
	test_securebits(child.pid);
	test_old(child.pid);
	test_threads();
	test_ended(child);
	test_damaged();
	close(child.go);
	remove_all();
	return 0;
}
