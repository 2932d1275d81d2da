/* SPDX-License-Identifier: MIT */
/* Checking and writing the member `tree` of the manifest. */
#include "lib/manifest_tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/hex.h"
#include "lib/manifest_private.h"
#include "lib/uuid.h"

const char *const gcr_manifest_tree_tcp_words[GCR_TREE_TCP_COUNT] = {
	[GCR_TREE_TCP_REFUSE] = "refuse",
	[GCR_TREE_TCP_KEEP] = "keep",
	[GCR_TREE_TCP_CLOSE] = "close",
};

const char *const gcr_manifest_tree_identity_words[GCR_IDENTITY_KINDS] = {
	[GCR_IDENTITY_BUILD_ID] = "build_id",
	[GCR_IDENTITY_DIGEST] = "digest",
	[GCR_IDENTITY_SAMPLE] = "sample",
	[GCR_IDENTITY_NAME] = "name",
};

void gcr_manifest_tree_free(struct gcr_manifest_tree *tree)
{
	if (!tree)
		return;
	free(tree->processes);
	free(tree->supplies);
	gcr_file_identities_free(tree->files, tree->files_count);
	free(tree);
}

/*
 * Does @text consist of words of visible ASCII, separated by single spaces, and end within @room
 * bytes?
 */
static bool are_words(const char *text, size_t room)
{
	if (!gcr_manifest_ends(text, room) || *text == ' ')
		return false;
	for (; *text; text++)
		if (*text < ' ' || *text > '~' || (*text == ' ' && (text[1] == ' ' || !text[1])))
			return false;
	return true;
}

static bool is_word(const char *text, size_t room)
{
	return *text && are_words(text, room) && !strchr(text, ' ');
}

static int check_host(const struct gcr_host *host, struct gcr_error *error)
{
	unsigned int major, minor;

	if (!is_word(host->machine, sizeof(host->machine)))
		return gcr_error_set(error, EPROTO, "tree.host.machine: it is no single word");
	if (!is_word(host->kernel, sizeof(host->kernel)) ||
	    gcr_host_kernel_parse(host->kernel, &major, &minor) < 0)
		return gcr_error_set(error, EPROTO, "tree.host.kernel: it is no kernel's release");
	if (!are_words(host->cpu_flags, sizeof(host->cpu_flags)))
		return gcr_error_set(error, EPROTO,
				     "tree.host.cpu_flags: they are no words with a space between");
	if (!host->criu_version || host->criu_version > INT32_MAX)
		return gcr_error_set(error, EPROTO, "tree.host.criu_version: there is none such");
	return 0;
}

/* Checks one process by itself. Returns "MEMBER: message", or NULL. */
static const char *find_process_fault(const struct gcr_tree_process *process)
{
	if (process->pid <= 0)
		return "pid: it is not above 0";
	if (!gcr_manifest_ends(process->comm, sizeof(process->comm)))
		return "comm: it is too long";
	if (!process->has_gpu && *process->generation)
		return "generation: it uses no GPU";
	if (!process->has_gpu && *process->engine)
		return "engine: it uses no GPU";
	if (process->has_gpu &&
	    (!gcr_manifest_ends(process->generation, sizeof(process->generation)) ||
	     gcr_uuid_parse(process->generation, NULL) < 0))
		return "generation: it is no UUID";
	if (process->has_gpu && !gcr_manifest_is_engine(process->engine, sizeof(process->engine)))
		return "engine: there cannot be such an engine";
	return NULL;
}

/* Checks that the manifest that contains the tree is that of the tree's root. */
static int check_root(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	const struct gcr_tree_process *root = &manifest->tree->processes[0];

	if (root->parent)
		return gcr_error_set(error, EPROTO,
				     "tree.processes[0].parent: the root has none in the tree");
	if (root->pid != manifest->pid)
		return gcr_error_set(error, EPROTO,
				     "tree.processes[0].pid: it is not that of process");
	if (strcmp(root->engine, manifest->engine) != 0)
		return gcr_error_set(error, EPROTO,
				     "tree.processes[0].engine: it is not that of the manifest");
	if (root->has_gpu && strcmp(root->generation, manifest->generation) != 0)
		return gcr_error_set(error, EPROTO,
				     "tree.processes[0].generation: it is not that of the "
				     "manifest");
	if (!root->has_gpu && (manifest->gpus_count || manifest->allocations_count))
		return gcr_error_set(error, EPROTO,
				     "tree.processes[0].has_gpu: it is false, but there are %s",
				     manifest->gpus_count ? "gpus" : "allocations");
	return 0;
}

