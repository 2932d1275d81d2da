/* SPDX-License-Identifier: MIT */
/*
 * Reading an untrusted manifest: first its bytes are checked, then each member by name and type;
 * gcr_manifest_check() checks whether the members are consistent.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/extent.h"
#include "lib/manifest.h"
#include "lib/manifest_private.h"
#include "lib/uuid.h"

/*
 * Limits for the JSON library, whatever a manifest contains: it recurses for each level, and takes
 * memory for each object, array and value. In a valid manifest, which has long lines, this memory
 * is a small multiple of the text. The largest valid manifest has 2.9 million values.
 */
#define DEPTH_MAX	32u
#define VALUES_MAX	(3u << 20)
#define CONTAINER_BYTES 256u
#define VALUE_BYTES	128u
#define MEMORY_FACTOR	16u
#define MEMORY_FREE	(64u << 10) /* for the short texts of a manifest with few items */

/* Checks the digits at the end, the digest of everything before them. */
static int check_end(const char *text, size_t size, struct gcr_error *error)
{
	struct gcr_digest expected, found;
	const char *end;

	if (size < GCR_MANIFEST_END_BYTES)
		return gcr_error_set(error, EPROTO, "it is too short to be a manifest");
	if (size > GCR_MANIFEST_BYTES_MAX)
		return gcr_error_set(error, EFBIG, "it is larger than %u bytes",
				     GCR_MANIFEST_BYTES_MAX);
	end = text + size - GCR_MANIFEST_END_BYTES;
	if (memcmp(end + GCR_DIGEST_TEXT_BYTES - 1, GCR_MANIFEST_END,
		   sizeof(GCR_MANIFEST_END) - 1) != 0 ||
	    gcr_digest_parse(end, &expected) < 0)
		return gcr_error_set(
			error, EPROTO,
			"it does not end with its digest: it is not a manifest, or cut");
	gcr_digest_of(text, (uint64_t)(end - text), &found);
	if (!gcr_digest_equal(&found, &expected))
		return gcr_error_set(error, EBADMSG,
				     "it has been changed: its digest is not what it says");
	return 0;
}

/*
 * Checks depth, number of values and the memory that they take before the JSON library parses the
 * text.
 */
static int check_shape(const char *text, size_t size, struct gcr_error *error)
{
	uint64_t memory_max = MEMORY_FREE + (uint64_t)MEMORY_FACTOR * size;
	unsigned int depth = 0, values = 0;
	uint64_t memory = 0;
	bool in_string = false;

	for (size_t i = 0; i < size; i++) {
		switch (text[i]) {
		case '"':
			in_string = !in_string;
			break;
		case '\\':
			i += in_string;
			break;
		case '[':
		case '{':
			depth += !in_string;
			values += !in_string;
			memory += in_string ? 0 : CONTAINER_BYTES + VALUE_BYTES;
			break;
		case ']':
		case '}':
			if (!in_string && depth)
				depth--;
			break;
		case ',':
			values += !in_string;
			memory += in_string ? 0 : VALUE_BYTES;
			break;
		default:
			break;
		}
		if (depth > DEPTH_MAX)
			return gcr_error_set(error, EPROTO, "it is nested deeper than %u levels",
					     DEPTH_MAX);
		if (values > VALUES_MAX)
			return gcr_error_set(error, E2BIG, "it has more than %u values",
					     VALUES_MAX);
		if (memory > memory_max)
			return gcr_error_set(error, E2BIG,
					     "it has more values than a text of its length can");
	}
	return 0;
}

static int load(const char *text, size_t size, json_t **ret_root, struct gcr_error *error)
{
	json_error_t fault;
	json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &fault);

	if (!root && json_error_code(&fault) == json_error_out_of_memory)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (!root)
		return gcr_error_set(error, EPROTO, "line %d, column %d: %s", fault.line,
				     fault.column, fault.text);
	*ret_root = root;
	return 0;
}

/*
 * Checks that the text of the member @key is @expected, the only one that this version knows.
 * -EPROTONOSUPPORT: the text is another one.
 */
static int expect_text(const struct manifest_parse *parse, const json_t *root, const char *key,
		       const char *expected)
{
	json_t *value = NULL;
	int result = manifest_get(parse, root, key, JSON_STRING, &value);

	if (result < 0)
		return result;
	if (strcmp(json_string_value(value), expected) != 0)
		return manifest_refuse(parse, EPROTONOSUPPORT, key, "%.100s is not known, %s is",
				       json_string_value(value), expected);
	return 0;
}

