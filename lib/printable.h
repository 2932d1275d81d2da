/* SPDX-License-Identifier: MIT */
/*
 * Making untrusted text (names of files and programs, messages of drivers) safe to show in a file
 * of the mount, a log, or on a terminal.
 */
#ifndef GCR_LIB_PRINTABLE_H
#define GCR_LIB_PRINTABLE_H

#include <stddef.h>

/*
 * Makes @words one line that cannot control a terminal. Valid UTF-8 stays as it is, but '?'
 * replaces each byte of a control character (C0 and C1, DEL), of a line end (U+2028, U+2029), of a
 * character that changes the direction of writing (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066
 * to U+2069), and of invalid UTF-8 (RFC 3629). The length does not change.
 */
void gcr_make_printable(char *words);

/*
 * The same for a text of @bytes bytes, which a NUL follows: its line ends (LF) and tabs stay, and a
 * NUL in it becomes '?'.
 */
void gcr_make_lines_printable(char *text, size_t bytes);

#endif
