/* SPDX-License-Identifier: MIT */
/*
 * The owner of a dump: processes that have more rights than their user, and processes that change
 * their ids.
 */
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/image/dump_private.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

#define USER  60001
#define OTHER 60002

enum step { STEP_USER, STEP_OTHER, STEP_SAVED, STEP_GROUP, STEP_CAPABLE, STEP_MORE_GROUPS };

/* A child that changes its ids on command and keeps its capabilities until it ends. */
struct actor {
	pid_t pid;
	int socket;
};

static void set_ids(uid_t real, uid_t effective, uid_t saved, gid_t effective_gid)
{
	CHECK(syscall(SYS_setresgid, real, effective_gid, real) == 0);
	CHECK(syscall(SYS_setresuid, real, effective, saved) == 0);
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0};

	CHECK(syscall(SYS_capset, &header, none) == 0);
}

static void change(enum step step)
{
	const gid_t more[] = {1, 2, 3};

	CHECK(prctl(PR_SET_KEEPCAPS, 1) == 0);
	switch (step) {
	case STEP_USER:
		CHECK(setgroups(2, more) == 0);
		set_ids(USER, USER, USER, USER);
		drop_capabilities();
		break;
	case STEP_OTHER:
		set_ids(OTHER, OTHER, OTHER, OTHER);
		drop_capabilities();
		break;
	case STEP_SAVED:
		set_ids(USER, USER, 0, USER);
		drop_capabilities();
		break;
	case STEP_GROUP:
		set_ids(USER, USER, USER, OTHER);
		drop_capabilities();
		break;
	case STEP_CAPABLE: {
		struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
		struct __user_cap_data_struct sets[2];

		CHECK(setgroups(2, more) == 0);
		set_ids(USER, USER, USER, USER);
		CHECK(syscall(SYS_capget, &header, sets) == 0);
		sets[0].effective = sets[0].permitted;
		CHECK(syscall(SYS_capset, &header, sets) == 0);
		break;
	}
	case STEP_MORE_GROUPS:
		CHECK(setgroups(3, more) == 0);
		break;
	}
	/* A program with another user's rights can set this itself. */
	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static void tell(const struct actor *child, enum step step)
{
	char byte = (char)step;

	CHECK(write(child->socket, &byte, 1) == 1 && read(child->socket, &byte, 1) == 1);
}

static struct actor start(enum step step)
{
	struct actor child;
	int sockets[2];
	char byte;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
	child.pid = fork();
	CHECK(child.pid >= 0);
	if (!child.pid) {
		close(sockets[0]);
		while (read(sockets[1], &byte, 1) == 1) {
			change((enum step)byte);
			CHECK(write(sockets[1], &byte, 1) == 1);
		}
		_exit(0);
	}
	close(sockets[1]);
	child.socket = sockets[0];
	tell(&child, step);
	return child;
}

static void end(struct actor *child)
{
	close(child->socket);
	CHECK(waitpid(child->pid, NULL, 0) == child->pid);
}

/* A dump of some processes; the first is the root of the tree. */
struct tree {
	struct gcr_command command;
	struct gcr_task task;
	struct gcr_dump dump;
	struct gcr_dump_member members[2];
};

static void make_tree(struct tree *tree, uid_t writer, uint64_t capabilities,
		      const struct actor *children, size_t count)
{
	*tree = (struct tree){.command.rights = {.uid = writer, .capabilities = capabilities}};
	tree->task.command = &tree->command;
	tree->dump.task = &tree->task;
	tree->dump.members = tree->members;
	tree->dump.count = count;
	for (size_t i = 0; i < count; i++) {
		tree->members[i].proc = (struct gcr_proc_member){children[i].pid, .state = 'S'};
		tree->members[i].pidfd = open_pidfd(children[i].pid);
	}
	CHECK(gcr_proc_owner(children[0].pid, &tree->dump.uid, &tree->dump.gid) == 0);
}

static void drop_tree(struct tree *tree)
{
	for (size_t i = 0; i < tree->dump.count; i++)
		close(tree->members[i].pidfd);
	gcr_file_rights_destroy(tree->dump.first_rights);
}

/* Checks a dump of one process; returns the result of the first check. */
static int check_one(enum step step, uid_t writer, uint64_t capabilities)
{
	struct actor child = start(step);
	struct gcr_error error = {0};
	struct tree tree;
	int result;

	make_tree(&tree, writer, capabilities, &child, 1);
	result = gcr_dump_check_owner(&tree.dump, &error);
	CHECK(!result || *error.words);
	if (!result && writer) {
		CHECK(gcr_dump_place_uid(&tree.dump) == USER && tree.dump.owner_rights);
		CHECK(tree.dump.owner_rights->uid == USER &&
		      tree.dump.owner_rights->groups_count == 2);
	}
	/* A dump by root of a process with another user's rights belongs to root. */
	if (!result && !writer && step != STEP_USER)
		CHECK(tree.dump.is_private && !gcr_dump_place_uid(&tree.dump) &&
		      !gcr_dump_place_gid(&tree.dump) && !tree.dump.owner_rights);
	drop_tree(&tree);
	end(&child);
	return result;
}

static void test_rights(void)
{
	CHECK(check_one(STEP_USER, USER, 0) == 0);
	CHECK(check_one(STEP_USER, 0, 0) == 0);
	CHECK(check_one(STEP_OTHER, USER, 0) == -EPERM);
	CHECK(check_one(STEP_SAVED, USER, 0) == -EPERM);
	CHECK(check_one(STEP_SAVED, 0, 0) == 0);
	CHECK(check_one(STEP_GROUP, USER, 0) == -EPERM);
	CHECK(check_one(STEP_GROUP, 0, 0) == 0);
	CHECK(check_one(STEP_CAPABLE, USER, 0) == -EPERM);
	/* It is root's even if the writer has all capabilities. */
	CHECK(check_one(STEP_CAPABLE, USER, UINT64_MAX) == -EPERM);
}

/*
 * The process changes its ids between the first check and the check of the stopped tree. Only one
 * with capabilities can, which root alone dumps.
 */
static void test_change(enum step step)
{
	struct actor child = start(STEP_CAPABLE);
	struct gcr_error error = {0};
	struct tree tree;

	make_tree(&tree, 0, UINT64_MAX, &child, 1);
	CHECK(gcr_dump_check_owner(&tree.dump, &error) == 0);
	CHECK(gcr_dump_check_owner(&tree.dump, &error) == 0);
	tell(&child, step);
	CHECK(gcr_proc_owner(child.pid, &tree.dump.uid, &tree.dump.gid) == 0);
	CHECK(gcr_dump_check_owner(&tree.dump, &error) == -EPERM && *error.words);
	drop_tree(&tree);
	end(&child);
}

static void test_several(void)
{
	struct actor children[] = {start(STEP_USER), start(STEP_OTHER)};
	struct gcr_error error = {0};
	struct tree tree;

	make_tree(&tree, USER, 0, children, 2);
	CHECK(gcr_dump_check_owner(&tree.dump, &error) == -EPERM);
	drop_tree(&tree);
	make_tree(&tree, 0, UINT64_MAX, children, 2);
	CHECK(gcr_dump_check_owner(&tree.dump, &error) == 0);
	CHECK(tree.dump.is_private && !tree.dump.owner_rights);
	CHECK(!gcr_dump_place_uid(&tree.dump) && !gcr_dump_place_gid(&tree.dump));
	/* The dump stays private even if the other process has ended. */
	tree.dump.count = 1;
	CHECK(gcr_dump_check_owner(&tree.dump, &error) == 0);
	CHECK(tree.dump.is_private && !gcr_dump_place_uid(&tree.dump));
	tree.dump.count = 2;
	drop_tree(&tree);
	/* The second child has inherited the first one's socket, so it must end first. */
	end(&children[1]);
	end(&children[0]);
}

int main(void)
{
	if (geteuid()) {
		fprintf(stderr, "several users are needed\n");
		return 77;
	}
	test_rights();
	test_change(STEP_MORE_GROUPS);
	test_change(STEP_OTHER);
	test_several();
	return 0;
}