static int expect_number(const struct manifest_parse *parse, const json_t *root, const char *key,
			 uint64_t expected)
{
	uint64_t number = 0;
	int result = manifest_get_number(parse, root, key, INT64_MAX, &number);

	if (result < 0)
		return result;
	if (number != expected)
		return manifest_refuse(parse, EPROTONOSUPPORT, key,
				       "%" PRIu64 " is not known, %" PRIu64 " is", number,
				       expected);
	return 0;
}

static int parse_process(struct manifest_parse *parse, const json_t *root)
{
	struct gcr_manifest *manifest = parse->manifest;
	uint64_t pid = 0, uid = 0;
	json_t *process = NULL;
	int result = manifest_enter(parse, root, "process", &process);

	if (result < 0)
		return result;
	result = manifest_get_number(parse, process, "pid", INT32_MAX, &pid);
	if (!result)
		result = manifest_get_number(parse, process, "start_ticks", INT64_MAX,
					     &manifest->start_ticks);
	if (!result)
		result = manifest_get_number(parse, process, "uid", UINT32_MAX, &uid);
	if (!result)
		result = manifest_get_text(parse, process, "comm", manifest->comm,
					   sizeof(manifest->comm));
	if (!result)
		result = manifest_get_text(parse, process, "exe", manifest->exe,
					   sizeof(manifest->exe));
	if (result < 0)
		return result;
	manifest->pid = (pid_t)pid;
	manifest->uid = (uid_t)uid;
	*parse->within = '\0';
	return 0;
}

static int parse_gpu(struct manifest_parse *parse, const json_t *object, void *item)
{
	struct gcr_manifest_gpu *gpu = item;
	char uuid[GCR_GPU_UUID_TEXT_BYTES] = "";
	uint64_t index = 0;
	int result = manifest_get_number(parse, object, "index", GCR_GPUS_MAX - 1, &index);

	if (!result)
		result = manifest_get_plain_text(parse, object, "uuid", uuid, sizeof(uuid));
	if (!result && gcr_gpu_uuid_parse(uuid, gpu->uuid) < 0)
		result = manifest_refuse(parse, EPROTO, "uuid", "it is not GPU- and a UUID");
	if (!result)
		result = manifest_get_text(parse, object, "name", gpu->name, sizeof(gpu->name));
	if (!result)
		result = manifest_get_number(parse, object, "memory_bytes", INT64_MAX,
					     &gpu->memory_bytes);
	if (!result)
		result = manifest_get_plain_text(parse, object, "compute_capability",
						 gpu->compute_capability,
						 sizeof(gpu->compute_capability));
	/* Missing in manifests from before there was a dump. */
	if (!result && json_object_get(object, "control_bytes"))
		result = manifest_get_number(parse, object, "control_bytes", INT64_MAX,
					     &gpu->control_bytes);
	gpu->index = (uint32_t)index;
	return result;
}

/* Gets the member `address`: a number as "0x7f3a40000000", in its canonical form only. */
static int get_address(const struct manifest_parse *parse, const json_t *object,
		       uint64_t *ret_address)
{
	char text[sizeof("0x") + 16] = "", again[sizeof(text)];
	uint64_t address = 0;
	int result = manifest_get_plain_text(parse, object, "address", text, sizeof(text));

	if (result < 0)
		return result;
	if (!strncmp(text, "0x", 2) && isxdigit((unsigned char)text[2]))
		address = strtoull(text + 2, NULL, 16);
	snprintf(again, sizeof(again), "0x%" PRIx64, address);
	if (strcmp(text, again) != 0)
		return manifest_refuse(parse, EPROTO, "address",
				       "it is no hexadecimal number with 0x");
	*ret_address = address;
	return 0;
}

static int get_kind(const struct manifest_parse *parse, const json_t *object, uint32_t *ret_kind)
{
	char text[sizeof("managed")] = "";
	int result = manifest_get_plain_text(parse, object, "kind", text, sizeof(text));

	if (result < 0)
		return result;
	if (!strcmp(text, "device"))
		*ret_kind = GCR_MEMORY_DEVICE;
	else if (!strcmp(text, "managed"))
		*ret_kind = GCR_MEMORY_MANAGED;
	else
		return manifest_refuse(parse, EPROTO, "kind", "it is neither device nor managed");
	return 0;
}

