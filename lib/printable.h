/* SPDX-License-Identifier: MIT */
/*
 * Words from elsewhere (names of files and programs, messages of drivers) that are about to be
 * shown: in a file of the mount, a log, or on a terminal.
 */
#ifndef GCR_LIB_PRINTABLE_H
#define GCR_LIB_PRINTABLE_H

/*
 * Make @words one line that changes nothing on a terminal. Text in UTF-8 stays as it is. Each byte
 * becomes '?' that is a control character (C0 and C1, DEL), ends a line (U+2028, U+2029), turns the
 * direction of writing (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069), or is not
 * UTF-8 (RFC 3629). The length stays.
 */
void gcr_make_printable(char *words);

#endif
