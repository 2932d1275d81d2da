/* SPDX-License-Identifier: MIT */
/*
 * A manifest from an untrusted source. First byte: odd if the digest is made valid, so that the
 * JSON is parsed; the rest is the file.
 */
#include "lib/manifest.h"

#include <errno.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/extent.h"
#include "test/fuzz/fuzz.h"

#define END_BYTES 36 /* the digits of the digest and the bytes after them */

static void seal(char *text, size_t size)
{
	char digits[GCR_DIGEST_TEXT_BYTES];
	struct gcr_digest digest;

	gcr_digest_of(text, size - END_BYTES, &digest);
	gcr_digest_format(&digest, digits);
	memcpy(text + size - END_BYTES, digits, GCR_DIGEST_TEXT_BYTES - 1);
	memcpy(text + size - 4, "\"\n}\n", 4);
}

static void check_error(const struct gcr_error *error, int result)
{
	CHECK(result == -EPROTO || result == -EBADMSG || result == -EPROTONOSUPPORT ||
	      result == -E2BIG);
	CHECK(error->number == -result);
	CHECK(error->words[0] && memchr(error->words, '\0', sizeof(error->words)));
	for (const char *byte = error->words; *byte; byte++)
		CHECK((unsigned char)*byte >= 0x20 && *byte != 0x7f);
}

static void check_tree(const struct gcr_manifest_tree *tree)
{
	CHECK(tree->processes_count && tree->processes_count <= GCR_TREE_PROCESSES_MAX);
	CHECK(tree->supplies_count <= GCR_TREE_SUPPLIES_MAX);
	CHECK(tree->files_count <= GCR_TREE_FILES_MAX);
	CHECK(!gcr_host_check(&tree->host, &tree->host, NULL));
	for (size_t i = 1; i < tree->processes_count; i++)
		CHECK(tree->processes[i].pid > 0 && tree->processes[i].parent > 0);
	for (size_t i = 0; i < tree->supplies_count; i++)
		CHECK(!strpbrk(tree->supplies[i].key, " /=,"));
	for (size_t i = 0; i < tree->files_count; i++)
		CHECK(*tree->files[i].path == '/' && strlen(tree->files[i].path) < PATH_MAX);
}

/* Checks that an accepted manifest is consistent, and unchanged after writing and reading. */
static void check_manifest(const struct gcr_manifest *manifest)
{
	struct gcr_manifest *again = NULL;
	struct gcr_error error;
	size_t first, second;
	char *text = NULL, *twice = NULL;
	size_t size = 0, twice_size = 0;

	CHECK(!gcr_manifest_check(manifest, &error));
	CHECK(manifest->pid > 0 && manifest->gpus_count <= GCR_GPUS_MAX);
	CHECK(manifest->allocations_count <= GCR_EXTENTS_MAX);
	CHECK(gcr_manifest_allocated_bytes(manifest) <= GCR_MANIFEST_ALLOCATED_MAX);
	CHECK(!gcr_extents_overlap(manifest->allocations, manifest->allocations_count, &first,
				   &second));
	for (size_t i = 0; i < manifest->allocations_count; i++) {
		char name[GCR_EXTENT_NAME_BYTES];

		CHECK(!gcr_extent_fault(&manifest->allocations[i]));
		gcr_extent_name(&manifest->allocations[i], name);
		CHECK(*name && !strchr(name, '/') && *name != '.');
	}

	CHECK(!gcr_manifest_print(manifest, &text, &size, &error));
	CHECK(!gcr_manifest_parse(text, size, &again, &error));
	CHECK(!gcr_manifest_print(again, &twice, &twice_size, &error));
	CHECK(twice_size == size && !memcmp(twice, text, size));
	CHECK(again->allocations_count == manifest->allocations_count);
	CHECK(!again->allocations_count ||
	      !memcmp(again->allocations, manifest->allocations,
		      manifest->allocations_count * sizeof(*again->allocations)));
	CHECK(!again->images == !manifest->images && !again->tree == !manifest->tree);
	CHECK(!again->images_count || !memcmp(again->images, manifest->images,
					      manifest->images_count * sizeof(*again->images)));
	if (manifest->tree)
		check_tree(manifest->tree);
	gcr_manifest_free(again);
	free(twice);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gcr_manifest *manifest = NULL;
	struct gcr_error error = {0};
	char *text;
	int result;

	if (!size)
		return 0;
	/* An exact-size copy, so that the sanitizer sees an overrun by one byte. */
	size--;
	text = malloc(size);
	CHECK(text || !size);
	if (size)
		memcpy(text, data + 1, size);
	if (data[0] & 1 && size >= END_BYTES)
		seal(text, size);
	result = gcr_manifest_parse(text, size, &manifest, &error);
	if (result) {
		CHECK(!manifest);
		check_error(&error, result);
	} else {
		check_manifest(manifest);
		gcr_manifest_free(manifest);
	}
	free(text);
	return 0;
}
