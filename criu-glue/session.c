/* SPDX-License-Identifier: MIT */
/*
 * The images tty-info.img and pstree.img: two magic numbers, then for each terminal or process a
 * length (32 bits, the host's order) and a message of images/tty.proto or pstree.proto of CRIU 4 in
 * the encoding of protocol buffers.
 */
#include "criu-glue/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "criu-glue/image.h"
#include "criu-glue/protobuf.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"

#define TTY_INFO_MAGIC 0x59453036u
#define TYPE_EXTERNAL  5u /* EXT_TTY */

/* Field numbers of pstree_entry, and of tty_info_entry. */
enum {
	FIELD_TREE_PGID = 3,
	FIELD_TREE_SID = 4,

	FIELD_TYPE = 2,
	FIELD_SID = 6,
	FIELD_PGRP = 7,
	FIELD_TERMIOS = 9,
	FIELD_TERMIOS_LOCKED = 10,
	FIELD_WINSIZE = 11,
};

/* The new image, which is built up in memory. */
struct output {
	uint8_t *bytes;
	size_t used, room;
};

/* The processes of the tree, and the session and group of their root. */
struct tree {
	const pid_t *pids;
	size_t count;
	pid_t session, group;
};

struct terminal {
	uint64_t type, sid, pgrp;
	bool has_settings;
};

static bool get_terminal(const uint8_t *at, const uint8_t *end, struct terminal *terminal)
{
	struct gcr_protobuf_field field;

	*terminal = (struct terminal){0};
	while (at < end) {
		if (!gcr_protobuf_next(&at, end, &field))
			return false;
		if (field.number == FIELD_TYPE)
			terminal->type = field.value;
		else if (field.number == FIELD_SID)
			terminal->sid = field.value;
		else if (field.number == FIELD_PGRP)
			terminal->pgrp = field.value;
		terminal->has_settings |= field.number == FIELD_TERMIOS;
	}
	return true;
}

static void put(struct output *output, const void *bytes, size_t count)
{
	if (count > output->room - output->used)
		return; /* cannot happen: the output has room for everything */
	memcpy(output->bytes + output->used, bytes, count);
	output->used += count;
}

static void put_varint(struct output *output, uint64_t value)
{
	do {
		uint8_t byte = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));

		put(output, &byte, 1);
		value >>= 7;
	} while (value);
}

static void put_number(struct output *output, unsigned int field, uint64_t value)
{
	put_varint(output, (uint64_t)field << 3 | GCR_PROTOBUF_VARINT);
	put_varint(output, value);
}

/*
 * Writes a termios_entry: c_iflag, c_oflag, c_cflag, c_lflag, c_line and two speeds, and the keys.
 */
static void put_termios(struct output *output, unsigned int field, const uint32_t flags[4],
			const uint8_t keys[19])
{
	uint8_t bytes[128];
	struct output inner = {.bytes = bytes, .room = sizeof(bytes)};

	for (unsigned int i = 0; i < 7; i++)
		put_number(&inner, i + 1, i < 4 ? flags[i] : 0);
	for (unsigned int i = 0; i < 19; i++)
		put_number(&inner, 8, keys[i]);
	put_varint(output, (uint64_t)field << 3 | GCR_PROTOBUF_BYTES);
	put_varint(output, inner.used);
	put(output, bytes, inner.used);
}

/*
 * Writes the settings of a new pseudo-terminal: tty_std_termios without HUPCL, and INIT_C_CC
 * (include/asm-generic/termios.h). CRIU expects 19 keys.
 */
static void put_settings(struct output *output)
{
	static const uint32_t flags[4] = {0x500, 0x5, 0xbf, 0x8a3b};
	static const uint32_t no_flags[4];
	static const uint8_t keys[19] = {3,  28, 127, 21, 4,  0,  1, 0, 17, 19,
					 26, 0,	 18,  15, 23, 22, 0, 0, 0};
	static const uint8_t no_keys[19];
	uint8_t bytes[16];
	struct output size = {.bytes = bytes, .room = sizeof(bytes)};

	put_termios(output, FIELD_TERMIOS, flags, keys);
	put_termios(output, FIELD_TERMIOS_LOCKED, no_flags, no_keys);
	for (unsigned int i = 0; i < 4; i++)
		put_number(&size, i + 1, 0);
	put_varint(output, FIELD_WINSIZE << 3 | GCR_PROTOBUF_BYTES);
	put_varint(output, size.used);
	put(output, bytes, size.used);
}

#define SETTINGS_BYTES_MAX 320u /* output of put_settings(), and growth of two numbers */

static bool has_leader(const struct tree *tree, uint64_t sid)
{
	for (size_t i = 0; i < tree->count; i++)
		if ((uint64_t)tree->pids[i] == sid && getsid(tree->pids[i]) == tree->pids[i])
			return true;
	return false;
}

static bool has_group(const struct tree *tree, uint64_t pgrp)
{
	for (size_t i = 0; i < tree->count; i++)
		if ((uint64_t)getpgid(tree->pids[i]) == pgrp)
			return true;
	return false;
}

