/* SPDX-License-Identifier: MIT */
/* Writes to a ctl file by any user. First byte: odd for the root's ctl; the rest is the write. */
#include "fs/verb/ctl.h"

#include <errno.h>
#include <string.h>

#include "lib/cleanup.h"
#include "test/fuzz/fuzz.h"

static void check_error(const struct gcr_error *error, int result)
{
	CHECK(result == -EINVAL || result == -E2BIG);
	CHECK(error->number == -result);
	CHECK(error->words[0]);
	CHECK(memchr(error->words, '\0', sizeof(error->words)));
	for (const char *byte = error->words; *byte; byte++)
		CHECK((unsigned char)*byte >= 0x20 && *byte != 0x7f);
}

static void check_command(const struct gcr_command *command, bool with_pids)
{
	CHECK(command->timeout_usec >= 0);
	CHECK(command->timeout_usec <= GCR_COMMAND_TIMEOUT_SEC_MAX * INT64_C(1000000));
	CHECK(command->gpu_pairs_count <= GCR_GPUS_MAX);
	for (unsigned int i = 0; i < command->gpu_pairs_count; i++) {
		CHECK(command->gpu_pairs[i].from < GCR_GPUS_MAX);
		CHECK(command->gpu_pairs[i].to < GCR_GPUS_MAX);
		for (unsigned int j = 0; j < i; j++) {
			CHECK(command->gpu_pairs[i].from != command->gpu_pairs[j].from);
			CHECK(command->gpu_pairs[i].to != command->gpu_pairs[j].to);
		}
	}
	CHECK(command->pids_count <= GCR_COMMAND_PIDS_MAX);
	CHECK(with_pids == (command->pids_count > 0));
	for (unsigned int i = 0; i < command->pids_count; i++) {
		CHECK(command->pids[i] > 0);
		for (unsigned int j = 0; j < i; j++)
			CHECK(command->pids[i] != command->pids[j]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gcr_command untouched;
	struct gcr_command command;
	struct gcr_error error = {0};
	bool with_pids;
	int result;

	if (!size)
		return 0;
	with_pids = data[0] & 1;
	memset(&untouched, 0xa5, sizeof(untouched));
	memset(&command, 0xa5, sizeof(command));
	result = gcr_command_parse((const char *)data + 1, size - 1, with_pids, &command, &error);
	if (result) {
		check_error(&error, result);
		CHECK(!memcmp(&command, &untouched, sizeof(command)));
	} else {
		check_command(&command, with_pids);
	}
	return 0;
}
