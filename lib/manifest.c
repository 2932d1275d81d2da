/* SPDX-License-Identifier: MIT */
/*
 * Checking and writing the manifest (see manifest.h). The lines are laid out here, so that a person
 * can read a manifest with thousands of allocations; their contents are printed by jansson.
 */
#include "lib/manifest.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/beneath.h"
#include "lib/extent.h"
#include "lib/manifest_private.h"
#include "lib/uuid.h"

void gcr_manifest_free(struct gcr_manifest *manifest)
{
	if (!manifest)
		return;
	free(manifest->allocations);
	free(manifest->images);
	gcr_manifest_tree_free(manifest->tree);
	free(manifest);
}

uint64_t gcr_manifest_allocated_bytes(const struct gcr_manifest *manifest)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < manifest->allocations_count; i++)
		bytes += manifest->allocations[i].bytes;
	return bytes;
}

uint64_t gcr_manifest_digests_count(const struct gcr_manifest *manifest)
{
	uint64_t count = 0;

	for (size_t i = 0; i < manifest->allocations_count; i++)
		count += gcr_digest_count(manifest->allocations[i].bytes);
	return count;
}

static int check_identity(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	const struct gcr_manifest_tree *tree = manifest->tree;
	bool is_launcher = tree && tree->processes_count && !tree->processes[0].has_gpu;

	if (!gcr_manifest_ends(manifest->generation, sizeof(manifest->generation)) ||
	    gcr_uuid_parse(manifest->generation, NULL) < 0)
		return gcr_error_set(error, EPROTO, "generation: it is no UUID");
	if (!(is_launcher && !*manifest->engine) &&
	    !gcr_manifest_is_engine(manifest->engine, sizeof(manifest->engine)))
		return gcr_error_set(error, EPROTO, "engine: there cannot be such an engine");
	if (!gcr_manifest_consists_of(manifest->vendor, sizeof(manifest->vendor),
				      "abcdefghijklmnopqrstuvwxyz0123456789"))
		return gcr_error_set(error, EPROTO, "vendor: there cannot be such a vendor");
	if (manifest->pid <= 0)
		return gcr_error_set(error, EPROTO, "process.pid: it is not above 0");
	if (manifest->start_ticks > INT64_MAX)
		return gcr_error_set(error, EPROTO, "process.start_ticks: it is too large");
	if (!gcr_manifest_ends(manifest->comm, sizeof(manifest->comm)))
		return gcr_error_set(error, EPROTO, "process.comm: it is too long");
	if (!gcr_manifest_ends(manifest->exe, sizeof(manifest->exe)))
		return gcr_error_set(error, EPROTO, "process.exe: it is too long");
	if (!gcr_manifest_ends(manifest->driver_version, sizeof(manifest->driver_version)))
		return gcr_error_set(error, EPROTO, "driver_version: it is too long");
	return 0;
}

static int check_gpus(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	if (manifest->gpus_count > GCR_GPUS_MAX)
		return gcr_error_set(error, E2BIG, "gpus: there are more than %d", GCR_GPUS_MAX);
	for (size_t i = 0; i < manifest->gpus_count; i++) {
		const struct gcr_manifest_gpu *gpu = &manifest->gpus[i];

		if (gpu->index >= GCR_GPUS_MAX)
			return gcr_error_set(error, EPROTO, "gpus[%zu].index: it is not below %d",
					     i, GCR_GPUS_MAX);
		if (!gcr_manifest_ends(gpu->name, sizeof(gpu->name)))
			return gcr_error_set(error, EPROTO, "gpus[%zu].name: it is too long", i);
		if (gpu->control_bytes > GCR_MANIFEST_ALLOCATED_MAX)
			return gcr_error_set(error, EPROTO,
					     "gpus[%zu].control_bytes: it is too large", i);
		if (gpu->memory_bytes > INT64_MAX)
			return gcr_error_set(error, EPROTO,
					     "gpus[%zu].memory_bytes: it is too large", i);
		if (!gcr_manifest_consists_of(gpu->compute_capability,
					      sizeof(gpu->compute_capability),
					      "abcdefghijklmnopqrstuvwxyz0123456789.-_"))
			return gcr_error_set(error, EPROTO,
					     "gpus[%zu].compute_capability: there is none such", i);
		for (size_t j = 0; j < i; j++) {
			if (gpu->index == manifest->gpus[j].index)
				return gcr_error_set(error, EPROTO,
						     "gpus[%zu].index: it is that of gpus[%zu]", i,
						     j);
			if (!memcmp(gpu->uuid, manifest->gpus[j].uuid, sizeof(gpu->uuid)))
				return gcr_error_set(error, EPROTO,
						     "gpus[%zu].uuid: it is that of gpus[%zu]", i,
						     j);
		}
	}
	return 0;
}

