/* SPDX-License-Identifier: MIT */
/*
 * program_of_root: a program that is set-user-ID, and at addresses that are known. It waits, and
 * never by itself runs the code at PROGRAM_OF_ROOT_CODE, which makes the directory "taken" in the
 * present directory, and ends.
 */
#include <unistd.h>

#include "program_of_root.h"

/* mkdirat(AT_FDCWD, "taken", 0755); exit_group(0). There is no stack. */
#if defined(__x86_64__)
__asm__(".section .taken, \"ax\"\n"
	"mov $258, %eax\n"
	"mov $-100, %rdi\n"
	"lea name(%rip), %rsi\n"
	"mov $0755, %edx\n"
	"syscall\n"
	"mov $231, %eax\n"
	"xor %edi, %edi\n"
	"syscall\n"
	"name: .asciz \"taken\"\n"
	".previous\n");
#elif defined(__aarch64__)
__asm__(".section .taken, \"ax\"\n"
	"mov x8, #34\n"
	"mov x0, #-100\n"
	"adr x1, name\n"
	"mov x2, #0755\n"
	"svc #0\n"
	"mov x8, #94\n"
	"mov x0, #0\n"
	"svc #0\n"
	"name: .asciz \"taken\"\n"
	".previous\n");
#else
#error "The code of this machine is not known"
#endif

int main(void)
{
	for (;;)
		pause();
}