/*
 * Checks that the member `file` is the name that follows from the extent: so no name leads to
 * another directory, and all are unique.
 */
static int check_file(const struct manifest_parse *parse, const json_t *object,
		      const struct gcr_extent *extent)
{
	char name[GCR_EXTENT_NAME_BYTES];
	json_t *value = NULL;
	int result = manifest_get(parse, object, "file", JSON_STRING, &value);

	if (result < 0)
		return result;
	gcr_extent_name(extent, name);
	if (strcmp(json_string_value(value), name) != 0)
		return manifest_refuse(parse, EPROTO, "file", "it is not %s", name);
	return 0;
}

static int parse_allocation(struct manifest_parse *parse, const json_t *object, void *item)
{
	struct gcr_extent *extent = item;
	uint64_t gpu = 0;
	bool program_handle = false;
	int result = get_address(parse, object, &extent->address);

	if (!result)
		result = manifest_get_number(parse, object, "bytes", INT64_MAX, &extent->bytes);
	if (!result)
		result = manifest_get_number(parse, object, "gpu", GCR_GPUS_MAX - 1, &gpu);
	if (!result)
		result = get_kind(parse, object, &extent->kind);
	if (!result)
		result = manifest_get_number(parse, object, "id", INT64_MAX, &extent->id);
	if (!result)
		result = manifest_get_bool(parse, object, "program_handle", &program_handle);
	if (result < 0)
		return result;
	extent->gpu_index = (uint32_t)gpu;
	extent->flags = program_handle ? GCR_EXTENT_PROGRAM_HANDLE : 0;
	for (size_t i = 0; i < parse->manifest->gpus_count; i++)
		if (parse->manifest->gpus[i].index == extent->gpu_index)
			memcpy(extent->gpu, parse->manifest->gpus[i].uuid, sizeof(extent->gpu));
	return check_file(parse, object, extent);
}

static int parse_image(struct manifest_parse *parse, const json_t *object, void *item)
{
	struct gcr_manifest_image *image = item;
	int result =
		manifest_get_plain_text(parse, object, "file", image->name, sizeof(image->name));

	if (!result)
		result = manifest_get_number(parse, object, "bytes", INT64_MAX, &image->bytes);
	if (!result)
		result = manifest_get_digest(parse, object, "xxh3_128", &image->digest);
	return result;
}

static int parse_gpus(struct manifest_parse *parse, const json_t *root)
{
	struct gcr_manifest *manifest = parse->manifest;
	_cleanup_free_ void *gpus = NULL;
	int result = manifest_get_list(parse, root, "gpus", GCR_GPUS_MAX, sizeof(*manifest->gpus),
				       &gpus, &manifest->gpus_count, parse_gpu);

	if (!result && manifest->gpus_count)
		memcpy(manifest->gpus, gpus, manifest->gpus_count * sizeof(*manifest->gpus));
	return result;
}

static int parse_allocations(struct manifest_parse *parse, const json_t *root)
{
	struct gcr_manifest *manifest = parse->manifest;
	void *allocations = NULL;
	int result = manifest_get_list(parse, root, "allocations", GCR_EXTENTS_MAX,
				       sizeof(*manifest->allocations), &allocations,
				       &manifest->allocations_count, parse_allocation);

	manifest->allocations = allocations;
	return result;
}

/* Parses the list of images: missing if the process is only frozen; not empty if it was dumped. */
static int parse_images(struct manifest_parse *parse, const json_t *root)
{
	struct gcr_manifest *manifest = parse->manifest;
	void *images = NULL;
	int result;

	if (!json_object_get(root, GCR_MANIFEST_IMAGES))
		return 0;
	result = manifest_get_list(parse, root, GCR_MANIFEST_IMAGES, GCR_MANIFEST_IMAGES_MAX,
				   sizeof(*manifest->images), &images, &manifest->images_count,
				   parse_image);
	manifest->images = images;
	if (!result && !manifest->images_count)
		result = manifest_refuse(parse, EPROTO, GCR_MANIFEST_IMAGES, "there are none");
	return result;
}

