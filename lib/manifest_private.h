/* SPDX-License-Identifier: MIT */
/*
 * Shared by the manifest's source files: how texts are encoded, how the file ends, and how members
 * are checked, printed and read.
 */
#ifndef GCR_MANIFEST_PRIVATE_H
#define GCR_MANIFEST_PRIVATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/cleanup.h"
#include "lib/digest.h"
#include "lib/error.h"
#include "lib/manifest.h"

/* The last bytes of a manifest: the digits of the digest, followed by this text. */
#define GCR_MANIFEST_END       "\"\n}\n"
#define GCR_MANIFEST_END_BYTES (GCR_DIGEST_TEXT_BYTES - 1 + sizeof(GCR_MANIFEST_END) - 1)

GCR_DEFINE_CLEANUP(json_t *, json_decref);

/* manifest_text.c */
/* Encodes any bytes as UTF-8 (see manifest.h). The caller frees the text; NULL: no memory. */
char *gcr_manifest_encode(const char *text);
/* Decodes such a text in place. -EINVAL: not such a text. */
int gcr_manifest_decode(char *text);
/*
 * A JSON string for a text that may hold any byte. NULL: no memory, as with all of jansson's
 * functions.
 */
json_t *gcr_manifest_text_json(const char *text);
/* Does @text end within @room bytes, and consist of @characters only? */
bool gcr_manifest_consists_of(const char *text, size_t room, const char *characters);
/* Does @text end with a NUL within @room bytes? */
bool gcr_manifest_ends(const char *text, size_t room);
/* Is @text a valid name of an engine? */
bool gcr_manifest_is_engine(const char *text, size_t room);

/*
 * manifest.c. Prints @value, and drops the caller's reference to it. False: @value is NULL or
 * cannot be printed; other errors are recorded in the stream.
 */
bool gcr_manifest_print_value(FILE *stream, const char *before, json_t *value, const char *after);

/* manifest_tree.c */
/*
 * Checks that the tree is valid and consistent with the rest of @manifest. Errors as
 * gcr_manifest_check().
 */
int gcr_manifest_tree_check(const struct gcr_manifest *manifest, struct gcr_error *error);
/* Prints the whole member, with the comma after it. False as gcr_manifest_print_value(). */
bool gcr_manifest_tree_print(FILE *stream, const struct gcr_manifest_tree *tree);

/* The names of the enumerators in the file. */
extern const char *const gcr_manifest_tree_tcp_words[GCR_TREE_TCP_COUNT];
extern const char *const gcr_manifest_tree_identity_words[GCR_IDENTITY_KINDS];

/* The manifest being parsed, and the current position in it. */
struct manifest_parse {
	struct gcr_manifest *manifest;
	struct gcr_error *error;
	const char *outer; /* the first part of every member's path: "" or "tree." */
	char within[64];   /* the current object or array item: "process.", "gpus[3]." */
};

/*
 * manifest_members.c. All errors come with a message that begins with the path of the member @key.
 * manifest_refuse() sets such an error and returns -@number.
 */
int manifest_refuse(const struct manifest_parse *parse, int number, const char *key,
		    const char *format, ...) __attribute__((format(printf, 4, 5)));
/*
 * Gets the member @key of @object, of the given type; @object keeps owning *ret_value. -EPROTO: the
 * member is missing or of another type.
 */
int manifest_get(const struct manifest_parse *parse, const json_t *object, const char *key,
		 json_type type, json_t **ret_value);
/* A number from 0 to @max. */
int manifest_get_number(const struct manifest_parse *parse, const json_t *object, const char *key,
			json_int_t max, uint64_t *ret_number);
int manifest_get_bool(const struct manifest_parse *parse, const json_t *object, const char *key,
		      bool *ret_value);
/* A text that is not encoded and fits into @room bytes with its NUL. */
int manifest_get_plain_text(const struct manifest_parse *parse, const json_t *object,
			    const char *key, char *ret_text, size_t room);
/* An encoded text, which may hold any byte. */
int manifest_get_text(const struct manifest_parse *parse, const json_t *object, const char *key,
		      char *ret_text, size_t room);
int manifest_get_digest(const struct manifest_parse *parse, const json_t *object, const char *key,
			struct gcr_digest *ret_digest);
/*
 * Gets the object @key and makes it the current one: parse->within names it in errors. The caller
 * empties parse->within after the last of its members.
 */
int manifest_enter(struct manifest_parse *parse, const json_t *object, const char *key,
		   json_t **ret_object);
/*
 * Reads an array of at most @max objects: *items becomes an array of *count structs of @item_bytes,
 * all zeros; then @parse_item fills each in, until it fails. An empty array leaves *items and
 * *count as they are. The caller frees *items, on failure too. -EPROTO, -E2BIG, -ENOMEM, and the
 * errors of @parse_item.
 */
int manifest_get_list(struct manifest_parse *parse, const json_t *object, const char *key,
		      size_t max, size_t item_bytes, void **items, size_t *count,
		      int (*parse_item)(struct manifest_parse *parse, const json_t *object,
					void *item));

/* manifest_tree_parse.c: parses the member `tree` of @root, if there is one. */
int manifest_parse_tree(struct manifest_parse *parse, const json_t *root);

#endif
