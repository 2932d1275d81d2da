/* SPDX-License-Identifier: MIT */
/*
 * Classifies a function by its name: the driver's functions are named after an object and a verb
 * (cuMemGetLocationInfo). A function is harmless if its verb asks, unless another word of its name
 * says that the answer gives access to memory.
 */
#include "backend/preload/hook/unknown.h"

#include <stddef.h>
#include <string.h>

#include "lib/cleanup.h"

/* Verbs that ask. They come after the object, so the first of them is the verb. */
static const char *const asking[] = {"Get", "Query", "Is", "Can", "Find"};

/* Words that say that the function does more than return information. */
static const struct {
	const char *word;
	const char *why;
} giving[] = {
	{"Alloc", "makes memory"},
	{"Async", "goes into a stream: work for the GPU"},
	{"Begin", "opens a capture, which the gate has to see"},
	{"Bind", "ties memory to something that does not move with it"},
	{"Buffer", "memory of another API"},
	{"Copy", "work for the GPU"},
	{"Create", "makes an object that may hold memory"},
	{"Descriptor", "a way to memory for others"},
	{"Export", "a way to memory for others, or to functions around the gate"},
	{"External", "memory of another API"},
	{"Fabric", "a way to memory for others"},
	{"Graphics", "memory of another API"},
	{"Handle", "a way to memory for others"},
	{"Import", "memory of another process"},
	{"Ipc", "memory of another process"},
	{"Launch", "work for the GPU"},
	{"Managed", "memory that the kernel moves"},
	{"Map", "changes what is where"},
	{"Mapped", "memory of another API"},
	{"Memcpy", "work for the GPU"},
	{"Memset", "work for the GPU"},
	{"Proc", "functions around the gate"},
	{"Register", "memory of the host, or a function that the driver calls"},
	{"Set", "changes something"},
	{"Share", "a way to memory for others"},
	{"Shareable", "a way to memory for others"},
	{"Stub", "functions around the gate"},
	{"Table", "functions around the gate"},
};

/*
 * The next word at *@ret_at: a capital and the small letters behind it. Returns its length, 0:
 * there is none.
 */
static size_t next_word(const char **ret_at)
{
	const char *at = *ret_at;
	size_t length = 0;

	while (*at && !(*at >= 'A' && *at <= 'Z'))
		at++;
	if (*at)
		length = 1 + strcspn(at + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
	*ret_at = at;
	return length;
}

static bool is_word(const char *at, size_t length, const char *word)
{
	return strlen(word) == length && strncmp(at, word, length) == 0;
}

bool gcr_unknown_is_harmless(const char *name)
{
	bool asks = false;
	size_t length;

	for (const char *at = name; (length = next_word(&at)); at += length) {
		for (size_t i = 0; i < GCR_ARRAY_SIZE(asking); i++)
			asks |= is_word(at, length, asking[i]);
		for (size_t i = 0; i < GCR_ARRAY_SIZE(giving); i++)
			if (is_word(at, length, giving[i].word))
				return false;
	}
	return asks;
}
