/* SPDX-License-Identifier: MIT */
/*
 * The names of the driver's functions that are not in the table of entry points. Number N passes
 * the gate as GCR_ENTRIES + N.
 */
#ifndef GCR_PRELOAD_UNKNOWN_NAMES_H
#define GCR_PRELOAD_UNKNOWN_NAMES_H

/* The name under which function @number was first looked up; NULL: none has this number. */
const char *gcr_unknown_name(unsigned int number);

/* Keeps a copy of @name, cut to GCR_UNKNOWN_NAME_BYTES, if the function has none yet. */
void gcr_unknown_set_name(unsigned int number, const char *name);

#endif