static const struct gcr_manifest_gpu *find_gpu(const struct gcr_manifest *manifest, uint32_t index)
{
	for (size_t i = 0; i < manifest->gpus_count; i++)
		if (manifest->gpus[i].index == index)
			return &manifest->gpus[i];
	return NULL;
}

/* Checks one allocation by itself. Returns "MEMBER: message", or NULL. */
static const char *find_fault(const struct gcr_manifest *manifest, const struct gcr_extent *extent)
{
	const struct gcr_manifest_gpu *gpu = find_gpu(manifest, extent->gpu_index);

	if (extent->id > INT64_MAX)
		return "id: it is too large";
	if (extent->flags & ~(uint32_t)GCR_EXTENT_PROGRAM_HANDLE)
		return "flags: there is one that is not known";
	if (!gpu || memcmp(gpu->uuid, extent->gpu, sizeof(gpu->uuid)) != 0)
		return "gpu: it is none of gpus";
	return gcr_extent_fault(extent);
}

static int check_allocations(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	const struct gcr_extent *extents = manifest->allocations;
	uint64_t gpus_before = 0; /* a bit for each GPU, by index */
	size_t first = 0, second = 0;
	uint64_t sum = 0;
	int result;

	if (manifest->allocations_count > GCR_EXTENTS_MAX)
		return gcr_error_set(error, E2BIG, "allocations: there are more than %d",
				     GCR_EXTENTS_MAX);
	for (size_t i = 0; i < manifest->allocations_count; i++) {
		const char *fault = find_fault(manifest, &extents[i]);

		if (fault)
			return gcr_error_set(error, EPROTO, "allocations[%zu].%s", i, fault);
		if (i && extents[i].kind < extents[i - 1].kind)
			return gcr_error_set(error, EPROTO,
					     "allocations[%zu].kind: device memory comes first", i);
		if (i && extents[i].gpu_index != extents[i - 1].gpu_index)
			gpus_before |= UINT64_C(1) << extents[i - 1].gpu_index;
		if (extents[i].kind == GCR_MEMORY_DEVICE && gpus_before >> extents[i].gpu_index & 1)
			return gcr_error_set(error, EPROTO,
					     "allocations[%zu].gpu: device memory is listed GPU by "
					     "GPU",
					     i);
		if (__builtin_add_overflow(sum, extents[i].bytes, &sum) ||
		    sum > GCR_MANIFEST_ALLOCATED_MAX)
			return gcr_error_set(error, E2BIG,
					     "allocations[%zu].bytes: with those before, more than "
					     "any machine has",
					     i);
	}
	/* The addresses are those of one process, so the check covers all GPUs together. */
	result = gcr_extents_overlap(extents, manifest->allocations_count, &first, &second);
	if (result == -EEXIST)
		return gcr_error_set(error, EPROTO,
				     "allocations[%zu].%s: allocations[%zu] is there too", second,
				     extents[first].address ? "address" : "id", first);
	if (result < 0)
		return gcr_error_set(error, -result, "out of memory");
	return 0;
}

/* Is @name a plain file name, which cannot lead to another directory? */
static bool is_image_name(const char *name)
{
	size_t length = strnlen(name, GCR_MANIFEST_IMAGE_NAME_BYTES);

	return *name != '.' && length > strlen(".img") &&
	       gcr_manifest_consists_of(
		       name, GCR_MANIFEST_IMAGE_NAME_BYTES,
		       "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") &&
	       !strcmp(name + length - strlen(".img"), ".img");
}

static int check_images(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	const struct gcr_manifest_image *images = manifest->images;
	uint64_t sum = 0;

	if (manifest->images_count > GCR_MANIFEST_IMAGES_MAX)
		return gcr_error_set(error, E2BIG, "criu: there are more than %d",
				     GCR_MANIFEST_IMAGES_MAX);
	for (size_t i = 0; i < manifest->images_count; i++) {
		if (!is_image_name(images[i].name))
			return gcr_error_set(error, EPROTO, "criu[%zu].file: no image is called so",
					     i);
		if (i && strcmp(images[i].name, images[i - 1].name) <= 0)
			return gcr_error_set(error, EPROTO,
					     "criu[%zu].file: it is not in order, or there twice",
					     i);
		if (__builtin_add_overflow(sum, images[i].bytes, &sum) ||
		    sum > GCR_MANIFEST_ALLOCATED_MAX)
			return gcr_error_set(error, E2BIG,
					     "criu[%zu].bytes: with those before, more than any "
					     "machine has",
					     i);
	}
	return 0;
}