static int check_processes(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	const struct gcr_tree_process *processes = manifest->tree->processes;
	size_t count = manifest->tree->processes_count;

	if (!count)
		return gcr_error_set(error, EPROTO, "tree.processes: there are none");
	if (count > GCR_TREE_PROCESSES_MAX)
		return gcr_error_set(error, E2BIG, "tree.processes: there are more than %d",
				     GCR_TREE_PROCESSES_MAX);
	for (size_t i = 0; i < count; i++) {
		const char *fault = find_process_fault(&processes[i]);
		bool has_parent = i == 0;
		int result;

		if (fault)
			return gcr_error_set(error, EPROTO, "tree.processes[%zu].%s", i, fault);
		result = i ? 0 : check_root(manifest, error);
		if (result < 0)
			return result;
		for (size_t j = 0; j < i; j++) {
			if (processes[j].pid == processes[i].pid)
				return gcr_error_set(error, EPROTO,
						     "tree.processes[%zu].pid: it is that of "
						     "tree.processes[%zu]",
						     i, j);
			has_parent |= processes[j].pid == processes[i].parent;
		}
		if (!has_parent)
			return gcr_error_set(error, EPROTO,
					     "tree.processes[%zu].parent: it is none before it", i);
	}
	return 0;
}

/* Is the key of the form "pipe:[123]", which CRIU cannot take for another argument? */
static bool is_key(const char *key)
{
	size_t kind = strspn(key, "abcdefghijklmnopqrstuvwxyz");
	const char *number = key + kind + (key[kind] == ':');
	size_t digits;

	if (!kind || *number != '[')
		return false;
	digits = strspn(number + 1, "0123456789abcdef:");
	return digits && !strcmp(number + 1 + digits, "]");
}

static int check_supplies(const struct gcr_manifest_tree *tree, struct gcr_error *error)
{
	if (tree->supplies_count > GCR_TREE_SUPPLIES_MAX)
		return gcr_error_set(error, E2BIG, "tree.supplies: there are more than %d",
				     GCR_TREE_SUPPLIES_MAX);
	for (size_t i = 0; i < tree->supplies_count; i++)
		if (!gcr_manifest_ends(tree->supplies[i].key, sizeof(tree->supplies[i].key)) ||
		    !is_key(tree->supplies[i].key))
			return gcr_error_set(error, EPROTO,
					     "tree.supplies[%zu].key: there is none such", i);
	return 0;
}

/* Checks one file by itself. Returns "MEMBER: message", or NULL. */
static const char *find_file_fault(const struct gcr_file_identity *file)
{
	if (!file->path || *file->path != '/')
		return "path: it does not begin with a slash";
	if (strlen(file->path) >= PATH_MAX)
		return "path: it is too long";
	if (file->bytes > INT64_MAX)
		return "bytes: it is too large";
	switch (file->kind) {
	case GCR_IDENTITY_BUILD_ID:
		if (file->is_append_only)
			return "append_only: a program is not";
		if (!file->build_id_bytes || file->build_id_bytes > sizeof(file->build_id))
			return "build_id: it has none or too many bytes";
		return NULL;
	case GCR_IDENTITY_DIGEST:
		return file->bytes > GCR_IDENTITY_WHOLE_MAX
			       ? "identity: so large a file is not digested whole"
			       : NULL;
	case GCR_IDENTITY_SAMPLE:
		return file->bytes <= GCR_IDENTITY_WHOLE_MAX
			       ? "identity: so small a file is digested whole"
			       : NULL;
	case GCR_IDENTITY_NAME:
		return file->bytes ? "bytes: they are not known" : NULL;
	default:
		return "identity: it is not known";
	}
}

static int check_tree_files(const struct gcr_manifest_tree *tree, struct gcr_error *error)
{
	if (tree->files_count > GCR_TREE_FILES_MAX)
		return gcr_error_set(error, E2BIG, "tree.files: there are more than %d",
				     GCR_TREE_FILES_MAX);
	for (size_t i = 0; i < tree->files_count; i++) {
		const char *fault = find_file_fault(&tree->files[i]);

		if (fault)
			return gcr_error_set(error, EPROTO, "tree.files[%zu].%s", i, fault);
		if (i && strcmp(tree->files[i].path, tree->files[i - 1].path) <= 0)
			return gcr_error_set(error, EPROTO,
					     "tree.files[%zu].path: it is not in order, or there "
					     "twice",
					     i);
	}
	return 0;
}

