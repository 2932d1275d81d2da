/* SPDX-License-Identifier: MIT */
/*
 * What the files of the manifest share: how texts are written, how it ends, and how members are
 * checked, printed and read.
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

/* The last bytes: the digits of the digest, then this. */
#define GCR_MANIFEST_END       "\"\n}\n"
#define GCR_MANIFEST_END_BYTES (GCR_DIGEST_TEXT_BYTES - 1 + sizeof(GCR_MANIFEST_END) - 1)

GCR_DEFINE_CLEANUP(json_t *, json_decref);

/* manifest_text.c */
/* Any bytes as UTF-8 (see manifest.h); NULL: no memory. The caller's (free). */
char *gcr_manifest_encode(const char *text);
/* And back, in place. -EINVAL: no such text. */
int gcr_manifest_decode(char *text);
/* A text that may hold any byte. NULL: no memory, as with all of jansson's. */
json_t *gcr_manifest_text_json(const char *text);
/* Does it end within @room bytes, and has only these characters? */
bool gcr_manifest_consists_of(const char *text, size_t room, const char *characters);
bool gcr_manifest_ends(const char *text, size_t room);
/* One of the names that there can be for an engine? */
bool gcr_manifest_is_engine(const char *text, size_t room);

/*
 * manifest.c. Takes @value. False: there is no value, or it cannot be printed; what else fails is
 * remembered by the stream.
 */
bool gcr_manifest_print_value(FILE *stream, const char *before, json_t *value, const char *after);

/* manifest_tree.c */
/* Whether it is possible, and goes with the rest of @manifest: errors as gcr_manifest_check(). */
int gcr_manifest_tree_check(const struct gcr_manifest *manifest, struct gcr_error *error);
/* The whole member, with the comma after it. False as above. */
bool gcr_manifest_tree_print(FILE *stream, const struct gcr_manifest_tree *tree);

/* How its choices are written. */
extern const char *const gcr_manifest_tree_tcp_words[GCR_TREE_TCP_COUNT];
extern const char *const gcr_manifest_tree_identity_words[GCR_IDENTITY_KINDS];

/* What is being read, and where in it. */
struct manifest_parse {
	struct gcr_manifest *manifest;
	struct gcr_error *error;
	const char *outer; /* begins every way to a member: "" or "tree." */
	char within[64];   /* "process.", "gpus[3]." */
};

/* manifest_members.c. All with words that begin with the way to the member @key. */
int manifest_refuse(const struct manifest_parse *parse, int number, const char *key,
		    const char *format, ...) __attribute__((format(printf, 4, 5)));
int manifest_get(const struct manifest_parse *parse, const json_t *object, const char *key,
		 json_type type, json_t **ret_value);
/* From 0 to @max. */
int manifest_get_number(const struct manifest_parse *parse, const json_t *object, const char *key,
			json_int_t max, uint64_t *ret_number);
int manifest_get_bool(const struct manifest_parse *parse, const json_t *object, const char *key,
		      bool *ret_value);
/* As it is, and only what stands in @room bytes with its NUL. */
int manifest_get_plain_text(const struct manifest_parse *parse, const json_t *object,
			    const char *key, char *ret_text, size_t room);
/* One that may hold any byte. */
int manifest_get_text(const struct manifest_parse *parse, const json_t *object, const char *key,
		      char *ret_text, size_t room);
int manifest_get_digest(const struct manifest_parse *parse, const json_t *object, const char *key,
			struct gcr_digest *ret_digest);
/* An object: enters it. The caller leaves it by emptying `within`. */
int manifest_enter(struct manifest_parse *parse, const json_t *object, const char *key,
		   json_t **ret_object);
/*
 * An array of at most @max objects: *items becomes an array of as many structs of @item_bytes, all
 * zeros, before @parse_item is called for each. It is its owner's to free, on failure too.
 */
int manifest_get_list(struct manifest_parse *parse, const json_t *object, const char *key,
		      size_t max, size_t item_bytes, void **items, size_t *count,
		      int (*parse_item)(struct manifest_parse *parse, const json_t *object,
					void *item));

/* manifest_tree_parse.c: the member `tree` of @root, if there is one. */
int manifest_parse_tree(struct manifest_parse *parse, const json_t *root);

#endif
