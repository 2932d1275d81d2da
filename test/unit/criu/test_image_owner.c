/* SPDX-License-Identifier: MIT */
/* With whose rights a tree's files are opened, by images as CRIU writes them, and damaged ones. */
#include "criu-glue/image_owner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/unit/criu/message.h"
#include "test/unit/test.h"

#define USER  1000u
#define OTHER 1001u
#define DAC   0x6u /* CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH */

struct ids {
	uid_t uids[4]; /* real, effective, saved, for files */
	gid_t gid;
	uint32_t permitted;
	gid_t groups[4];
	size_t groups_count;
};

/* Makes an image of a thread; of one that had ended, if @ids is NULL. */
static struct message make_core(const struct ids *ids)
{
	static const uint8_t magic[] = "\x19\x43\x56\x54\x47\x38\x05\x55";
	struct message creds = {0}, task = {0}, thread = {0}, core = {0}, image = {0};

	put_number(&core, 1, 1);
	put_number(&task, 1, ids ? 1 : 2);
	put_message(&core, 3, &task);
	for (unsigned int i = 0; ids && i < 4; i++) {
		put_number(&creds, 2 * i + 1, ids->uids[i]);
		put_number(&creds, 2 * i + 2, ids->gid);
	}
	if (ids) {
		for (unsigned int set = 9; set <= 12; set++) {
			put_number(&creds, set, set == 10 ? ids->permitted : 0);
			put_number(&creds, set, 0);
		}
		for (size_t i = 0; i < ids->groups_count; i++)
			put_number(&creds, 14, ids->groups[i]);
		put_number(&thread, 1, 7);
		put_message(&thread, 10, &creds);
		put_message(&core, 5, &thread);
	}
	for (size_t i = 0; i < sizeof(magic) - 1; i++)
		put_byte(&image, magic[i]);
	for (unsigned int shift = 0; shift < 32; shift += 8)
		put_byte(&image, (unsigned int)(core.used >> shift) & 0xff);
	for (size_t i = 0; i < core.used; i++)
		put_byte(&image, core.bytes[i]);
	return image;
}

struct images {
	char path[32];
	int fd;
};

static void make_images(struct images *images)
{
	strcpy(images->path, "/tmp/gpucr-owner-XXXXXX");
	CHECK(mkdtemp(images->path));
	images->fd = open(images->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(images->fd >= 0);
}

static void remove_images(struct images *images)
{
	char command[64];

	close(images->fd);
	snprintf(command, sizeof(command), "rm -r %s", images->path);
	CHECK(!system(command));
}

static void write_file(const struct images *images, const char *name, const void *bytes,
		       size_t size)
{
	int fd = openat(images->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
	close(fd);
}

static void write_core(const struct images *images, int number, const struct ids *ids)
{
	struct message image = make_core(ids);
	char name[32];

	snprintf(name, sizeof(name), "core-%d.img", number);
	write_file(images, name, image.bytes, image.used);
}

/* Compares the owner with "UID GID CAPABILITIES GROUP..."; "": none. */
static void check_owner(const struct images *images, pid_t root, const char *expected)
{
	_cleanup_(gcr_image_owner_destroy_cleanup) struct gcr_image_owner *owner = NULL;
	struct gcr_error error;
	char found[128] = "";
	size_t used;

	CHECK(!gcr_image_owner_find(images->fd, root, &owner, &error));
	if (owner) {
		used = (size_t)snprintf(found, sizeof(found), "%u %u %x", owner->uid, owner->gid,
					(unsigned int)owner->capabilities);
		for (size_t i = 0; i < owner->groups_count; i++)
			used += (size_t)snprintf(found + used, sizeof(found) - used, " %u",
						 owner->groups[i]);
	}
	if (strcmp(found, expected) != 0)
		fprintf(stderr, "found %s, expected %s\n", found, expected);
	CHECK(!strcmp(found, expected));
}

#define ALL(uid)                   \
	{                          \
		uid, uid, uid, uid \
	}

static const struct ids root_ids = {.uids = ALL(0), .permitted = UINT32_MAX};
static const struct ids user_ids = {
	.uids = ALL(USER), .gid = 100, .groups = {30, 20}, .groups_count = 2};

static void test_one_user(void)
{
	_cleanup_(remove_images) struct images images;

	make_images(&images);
	check_owner(&images, 10, "");
	write_core(&images, 10, &root_ids);
	check_owner(&images, 10, "");
	write_core(&images, 10, &user_ids);
	check_owner(&images, 10, "1000 100 0 20 30 100");
	/* Files of other names, and a process that had ended, do not count. */
	write_file(&images, "core-x.img", "x", 1);
	write_file(&images, "core-10.img.x", "x", 1);
	write_file(&images, "pstree.img", "x", 1);
	write_core(&images, 12, NULL);
	check_owner(&images, 10, "1000 100 0 20 30 100");
}

/* No thread gets more rights than it had. */
static void test_several_threads(void)
{
	static const struct ids more = {.uids = ALL(USER),
					.gid = 30,
					.permitted = UINT32_MAX,
					.groups = {20, 50},
					.groups_count = 2};
	static const struct ids none = {.uids = ALL(USER), .gid = 7};
	_cleanup_(remove_images) struct images images;

	make_images(&images);
	write_core(&images, 10, &more);
	check_owner(&images, 10, "1000 30 6 20 30 50");
	write_core(&images, 11, &user_ids);
	check_owner(&images, 10, "1000 30 0 20 30");
	write_core(&images, 12, &none);
	check_owner(&images, 10, "1000 65534 0");
}

static void test_several_users(void)
{
	static const struct ids other = {.uids = ALL(OTHER), .gid = 200};
	static const struct ids set_uid = {
		.uids = {USER, 0, 0, 0}, .gid = 100, .permitted = UINT32_MAX};
	_cleanup_(remove_images) struct images images;

	make_images(&images);
	write_core(&images, 10, &root_ids);
	write_core(&images, 11, &set_uid);
	check_owner(&images, 10, "1000 100 0 100");
	write_core(&images, 12, &other);
	write_core(&images, 9, &other);
	check_owner(&images, 10, "1001 200 0 200");
	check_owner(&images, 11, "1000 100 0 100");
	write_file(&images, "userns-13.img", "", 0);
	check_owner(&images, 10, "");
}

static void test_damaged(void)
{
	struct message image = make_core(&user_ids);
	_cleanup_(remove_images) struct images images;
	struct gcr_image_owner *owner = NULL;
	struct gcr_error error;

	make_images(&images);
	for (size_t size = 0; size < image.used; size++) {
		write_file(&images, "core-10.img", image.bytes, size);
		CHECK(gcr_image_owner_find(images.fd, 10, &owner, &error) == -EIO);
		CHECK(!owner && strstr(error.words, "core-10.img"));
	}
	write_file(&images, "core-10.img", image.bytes, image.used);
	CHECK(unlinkat(images.fd, "core-10.img", 0) == 0 &&
	      symlinkat("/dev/null", images.fd, "core-10.img") == 0);
	CHECK(gcr_image_owner_find(images.fd, 10, &owner, &error) == -EIO);
}

int main(void)
{
	test_one_user();
	test_several_threads();
	test_several_users();
	test_damaged();
	return 0;
}
