/* SPDX-License-Identifier: MIT */
/*
 * The kernel's functions in a process (its vdso), in CRIU's images. If they are not those of the
 * kernel at a restore, CRIU's restorer writes a jump at the place of each of them, as root and
 * before the process has its own rights (CRIU 3.17 to 4.2: criu/pie/parasite-vdso.c). It gets the
 * places from the symbols there, and compares them with nothing. A program can change them.
 */
#ifndef GCR_CRIU_GLUE_VDSO_H
#define GCR_CRIU_GLUE_VDSO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/error.h"

/*
 * Is this a vdso of which all symbols, and everything else that CRIU may read, are inside the
 * @bytes?
 */
bool gcr_vdso_is_sound(const uint8_t *vdso, size_t bytes);

/*
 * Checks each vdso of the images. Errors, with a message: -EPERM: CRIU would write somewhere else;
 * -EIO, -ENOMEM.
 */
int gcr_criu_check_vdso(int images_fd, struct gcr_error *error);

#endif
