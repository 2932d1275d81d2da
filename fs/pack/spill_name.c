/* SPDX-License-Identifier: MIT */
/*
 * Names on the disk: directories of stores, and segments in them. Names in any other form than ours
 * belong to other programs.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "fs/pack/spill.h"
#include "fs/pack/spill_private.h"
#include "lib/cleanup.h"

#define PREFIX	      GCR_SPILL_PREFIX
#define ID_DIGITS     32
#define RANDOM_LENGTH GCR_SPILL_RANDOM_LENGTH

static bool is_hex(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (!strchr("0123456789abcdef", text[i]) || !text[i])
			return false;
	return true;
}

bool gcr_spill_is_name(const char *name)
{
	const char *machine = name + sizeof(PREFIX) - 1;
	const char *boot = machine + GCR_SPILL_ID_LENGTH + 1;
	const char *random = boot + GCR_SPILL_ID_LENGTH + 1;

	return strlen(name) == GCR_SPILL_NAME_LENGTH &&
	       !strncmp(name, PREFIX, sizeof(PREFIX) - 1) && is_hex(machine, GCR_SPILL_ID_LENGTH) &&
	       machine[GCR_SPILL_ID_LENGTH] == '-' && is_hex(boot, GCR_SPILL_ID_LENGTH) &&
	       boot[GCR_SPILL_ID_LENGTH] == '-' && is_hex(random, RANDOM_LENGTH);
}

bool gcr_spill_is_of_machine(const char *name, const struct gcr_spill_identity *identity)
{
	return identity->has_machine &&
	       !strncmp(name + sizeof(PREFIX) - 1, identity->machine, GCR_SPILL_ID_LENGTH);
}

bool gcr_spill_is_of_boot(const char *name, const struct gcr_spill_identity *identity)
{
	return !strncmp(name + sizeof(PREFIX) + GCR_SPILL_ID_LENGTH, identity->boot,
			GCR_SPILL_ID_LENGTH);
}

/* Reads the first digits of an identifier, with or without hyphens. -EPROTO: not an identifier. */
static int read_id(const char *path, char ret_id[GCR_SPILL_ID_LENGTH + 1])
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t count = 0;
	ssize_t length;
	char text[64];

	if (fd < 0)
		return -errno;
	length = read(fd, text, sizeof(text));
	if (length < 0)
		return -errno;
	for (ssize_t i = 0; i < length && text[i] != '\n'; i++) {
		if (text[i] == '-')
			continue;
		if (!is_hex(&text[i], 1) || count == ID_DIGITS)
			return -EPROTO;
		if (count < GCR_SPILL_ID_LENGTH)
			ret_id[count] = text[i];
		count++;
	}
	ret_id[GCR_SPILL_ID_LENGTH] = '\0';
	return count == ID_DIGITS ? 0 : -EPROTO;
}

int gcr_spill_identify(struct gcr_spill_identity *ret_identity)
{
	*ret_identity = (struct gcr_spill_identity){0};
	ret_identity->has_machine = !read_id("/etc/machine-id", ret_identity->machine);
	if (!ret_identity->has_machine)
		memset(ret_identity->machine, '0', GCR_SPILL_ID_LENGTH);
	return read_id("/proc/sys/kernel/random/boot_id", ret_identity->boot);
}

int gcr_spill_make_name(const struct gcr_spill_identity *identity,
			char ret_name[GCR_SPILL_NAME_LENGTH + 1])
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	snprintf(ret_name, GCR_SPILL_NAME_LENGTH + 1, PREFIX "%s-%s-%016" PRIx64, identity->machine,
		 identity->boot, random);
	return 0;
}

int gcr_spill_make_file_name(uint32_t number, char ret_name[GCR_SPILL_FILE_BYTES])
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	snprintf(ret_name, GCR_SPILL_FILE_BYTES, "%" PRIu32 "-%016" PRIx64, number, random);
	return 0;
}

int64_t gcr_spill_parse_number(const char *name)
{
	char again[GCR_SPILL_NUMBER_BYTES];
	unsigned long long number;

	if (*name < '0' || *name > '9' || strlen(name) > 10)
		return -1;
	number = strtoull(name, NULL, 10);
	snprintf(again, sizeof(again), "%" PRIu32, (uint32_t)number);
	return number <= UINT32_MAX && !strcmp(again, name) ? (int64_t)number : -1;
}

int64_t gcr_spill_parse_file_name(const char *name)
{
	const char *hyphen = strchr(name, '-');
	char number[GCR_SPILL_NUMBER_BYTES];

	if (!hyphen || hyphen - name >= GCR_SPILL_NUMBER_BYTES ||
	    strlen(hyphen + 1) != RANDOM_LENGTH || !is_hex(hyphen + 1, RANDOM_LENGTH))
		return -1;
	memcpy(number, name, (size_t)(hyphen - name));
	number[hyphen - name] = '\0';
	return gcr_spill_parse_number(number);
}

bool gcr_spill_find_place(const char *path, struct gcr_spill_place *ret_place)
{
	size_t at[3];
	size_t end = strlen(path);
	char name[GCR_SPILL_NAME_LENGTH + 1];

	if (*path != '/')
		return false;
	for (size_t i = 3; i-- > 0; end--) {
		while (end && path[end - 1] != '/')
			end--;
		if (!end)
			return false;
		at[i] = end;
	}
	if (at[1] - at[0] != GCR_SPILL_NAME_LENGTH + 1)
		return false;
	memcpy(name, path + at[0], GCR_SPILL_NAME_LENGTH);
	name[GCR_SPILL_NAME_LENGTH] = '\0';
	*ret_place = (struct gcr_spill_place){.home = at[0], .user = at[1], .file = at[2]};
	return gcr_spill_is_name(name);
}

bool gcr_spill_is_path(const char *path, uid_t uid, uint32_t number)
{
	char user[GCR_SPILL_NUMBER_BYTES + 1];
	struct gcr_spill_place place;
	int length = snprintf(user, sizeof(user), "%" PRIu32 "/", (uint32_t)uid);

	return gcr_spill_find_place(path, &place) && place.file - place.user == (size_t)length &&
	       !strncmp(path + place.user, user, (size_t)length) &&
	       gcr_spill_parse_file_name(path + place.file) == number;
}