int gcr_manifest_tree_check(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	const struct gcr_manifest_tree *tree = manifest->tree;
	int result;

	if (!tree && manifest->images_count)
		return gcr_error_set(error, EPROTO, "tree: it is missing, and there are images");
	if (!tree)
		return 0;
	if (!manifest->images_count)
		return gcr_error_set(error, EPROTO, "criu: it is missing, and there is a tree");
	result = check_host(&tree->host, error);
	if (!result && (unsigned int)tree->options.tcp >= GCR_TREE_TCP_COUNT)
		result = gcr_error_set(error, EPROTO, "tree.options.tcp: it is not known");
	if (!result)
		result = check_processes(manifest, error);
	if (!result)
		result = check_supplies(tree, error);
	if (!result)
		result = check_tree_files(tree, error);
	return result;
}

static json_t *host_json(const struct gcr_host *host)
{
	return json_pack("{s:s, s:s, s:I, s:s}", "machine", host->machine, "kernel", host->kernel,
			 "criu_version", (json_int_t)host->criu_version, "cpu_flags",
			 host->cpu_flags);
}

static json_t *options_json(const struct gcr_tree_options *options)
{
	return json_pack("{s:b, s:b, s:b, s:b, s:s}", "shell_job", options->shell_job, "file_locks",
			 options->file_locks, "link_remap", options->link_remap, "ext_unix_sockets",
			 options->ext_unix_sockets, "tcp",
			 gcr_manifest_tree_tcp_words[options->tcp]);
}

static json_t *process_json(const struct gcr_tree_process *process)
{
	return json_pack("{s:i, s:i, s:o, s:b, s:s, s:s}", "pid", (int)process->pid, "parent",
			 (int)process->parent, "comm", gcr_manifest_text_json(process->comm),
			 "has_gpu", process->has_gpu, "generation", process->generation, "engine",
			 process->engine);
}

static json_t *supply_json(const struct gcr_tree_supply *supply)
{
	return json_pack("{s:s, s:b, s:b}", "key", supply->key, "writer", supply->is_writer,
			 "stdio", supply->is_stdio);
}

static json_t *file_json(const struct gcr_file_identity *file)
{
	json_t *object = json_pack(
		"{s:o, s:I, s:b, s:b, s:s}", "path", gcr_manifest_text_json(file->path), "bytes",
		(json_int_t)file->bytes, "mapped", file->is_mapped, "append_only",
		file->is_append_only, "identity", gcr_manifest_tree_identity_words[file->kind]);
	char digits[2 * GCR_BUILD_ID_BYTES + 1] = "";
	const char *name = "xxh3_128";
	char *end = digits;

	if (file->kind == GCR_IDENTITY_NAME)
		return object;
	if (file->kind == GCR_IDENTITY_BUILD_ID) {
		name = "build_id";
		for (uint32_t i = 0; i < file->build_id_bytes; i++)
			end = gcr_hex_put(end, file->build_id[i]);
		*end = '\0';
	} else {
		gcr_digest_format(&file->digest, digits);
	}
	if (object && json_object_set_new(object, name, json_string(digits)) < 0) {
		json_decref(object);
		return NULL;
	}
	return object;
}

static void begin_list(FILE *stream, const char *name)
{
	fprintf(stream, "    \"%s\": [", name);
}

static bool print_item(FILE *stream, size_t index, json_t *value)
{
	return gcr_manifest_print_value(stream, index ? ",\n      " : "\n      ", value, "");
}

static void end_list(FILE *stream, size_t count, const char *after)
{
	fprintf(stream, "%s]%s\n", count ? "\n    " : "", after);
}

bool gcr_manifest_tree_print(FILE *stream, const struct gcr_manifest_tree *tree)
{
	fputs("  \"tree\": {\n", stream);
	if (!gcr_manifest_print_value(stream, "    \"host\": ", host_json(&tree->host), ",\n") ||
	    !gcr_manifest_print_value(stream, "    \"options\": ", options_json(&tree->options),
				      ",\n"))
		return false;
	begin_list(stream, "processes");
	for (size_t i = 0; i < tree->processes_count; i++)
		if (!print_item(stream, i, process_json(&tree->processes[i])))
			return false;
	end_list(stream, tree->processes_count, ",");
	begin_list(stream, "supplies");
	for (size_t i = 0; i < tree->supplies_count; i++)
		if (!print_item(stream, i, supply_json(&tree->supplies[i])))
			return false;
	end_list(stream, tree->supplies_count, ",");
	begin_list(stream, "files");
	for (size_t i = 0; i < tree->files_count; i++)
		if (!print_item(stream, i, file_json(&tree->files[i])))
			return false;
	end_list(stream, tree->files_count, "");
	fputs("  },\n", stream);
	return true;
}
