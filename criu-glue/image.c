/* SPDX-License-Identifier: MIT */
/* The frame of CRIU's images, which is the same for all messages. */
#include "criu-glue/image.h"

#include <errno.h>
#include <string.h>

#include "lib/beneath.h"

#define IMAGE_BYTES_MAX (64u << 20)
#define COMMON_MAGIC	0x54564319u /* criu/include/magic.h */

int gcr_image_begin(const uint8_t *image, size_t bytes, uint32_t kind, const uint8_t **ret_at)
{
	const uint32_t magic[2] = {COMMON_MAGIC, kind};

	if (bytes < sizeof(magic) || memcmp(image, magic, sizeof(magic)) != 0)
		return -EIO;
	*ret_at = image + sizeof(magic);
	return 0;
}

int gcr_image_next(const uint8_t **at, const uint8_t *end, const uint8_t **ret_message)
{
	uint32_t length;

	if ((size_t)(end - *at) < sizeof(length))
		return -EIO;
	memcpy(&length, *at, sizeof(length));
	*ret_message = *at + sizeof(length);
	if (length > (size_t)(end - *ret_message))
		return -EIO;
	*at = *ret_message + length;
	return 0;
}

int gcr_image_fail(struct gcr_error *error, int result, const char *name)
{
	if (result == -ENOMEM)
		return gcr_error_set(error, ENOMEM, "out of memory");
	return gcr_error_set(error, EIO, "CRIU's %s is damaged, or of a kind that is not known",
			     name);
}

int gcr_image_read(int images_fd, const char *name, void **ret_bytes, size_t *ret_size,
		   struct gcr_error *error)
{
	int result = gcr_beneath_read(images_fd, name, IMAGE_BYTES_MAX, ret_bytes, ret_size, error);

	if (result >= 0 || result == -ENOMEM)
		return result;
	/* The caller gets -EIO for a missing image as for a damaged one. */
	gcr_error_prefix(error, "CRIU's %s", name);
	error->number = EIO;
	return -EIO;
}
