/* SPDX-License-Identifier: MIT */
/*
 * Reading members of an untrusted manifest one by one: each is checked for its name, its type and
 * its range. Messages contain the full path of the member.
 */
#include "lib/manifest_private.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int manifest_refuse(const struct manifest_parse *parse, int number, const char *key,
		    const char *format, ...)
{
	char words[GCR_WORDS_BYTES];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(words, sizeof(words), format, arguments);
	va_end(arguments);
	return gcr_error_set(parse->error, number, "%s%s%s: %s", parse->outer, parse->within, key,
			     words);
}

int manifest_get(const struct manifest_parse *parse, const json_t *object, const char *key,
		 json_type type, json_t **ret_value)
{
	static const char *const names[] = {[JSON_OBJECT] = "object",
					    [JSON_ARRAY] = "array",
					    [JSON_STRING] = "text",
					    [JSON_INTEGER] = "whole number"};
	json_t *value = json_object_get(object, key);

	if (!value)
		return manifest_refuse(parse, EPROTO, key, "it is missing");
	if (json_typeof(value) != type)
		return manifest_refuse(parse, EPROTO, key, "it is no %s", names[type]);
	*ret_value = value;
	return 0;
}

int manifest_get_number(const struct manifest_parse *parse, const json_t *object, const char *key,
			json_int_t max, uint64_t *ret_number)
{
	json_t *value = NULL;
	json_int_t number;
	int result = manifest_get(parse, object, key, JSON_INTEGER, &value);

	if (result < 0)
		return result;
	number = json_integer_value(value);
	if (number < 0 || number > max)
		return manifest_refuse(parse, EPROTO, key,
				       "%" JSON_INTEGER_FORMAT " is not from 0 to "
				       "%" JSON_INTEGER_FORMAT,
				       number, max);
	*ret_number = (uint64_t)number;
	return 0;
}

int manifest_get_bool(const struct manifest_parse *parse, const json_t *object, const char *key,
		      bool *ret_value)
{
	const json_t *value = json_object_get(object, key);

	if (!value)
		return manifest_refuse(parse, EPROTO, key, "it is missing");
	if (!json_is_boolean(value))
		return manifest_refuse(parse, EPROTO, key, "it is neither true nor false");
	*ret_value = json_is_true(value);
	return 0;
}

int manifest_get_plain_text(const struct manifest_parse *parse, const json_t *object,
			    const char *key, char *ret_text, size_t room)
{
	json_t *value = NULL;
	int result = manifest_get(parse, object, key, JSON_STRING, &value);

	if (result < 0)
		return result;
	if (json_string_length(value) >= room)
		return manifest_refuse(parse, EPROTO, key, "it is longer than %zu bytes", room - 1);
	memcpy(ret_text, json_string_value(value), json_string_length(value) + 1);
	return 0;
}

int manifest_get_text(const struct manifest_parse *parse, const json_t *object, const char *key,
		      char *ret_text, size_t room)
{
	_cleanup_free_ char *text = NULL;
	json_t *value = NULL;
	int result = manifest_get(parse, object, key, JSON_STRING, &value);

	if (result < 0)
		return result;
	text = strdup(json_string_value(value));
	if (!text)
		return manifest_refuse(parse, ENOMEM, key, "out of memory");
	if (gcr_manifest_decode(text) < 0)
		return manifest_refuse(parse, EPROTO, key,
				       "it has a %% without two digits, or a control "
				       "character");
	if (strlen(text) >= room)
		return manifest_refuse(parse, EPROTO, key, "it is longer than %zu bytes", room - 1);
	memcpy(ret_text, text, strlen(text) + 1);
	return 0;
}

int manifest_get_digest(const struct manifest_parse *parse, const json_t *object, const char *key,
			struct gcr_digest *ret_digest)
{
	char digits[GCR_DIGEST_TEXT_BYTES] = "";
	int result = manifest_get_plain_text(parse, object, key, digits, sizeof(digits));

	if (result < 0)
		return result;
	if (gcr_digest_parse(digits, ret_digest) < 0)
		return manifest_refuse(parse, EPROTO, key, "it is not 32 hexadecimal digits");
	return 0;
}

int manifest_enter(struct manifest_parse *parse, const json_t *object, const char *key,
		   json_t **ret_object)
{
	int result = manifest_get(parse, object, key, JSON_OBJECT, ret_object);

	if (!result)
		snprintf(parse->within, sizeof(parse->within), "%s.", key);
	return result;
}

static int get_array(const struct manifest_parse *parse, const json_t *object, const char *key,
		     size_t max, json_t **ret_array)
{
	json_t *array = NULL;
	int result = manifest_get(parse, object, key, JSON_ARRAY, &array);

	if (result < 0)
		return result;
	if (json_array_size(array) > max)
		return manifest_refuse(parse, E2BIG, key, "there are more than %zu", max);
	*ret_array = array;
	return 0;
}

int manifest_get_list(struct manifest_parse *parse, const json_t *object, const char *key,
		      size_t max, size_t item_bytes, void **items, size_t *count,
		      int (*parse_item)(struct manifest_parse *parse, const json_t *object,
					void *item))
{
	json_t *array = NULL;
	int result = get_array(parse, object, key, max, &array);

	if (result < 0 || !json_array_size(array))
		return result;
	*items = calloc(json_array_size(array), item_bytes);
	if (!*items)
		return manifest_refuse(parse, ENOMEM, key, "out of memory");
	*count = json_array_size(array);
	for (size_t i = 0; i < *count && !result; i++) {
		const json_t *item = json_array_get(array, i);
		char name[sizeof(parse->within) - 1];

		snprintf(name, sizeof(name), "%s[%zu]", key, i);
		if (!json_is_object(item))
			return manifest_refuse(parse, EPROTO, name, "it is no object");
		snprintf(parse->within, sizeof(parse->within), "%s.", name);
		result = parse_item(parse, item, (char *)*items + i * item_bytes);
		if (!result)
			*parse->within = '\0';
	}
	return result;
}