/* Parses the member `digests`; the size of that file must follow from the allocations. */
static int parse_digests(struct manifest_parse *parse, const json_t *root)
{
	uint64_t expected = GCR_DIGESTS_HEADER_BYTES +
			    gcr_manifest_digests_count(parse->manifest) * sizeof(struct gcr_digest);
	uint64_t bytes = 0;
	json_t *digests = NULL;
	int result = manifest_enter(parse, root, "digests", &digests);

	if (result < 0)
		return result;
	result = manifest_get_number(parse, digests, "bytes", INT64_MAX, &bytes);
	if (!result && bytes != expected)
		result = manifest_refuse(parse, EPROTO, "bytes",
					 "the allocations need %" PRIu64 ", not %" PRIu64, expected,
					 bytes);
	if (!result)
		result = manifest_get_digest(parse, digests, "xxh3_128", &parse->manifest->digests);
	if (!result)
		*parse->within = '\0';
	return result;
}

/* Parses all members, first those that decide whether the rest can be understood. */
static int parse_root(struct manifest_parse *parse, const json_t *root)
{
	struct gcr_manifest *manifest = parse->manifest;
	uint64_t api_version = 0;
	int result;

	if (!json_is_object(root))
		return gcr_error_set(parse->error, EPROTO, "it is no object");
	result = expect_text(parse, root, "format", GCR_MANIFEST_FORMAT);
	if (!result)
		result = expect_number(parse, root, "version", GCR_MANIFEST_VERSION);
	if (!result)
		result = expect_number(parse, root, "chunk_bytes", GCR_CHUNK_BYTES);
	if (!result)
		result = expect_text(parse, root, "hash", GCR_MANIFEST_HASH);
	if (!result)
		result = manifest_get_plain_text(parse, root, "generation", manifest->generation,
						 sizeof(manifest->generation));
	if (!result)
		result = manifest_get_plain_text(parse, root, "engine", manifest->engine,
						 sizeof(manifest->engine));
	if (!result)
		result = manifest_get_bool(parse, root, "data", &manifest->data);
	if (*manifest->engine)
		snprintf(manifest->vendor, sizeof(manifest->vendor), GCR_MANIFEST_FIRST_VENDOR);
	if (!result && json_object_get(root, "vendor"))
		result = manifest_get_plain_text(parse, root, "vendor", manifest->vendor,
						 sizeof(manifest->vendor));
	if (!result)
		result = parse_process(parse, root);
	if (!result)
		result = parse_gpus(parse, root);
	if (!result)
		result = manifest_get_text(parse, root, "driver_version", manifest->driver_version,
					   sizeof(manifest->driver_version));
	if (!result)
		result = manifest_get_number(parse, root, "api_version", UINT32_MAX, &api_version);
	manifest->api_version = (uint32_t)api_version;
	if (!result)
		result = parse_allocations(parse, root);
	if (!result)
		result = parse_images(parse, root);
	if (!result)
		result = manifest_parse_tree(parse, root);
	return result;
}

/* Checks that the digits at the end are the value of the member `digest`, not of another member. */
static int check_digest(const struct manifest_parse *parse, const json_t *root, const char *end)
{
	struct gcr_digest member, digits;
	int result = manifest_get_digest(parse, root, "digest", &member);

	if (result < 0)
		return result;
	if (gcr_digest_parse(end, &digits) < 0 || !gcr_digest_equal(&member, &digits))
		return manifest_refuse(parse, EPROTO, "digest", "it is not the last member");
	return 0;
}

int gcr_manifest_parse(const void *bytes, size_t size, struct gcr_manifest **ret_manifest,
		       struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	_cleanup_(json_decref_cleanup) json_t *root = NULL;
	struct manifest_parse parse = {.error = error, .outer = ""};
	const char *text = bytes;
	int result;

	result = check_end(text, size, error);
	if (!result)
		result = check_shape(text, size, error);
	if (!result)
		result = load(text, size, &root, error);
	if (result < 0)
		return result;
	manifest = calloc(1, sizeof(*manifest));
	if (!manifest)
		return gcr_error_set(error, ENOMEM, "out of memory");
	parse.manifest = manifest;
	result = parse_root(&parse, root);
	/* The sums of bytes are reliable only after this check. */
	if (!result)
		result = gcr_manifest_check(manifest, error);
	if (!result)
		result = parse_digests(&parse, root);
	if (!result)
		result = check_digest(&parse, root, text + size - GCR_MANIFEST_END_BYTES);
	if (result < 0)
		return result;
	*ret_manifest = TAKE_PTR(manifest);
	return 0;
}