/*
 * Copies a tty_info_entry with the changes of gcr_criu_leave_session(). False: the message is
 * damaged.
 */
static bool put_terminal(struct output *output, const uint8_t *at, const uint8_t *end,
			 const struct tree *tree)
{
	struct terminal terminal;
	struct gcr_protobuf_field field;

	if (!get_terminal(at, end, &terminal))
		return false;
	if (terminal.type != TYPE_EXTERNAL) {
		put(output, at, (size_t)(end - at));
		return true;
	}
	if (terminal.sid && !has_leader(tree, terminal.sid))
		terminal.sid = terminal.pgrp = 0;
	else if (terminal.sid && !has_group(tree, terminal.pgrp))
		terminal.pgrp = terminal.sid;
	while (at < end && gcr_protobuf_next(&at, end, &field)) {
		if (field.number == FIELD_SID)
			put_number(output, FIELD_SID, terminal.sid);
		else if (field.number == FIELD_PGRP)
			put_number(output, FIELD_PGRP, terminal.pgrp);
		else if (terminal.has_settings ||
			 (field.number != FIELD_TERMIOS_LOCKED && field.number != FIELD_WINSIZE))
			put(output, field.start, field.bytes);
	}
	if (!terminal.has_settings)
		put_settings(output);
	return true;
}

/*
 * As put_terminal(), for a process: the root's old session and group become those that the root
 * leads.
 */
static bool put_process(struct output *output, const uint8_t *at, const uint8_t *end,
			const struct tree *tree)
{
	struct gcr_protobuf_field field;

	while (at < end) {
		if (!gcr_protobuf_next(&at, end, &field))
			return false;
		if ((field.number == FIELD_TREE_SID && field.value == (uint64_t)tree->session) ||
		    (field.number == FIELD_TREE_PGID && field.value == (uint64_t)tree->group))
			put_number(output, field.number, (uint64_t)tree->pids[0]);
		else
			put(output, field.start, field.bytes);
	}
	return true;
}

typedef bool put_message(struct output *output, const uint8_t *at, const uint8_t *end,
			 const struct tree *tree);

/* Copies all messages of an image. False: the image is damaged. */
static bool put_all(struct output *output, const uint8_t *at, const uint8_t *end,
		    const struct tree *tree, put_message *put_one)
{
	while (at < end) {
		size_t length_at = output->used;
		uint32_t length;

		if (end - at < (ptrdiff_t)sizeof(length))
			return false;
		memcpy(&length, at, sizeof(length));
		put(output, at, sizeof(length));
		if (output->used != length_at + sizeof(length))
			return false;
		at += sizeof(length);
		if (length > (size_t)(end - at) || !put_one(output, at, at + length, tree))
			return false;
		at += length;
		length = (uint32_t)(output->used - length_at - sizeof(length));
		memcpy(output->bytes + length_at, &length, sizeof(length));
	}
	return true;
}

static int rewrite(int images_fd, const char *name, uint32_t kind, const struct tree *tree,
		   put_message *put_one, struct gcr_error *error)
{
	_cleanup_free_ void *bytes = NULL;
	_cleanup_free_ uint8_t *written = NULL;
	struct output output = {0};
	const uint8_t *at;
	struct iovec part;
	size_t size;
	int result;

	result = gcr_beneath_read(images_fd, name, GCR_CRIU_IMAGE_BYTES_MAX, &bytes, &size, error);
	if (result < 0)
		return result;
	if (gcr_criu_image_begin(bytes, size, kind, &at) < 0)
		return gcr_error_set(error, EIO, "CRIU's %s is of a kind that is not known", name);
	/* A message takes at least 8 bytes. */
	output.room = size + (size / 8 + 1) * SETTINGS_BYTES_MAX;
	output.bytes = written = malloc(output.room);
	if (!written)
		return gcr_error_set(error, ENOMEM, "out of memory");
	put(&output, bytes, (size_t)(at - (const uint8_t *)bytes));
	if (!put_all(&output, at, (const uint8_t *)bytes + size, tree, put_one))
		return gcr_error_set(error, EIO, "CRIU's %s is damaged", name);
	if (output.used == size && !memcmp(bytes, written, size))
		return 0;
	part = (struct iovec){.iov_base = written, .iov_len = output.used};
	return gcr_beneath_replace(images_fd, name, &part, 1, error);
}

int gcr_criu_leave_session(int images_fd, const pid_t *pids, size_t pids_count,
			   struct gcr_error *error)
{
	const struct tree tree = {
		.pids = pids,
		.count = pids_count,
		.session = getsid(pids[0]),
		.group = getpgid(pids[0]),
	};
	int result = 0;

	if (tree.session < 0 || tree.group < 0)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)pids[0]);
	if (tree.session != pids[0])
		result = rewrite(images_fd, GCR_CRIU_PSTREE_NAME, GCR_CRIU_PSTREE, &tree,
				 put_process, error);
	if (!result && !faccessat(images_fd, "tty-info.img", F_OK, AT_SYMLINK_NOFOLLOW))
		result = rewrite(images_fd, "tty-info.img", TTY_INFO_MAGIC, &tree, put_terminal,
				 error);
	return result;
}
