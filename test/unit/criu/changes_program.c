/* SPDX-License-Identifier: MIT */
/*
 * changes_program UID PROGRAM: a program of a user, and a process of his that shares its memory and
 * is none of its children. CRIU runs system calls in the program, at the begin of its first code.
 * That process has the program execute PROGRAM from there, which is set-user-ID and at a known
 * address (program_of_root.c), and stops it by a signal. CRIU would restore its registers, and the
 * address of the next instruction is one in PROGRAM that only the user knows of. Prints the pids of
 * both.
 */
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program_of_root.h"

#define ALARM_SEC   120
#define PAUSE_USEC  1000
#define STACK_BYTES (64 << 10)
#define PAGE_BYTES  4096
/* CRIU takes the first mapping with code, and the kernel gives none by itself that is so low. */
#define FIRST_CODE  ((unsigned char *)(uintptr_t)0x100000)

static char stacks[2][STACK_BYTES] __attribute__((aligned(16)));
static const char *path;
static volatile pid_t changer;
static pid_t changed;

/* The program runs this in place of CRIU's call. */
static void execute(void)
{
	char *arguments[] = {(char *)(uintptr_t)path, NULL}, *none[] = {NULL};

	syscall(SYS_execve, path, arguments, none);
	syscall(SYS_exit_group, 1);
}

static void *map_code(unsigned char *address)
{
	return mmap(address, PAGE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

#if defined(__x86_64__)
/* movabs $execute, %rax; jmp *%rax */
#define JUMP_BYTES 12
static void make_jump(unsigned char *code)
{
	uint64_t address = (uintptr_t)execute;

	memcpy(code, "\x48\xb8", 2);
	memcpy(code + 2, &address, sizeof(address));
	memcpy(code + 10, "\xff\xe0", 2);
}

/* jmp to itself */
static const unsigned char loop[] = {0xeb, 0xfe};
#elif defined(__aarch64__)
/* ldr x16, 8 bytes ahead; br x16; the address */
#define JUMP_BYTES 16
static void make_jump(unsigned char *code)
{
	uint64_t address = (uintptr_t)execute;

	memcpy(code, "\x50\x00\x00\x58\x00\x02\x1f\xd6", 8);
	memcpy(code + 8, &address, sizeof(address));
}

/* b to itself */
static const unsigned char loop[] = {0x00, 0x00, 0x00, 0x14};
#else
#error "The jumps of this machine are not known"
#endif

static int change(void *unused)
{
	unsigned char jump[JUMP_BYTES], before[sizeof(uint64_t)];
	volatile uint64_t *first = (volatile uint64_t *)FIRST_CODE;
	uint64_t found;

	(void)unused;
	alarm(ALARM_SEC);
	make_jump(jump);
	while (getppid() != 1)
		usleep(PAUSE_USEC);
	memcpy(before, FIRST_CODE, sizeof(before));
	memcpy(&found, before, sizeof(found));
	while (*first == found)
		;
	memcpy(FIRST_CODE, jump, sizeof(jump));
	/* CRIU has all other signals blocked. It would wait for the program, which only stops so.
	 */
	for (;;) {
		usleep(PAUSE_USEC);
		kill(changed, SIGTRAP);
	}
	_exit(0);
}

static int start_changer(void *unused)
{
	(void)unused;
	changer = clone(change, stacks[1] + STACK_BYTES, CLONE_VM | SIGCHLD, NULL);
	_exit(0);
}

int main(int count, char **arguments)
{
	int uid = count == 3 ? atoi(arguments[1]) : 0;
	unsigned char *code = (unsigned char *)(uintptr_t)PROGRAM_OF_ROOT_CODE;
	pid_t child;

	if (!uid || setgid((gid_t)uid) < 0 || setuid((uid_t)uid) < 0)
		return 1;
	setsid();
	path = arguments[2];
	changed = getpid();
	if (map_code(FIRST_CODE) == MAP_FAILED || map_code(code) == MAP_FAILED)
		return 1;
	memcpy(code, loop, sizeof(loop));
	/* Its parent ends, so that it is no process of the tree. */
	child = clone(start_changer, stacks[0] + STACK_BYTES, CLONE_VM | SIGCHLD, NULL);
	waitpid(child, NULL, 0);
	printf("%d\n%d\n", (int)changer, (int)getpid());
	fflush(stdout);
	__asm__ volatile("" ::: "memory");
	((void (*)(void))(uintptr_t)code)();
	return 0;
}