int gcr_manifest_check(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	int result = check_identity(manifest, error);

	if (!result)
		result = check_gpus(manifest, error);
	if (!result)
		result = check_allocations(manifest, error);
	if (!result)
		result = check_images(manifest, error);
	if (!result)
		result = gcr_manifest_tree_check(manifest, error);
	return result;
}

static bool is_first_vendor(const struct gcr_manifest *manifest)
{
	return !strcmp(manifest->vendor, GCR_MANIFEST_FIRST_VENDOR);
}

void gcr_manifest_set_vendor(struct gcr_manifest *manifest, const char *vendor)
{
	size_t i = 0;

	for (; vendor[i] && i + 1 < sizeof(manifest->vendor); i++)
		manifest->vendor[i] = (char)tolower((unsigned char)vendor[i]);
	manifest->vendor[i] = '\0';
}

static json_t *process_json(const struct gcr_manifest *manifest)
{
	return json_pack("{s:i, s:I, s:o, s:o, s:I}", "pid", (int)manifest->pid, "start_ticks",
			 (json_int_t)manifest->start_ticks, "comm",
			 gcr_manifest_text_json(manifest->comm), "exe",
			 gcr_manifest_text_json(manifest->exe), "uid", (json_int_t)manifest->uid);
}

static json_t *gpu_json(const struct gcr_manifest *manifest, const struct gcr_manifest_gpu *gpu)
{
	char uuid[GCR_GPU_UUID_TEXT_BYTES];

	/* In the form that the vendor's own tools use. */
	gcr_gpu_uuid_format(gpu->uuid, *manifest->vendor && !is_first_vendor(manifest), uuid);
	return json_pack("{s:I, s:s, s:o, s:I, s:s, s:I}", "index", (json_int_t)gpu->index, "uuid",
			 uuid, "name", gcr_manifest_text_json(gpu->name), "memory_bytes",
			 (json_int_t)gpu->memory_bytes, "compute_capability",
			 gpu->compute_capability, "control_bytes", (json_int_t)gpu->control_bytes);
}

static json_t *allocation_json(const struct gcr_extent *extent)
{
	char name[GCR_EXTENT_NAME_BYTES];
	char address[sizeof("0x") + 16];

	gcr_extent_name(extent, name);
	snprintf(address, sizeof(address), "0x%" PRIx64, extent->address);
	return json_pack("{s:s, s:s, s:I, s:I, s:s, s:I, s:b}", "file", name, "address", address,
			 "bytes", (json_int_t)extent->bytes, "gpu", (json_int_t)extent->gpu_index,
			 "kind", extent->kind == GCR_MEMORY_MANAGED ? "managed" : "device", "id",
			 (json_int_t)extent->id, "program_handle",
			 !!(extent->flags & GCR_EXTENT_PROGRAM_HANDLE));
}

static json_t *image_json(const struct gcr_manifest_image *image)
{
	char digits[GCR_DIGEST_TEXT_BYTES];

	gcr_digest_format(&image->digest, digits);
	return json_pack("{s:s, s:I, s:s}", "file", image->name, "bytes", (json_int_t)image->bytes,
			 "xxh3_128", digits);
}

static json_t *digests_json(const struct gcr_manifest *manifest)
{
	uint64_t bytes = GCR_DIGESTS_HEADER_BYTES +
			 gcr_manifest_digests_count(manifest) * sizeof(struct gcr_digest);
	char digits[GCR_DIGEST_TEXT_BYTES];

	gcr_digest_format(&manifest->digests, digits);
	return json_pack("{s:I, s:s}", "bytes", (json_int_t)bytes, "xxh3_128", digits);
}

bool gcr_manifest_print_value(FILE *stream, const char *before, json_t *value, const char *after)
{
	_cleanup_(json_decref_cleanup) json_t *taken = value;

	fputs(before, stream);
	if (!taken || json_dumpf(taken, stream, JSON_ENCODE_ANY) < 0)
		return false;
	fputs(after, stream);
	return true;
}

static bool print_gpus(FILE *stream, const struct gcr_manifest *manifest)
{
	fputs("  \"gpus\": [", stream);
	for (size_t i = 0; i < manifest->gpus_count; i++)
		if (!gcr_manifest_print_value(stream, i ? ",\n    " : "\n    ",
					      gpu_json(manifest, &manifest->gpus[i]), ""))
			return false;
	fputs(manifest->gpus_count ? "\n  ],\n" : "],\n", stream);
	return true;
}

