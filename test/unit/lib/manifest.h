/* SPDX-License-Identifier: MIT */
/*
 * Manifest texts with one thing changed and the digest made valid again, as an attacker who knows
 * the format would write them.
 */
#ifndef GCR_TEST_MANIFEST_H
#define GCR_TEST_MANIFEST_H

#include <string.h>

#include "lib/cleanup.h"
#include "lib/manifest.h"
#include "test/unit/test.h"

#define END_BYTES 36 /* the digest and the bytes after it */

/* A change of a manifest (@from replaced by @to), and the result of parsing the changed text. */
struct rule {
	const char *from, *to;
	int number;	   /* the expected errno; 0: the manifest is valid */
	const char *words; /* part of the expected error message */
};

/* Makes the digest at the end valid again. */
static inline void seal(char *text, size_t bytes)
{
	char digits[GCR_DIGEST_TEXT_BYTES];
	struct gcr_digest digest;

	CHECK(bytes >= END_BYTES);
	gcr_digest_of(text, bytes - END_BYTES, &digest);
	gcr_digest_format(&digest, digits);
	memcpy(text + bytes - END_BYTES, digits, GCR_DIGEST_TEXT_BYTES - 1);
}

/*
 * Parses the text; checks that a failure has a complete message and that the result does not depend
 * on @error.
 */
static inline int parse(const char *text, size_t bytes, struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *second = NULL;
	/* An exact-size copy, so that the sanitizer sees an overrun by one byte. */
	_cleanup_free_ char *copy = malloc(bytes ? bytes : 1);
	struct gcr_error again;
	int result;

	CHECK(copy);
	memcpy(copy, text, bytes);
	*error = (struct gcr_error){0};
	result = gcr_manifest_parse(copy, bytes, &manifest, error);
	if (result < 0) {
		CHECK(!manifest && error->number == -result && *error->words);
		CHECK(memchr(error->words, '\0', sizeof(error->words)));
	} else {
		CHECK(!gcr_manifest_check(manifest, &again));
	}
	CHECK(gcr_manifest_parse(copy, bytes, &second, NULL) == result);
	return result;
}

/*
 * Returns @text with @from, which must occur, replaced by @to and the digest made valid. The caller
 * frees the result.
 */
static inline char *replace(const char *text, size_t bytes, const char *from, const char *to,
			    size_t *ret_bytes)
{
	const char *place = strstr(text, from);
	size_t before = place ? (size_t)(place - text) : 0;
	char *changed = malloc(bytes + strlen(to) + 1);

	if (!place)
		fprintf(stderr, "not there: %s\n", from);
	CHECK(place && changed);
	*ret_bytes = bytes - strlen(from) + strlen(to);
	memcpy(changed, text, before);
	memcpy(changed + before, to, strlen(to));
	memcpy(changed + before + strlen(to), place + strlen(from), bytes - before - strlen(from));
	seal(changed, *ret_bytes);
	return changed;
}

/* Applies each rule to @text by itself and checks the result of parsing. */
static inline void check_rules(const char *text, size_t bytes, const struct rule *rules,
			       size_t count)
{
	struct gcr_error error;

	for (size_t i = 0; i < count; i++) {
		const struct rule *rule = &rules[i];
		size_t changed_bytes = 0;
		_cleanup_free_ char *changed =
			replace(text, bytes, rule->from, rule->to, &changed_bytes);
		int result = parse(changed, changed_bytes, &error);

		if (result != -rule->number || !strstr(error.words, rule->words)) {
			fprintf(stderr, "%s -> %s: %d, %s\n", rule->from, rule->to, result,
				error.words);
			CHECK(!"the rule");
		}
	}
}

/* A tree of one process, the manifest's, which has a single file open. */
static inline struct gcr_manifest_tree *least_tree(const struct gcr_manifest *manifest)
{
	struct gcr_manifest_tree *tree = calloc(1, sizeof(*tree));

	CHECK(tree);
	strcpy(tree->host.machine, "x86_64");
	strcpy(tree->host.kernel, "6.12.43+deb13-amd64");
	strcpy(tree->host.cpu_flags, "fpu sse4_2 avx512f");
	tree->host.criu_version = 40101;
	tree->processes = calloc(1, sizeof(*tree->processes));
	tree->files = calloc(1, sizeof(*tree->files));
	CHECK(tree->processes && tree->files);
	tree->processes_count = tree->files_count = 1;
	tree->processes[0].pid = manifest->pid;
	memcpy(tree->processes[0].comm, manifest->comm, sizeof(manifest->comm));
	tree->processes[0].has_gpu = *manifest->engine;
	if (*manifest->engine) {
		strcpy(tree->processes[0].generation, manifest->generation);
		strcpy(tree->processes[0].engine, manifest->engine);
	}
	tree->files[0].path = strdup("/usr/bin/python3.12");
	CHECK(tree->files[0].path);
	tree->files[0].kind = GCR_IDENTITY_BUILD_ID;
	tree->files[0].is_mapped = true;
	tree->files[0].bytes = 6831704;
	tree->files[0].build_id_bytes = 20;
	memset(tree->files[0].build_id, 0xab, 20);
	return tree;
}

#endif
