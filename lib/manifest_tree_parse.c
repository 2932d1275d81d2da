/* SPDX-License-Identifier: MIT */
/*
 * Reading the member `tree` of an untrusted manifest. gcr_manifest_tree_check() checks whether its
 * contents are consistent.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/hex.h"
#include "lib/manifest_private.h"

/* Reads a text that must be one of @words; *ret_index is its index. */
static int get_choice(const struct manifest_parse *parse, const json_t *object, const char *key,
		      const char *const *words, size_t count, size_t *ret_index)
{
	json_t *value = NULL;
	int result = manifest_get(parse, object, key, JSON_STRING, &value);

	if (result < 0)
		return result;
	for (size_t i = 0; i < count; i++) {
		if (strcmp(json_string_value(value), words[i]) == 0) {
			*ret_index = i;
			return 0;
		}
	}
	return manifest_refuse(parse, EPROTO, key, "%.100s is not known", json_string_value(value));
}

static int parse_host(struct manifest_parse *parse, const json_t *tree)
{
	struct gcr_host *host = &parse->manifest->tree->host;
	uint64_t criu_version = 0;
	json_t *object = NULL;
	int result = manifest_enter(parse, tree, "host", &object);

	if (!result)
		result = manifest_get_plain_text(parse, object, "machine", host->machine,
						 sizeof(host->machine));
	if (!result)
		result = manifest_get_plain_text(parse, object, "kernel", host->kernel,
						 sizeof(host->kernel));
	if (!result)
		result = manifest_get_number(parse, object, "criu_version", INT32_MAX,
					     &criu_version);
	if (!result)
		result = manifest_get_plain_text(parse, object, "cpu_flags", host->cpu_flags,
						 sizeof(host->cpu_flags));
	if (result < 0)
		return result;
	host->criu_version = (unsigned int)criu_version;
	*parse->within = '\0';
	return 0;
}

static int parse_options(struct manifest_parse *parse, const json_t *tree)
{
	struct gcr_tree_options *options = &parse->manifest->tree->options;
	json_t *object = NULL;
	size_t tcp = 0;
	int result = manifest_enter(parse, tree, "options", &object);

	if (!result)
		result = manifest_get_bool(parse, object, "shell_job", &options->shell_job);
	if (!result)
		result = manifest_get_bool(parse, object, "file_locks", &options->file_locks);
	if (!result)
		result = manifest_get_bool(parse, object, "link_remap", &options->link_remap);
	if (!result)
		result = manifest_get_bool(parse, object, "ext_unix_sockets",
					   &options->ext_unix_sockets);
	if (!result)
		result = get_choice(parse, object, "tcp", gcr_manifest_tree_tcp_words,
				    GCR_TREE_TCP_COUNT, &tcp);
	if (result < 0)
		return result;
	options->tcp = (enum gcr_tree_tcp)tcp;
	*parse->within = '\0';
	return 0;
}

static int parse_process(struct manifest_parse *parse, const json_t *object, void *item)
{
	struct gcr_tree_process *process = item;
	uint64_t pid = 0, parent = 0;
	int result = manifest_get_number(parse, object, "pid", INT32_MAX, &pid);

	if (!result)
		result = manifest_get_number(parse, object, "parent", INT32_MAX, &parent);
	if (!result)
		result = manifest_get_text(parse, object, "comm", process->comm,
					   sizeof(process->comm));
	if (!result)
		result = manifest_get_bool(parse, object, "has_gpu", &process->has_gpu);
	if (!result)
		result = manifest_get_plain_text(parse, object, "generation", process->generation,
						 sizeof(process->generation));
	if (!result)
		result = manifest_get_plain_text(parse, object, "engine", process->engine,
						 sizeof(process->engine));
	process->pid = (pid_t)pid;
	process->parent = (pid_t)parent;
	return result;
}