static bool print_allocations(FILE *stream, const struct gcr_manifest *manifest)
{
	fputs("  \"allocations\": [", stream);
	for (size_t i = 0; i < manifest->allocations_count; i++)
		if (!gcr_manifest_print_value(stream, i ? ",\n    " : "\n    ",
					      allocation_json(&manifest->allocations[i]), ""))
			return false;
	fputs(manifest->allocations_count ? "\n  ],\n" : "],\n", stream);
	return true;
}

static bool print_images(FILE *stream, const struct gcr_manifest *manifest)
{
	if (!manifest->images_count)
		return true;
	fputs("  \"criu\": [", stream);
	for (size_t i = 0; i < manifest->images_count; i++)
		if (!gcr_manifest_print_value(stream, i ? ",\n    " : "\n    ",
					      image_json(&manifest->images[i]), ""))
			return false;
	fputs("\n  ],\n", stream);
	return true;
}

static bool print_members(FILE *stream, const struct gcr_manifest *manifest)
{
	fprintf(stream,
		"{\n  \"format\": \"" GCR_MANIFEST_FORMAT "\",\n  \"version\": %d,\n"
		"  \"generation\": \"%s\",\n  \"engine\": \"%s\",\n  \"data\": %s,\n",
		GCR_MANIFEST_VERSION, manifest->generation, manifest->engine,
		manifest->data ? "true" : "false");
	/* Omitted for the first vendor, as in manifests from before there was a second one. */
	if (*manifest->vendor && !is_first_vendor(manifest))
		fprintf(stream, "  \"vendor\": \"%s\",\n", manifest->vendor);
	if (!gcr_manifest_print_value(stream, "  \"process\": ", process_json(manifest), ",\n") ||
	    !print_gpus(stream, manifest) ||
	    !gcr_manifest_print_value(stream, "  \"driver_version\": ",
				      gcr_manifest_text_json(manifest->driver_version), ",\n"))
		return false;
	fprintf(stream,
		"  \"api_version\": %" PRIu32 ",\n  \"chunk_bytes\": %u,\n"
		"  \"hash\": \"" GCR_MANIFEST_HASH "\",\n",
		manifest->api_version, GCR_CHUNK_BYTES);
	if (!gcr_manifest_print_value(stream, "  \"digests\": ", digests_json(manifest), ",\n") ||
	    !print_allocations(stream, manifest) || !print_images(stream, manifest) ||
	    (manifest->tree && !gcr_manifest_tree_print(stream, manifest->tree)))
		return false;
	fputs("  \"digest\": \"", stream);
	return true;
}

int gcr_manifest_print(const struct gcr_manifest *manifest, char **ret_text, size_t *ret_bytes,
		       struct gcr_error *error)
{
	_cleanup_free_ char *text = NULL;
	char digits[GCR_DIGEST_TEXT_BYTES];
	struct gcr_digest digest;
	size_t bytes = 0;
	FILE *stream;
	bool printed;
	int result;

	result = gcr_manifest_check(manifest, error);
	if (result < 0)
		return result;
	stream = open_memstream(&text, &bytes);
	if (!stream)
		return gcr_error_set(error, ENOMEM, "out of memory");
	printed = print_members(stream, manifest);
	/* The digest covers all text written up to here. */
	printed = printed && !fflush(stream);
	if (printed) {
		gcr_digest_of(text, bytes, &digest);
		gcr_digest_format(&digest, digits);
		fprintf(stream, "%s" GCR_MANIFEST_END, digits);
	}
	/* fclose() releases the text to us, and reports a lack of memory too. */
	if (fclose(stream) != 0 || !printed)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (bytes > GCR_MANIFEST_BYTES_MAX)
		return gcr_error_set(error, E2BIG, "it would be larger than %u bytes",
				     GCR_MANIFEST_BYTES_MAX);
	*ret_text = TAKE_PTR(text);
	*ret_bytes = bytes;
	return 0;
}

int gcr_manifest_write(int directory_fd, const struct gcr_manifest *manifest,
		       struct gcr_error *error)
{
	_cleanup_free_ char *text = NULL;
	struct iovec part = {0};
	int result = gcr_manifest_print(manifest, &text, &part.iov_len, error);

	if (result < 0)
		return result;
	part.iov_base = text;
	return gcr_beneath_replace(directory_fd, GCR_MANIFEST_NAME, &part, 1, error);
}

int gcr_manifest_read(int directory_fd, struct gcr_manifest **ret_manifest, struct gcr_error *error)
{
	_cleanup_free_ void *bytes = NULL;
	size_t size = 0;
	int result = gcr_beneath_read(directory_fd, GCR_MANIFEST_NAME, GCR_MANIFEST_BYTES_MAX,
				      &bytes, &size, error);

	if (result < 0)
		return result;
	return gcr_manifest_parse(bytes, size, ret_manifest, error);
}
