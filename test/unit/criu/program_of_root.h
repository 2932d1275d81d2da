/* SPDX-License-Identifier: MIT */
/* Where program_of_root has code that it never runs by itself. */
#ifndef GCR_TEST_PROGRAM_OF_ROOT_H
#define GCR_TEST_PROGRAM_OF_ROOT_H

/* As test/unit/criu/meson.build tells the linker. */
#define PROGRAM_OF_ROOT_CODE 0x70000000

#endif