static int parse_supply(struct manifest_parse *parse, const json_t *object, void *item)
{
	struct gcr_tree_supply *supply = item;
	int result =
		manifest_get_plain_text(parse, object, "key", supply->key, sizeof(supply->key));

	if (!result)
		result = manifest_get_bool(parse, object, "writer", &supply->is_writer);
	if (!result)
		result = manifest_get_bool(parse, object, "stdio", &supply->is_stdio);
	return result;
}

static int get_build_id(const struct manifest_parse *parse, const json_t *object,
			struct gcr_file_identity *file)
{
	char digits[2 * sizeof(file->build_id) + 1] = "";
	int result = manifest_get_plain_text(parse, object, "build_id", digits, sizeof(digits));
	const char *next = digits;

	if (result < 0)
		return result;
	while (*next) {
		int byte = gcr_hex_byte(next);

		if (byte < 0)
			return manifest_refuse(parse, EPROTO, "build_id",
					       "it is not hexadecimal digits, two for a byte");
		file->build_id[file->build_id_bytes++] = (uint8_t)byte;
		next += 2;
	}
	return 0;
}

static int parse_file(struct manifest_parse *parse, const json_t *object, void *item)
{
	struct gcr_file_identity *file = item;
	char path[PATH_MAX] = "";
	size_t kind = 0;
	int result = manifest_get_text(parse, object, "path", path, sizeof(path));

	if (!result)
		result = manifest_get_number(parse, object, "bytes", INT64_MAX, &file->bytes);
	if (!result)
		result = manifest_get_bool(parse, object, "mapped", &file->is_mapped);
	if (!result)
		result = manifest_get_bool(parse, object, "append_only", &file->is_append_only);
	if (!result)
		result = get_choice(parse, object, "identity", gcr_manifest_tree_identity_words,
				    GCR_IDENTITY_KINDS, &kind);
	if (result < 0)
		return result;
	file->kind = (enum gcr_identity_kind)kind;
	file->path = strdup(path);
	if (!file->path)
		return manifest_refuse(parse, ENOMEM, "path", "out of memory");
	if (file->kind == GCR_IDENTITY_BUILD_ID)
		return get_build_id(parse, object, file);
	if (file->kind == GCR_IDENTITY_NAME)
		return 0;
	return manifest_get_digest(parse, object, "xxh3_128", &file->digest);
}

static int parse_lists(struct manifest_parse *parse, const json_t *object)
{
	struct gcr_manifest_tree *tree = parse->manifest->tree;
	void *items = NULL;
	int result = manifest_get_list(parse, object, "processes", GCR_TREE_PROCESSES_MAX,
				       sizeof(*tree->processes), &items, &tree->processes_count,
				       parse_process);

	tree->processes = TAKE_PTR(items);
	if (!result)
		result = manifest_get_list(parse, object, "supplies", GCR_TREE_SUPPLIES_MAX,
					   sizeof(*tree->supplies), &items, &tree->supplies_count,
					   parse_supply);
	tree->supplies = TAKE_PTR(items);
	if (!result)
		result = manifest_get_list(parse, object, "files", GCR_TREE_FILES_MAX,
					   sizeof(*tree->files), &items, &tree->files_count,
					   parse_file);
	tree->files = TAKE_PTR(items);
	return result;
}

int manifest_parse_tree(struct manifest_parse *parse, const json_t *root)
{
	json_t *object = NULL;
	int result;

	if (!json_object_get(root, "tree"))
		return 0;
	result = manifest_get(parse, root, "tree", JSON_OBJECT, &object);
	if (result < 0)
		return result;
	parse->manifest->tree = calloc(1, sizeof(*parse->manifest->tree));
	if (!parse->manifest->tree)
		return manifest_refuse(parse, ENOMEM, "tree", "out of memory");
	parse->outer = "tree.";
	result = parse_host(parse, object);
	if (!result)
		result = parse_options(parse, object);
	if (!result)
		result = parse_lists(parse, object);
	if (!result)
		parse->outer = "";
	return result;
}
