/* SPDX-License-Identifier: MIT */
/*
 * For LD_PRELOAD into gpucr-demo: asks the kernel to look into memory of the program whenever it
 * has interrupted it (rseq(2)). Those who write the address CRITICAL to its offset 8 have the
 * program continue at code that makes the file GPUCR_TEST_MADE, wherever the program was. It needs
 * GLIBC_TUNABLES=glibc.pthread.rseq=0. GPUCR_TEST_MOMENT is one of
 *  - `shared`: that memory is the file GPUCR_TEST_SHARED, which others can write to.
 *  - `thread`: it is that of another thread, which has many filters of system calls.
 *  - `vdso`: the program has also changed its vdso, so that getcpu(2) is at the address WRITTEN.
 *  - `filter`: its filter of system calls says that those that give up rights have succeeded, and
 *    makes none of them.
 *  - `filtered`: the program, which is CRIU, has a filter that lets everything pass.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/rseq.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIGNATURE 0x53053053u
#define PAGE	  4096
/* Below everything else that is mapped: the section is all that is above. */
#define CODE	  0x10000ul
#define CRITICAL  (CODE + 3 * PAGE)
#define END	  0x7fffffffe000ul
#define WRITTEN	  (CODE + 2 * PAGE)

/* Opens the path at CODE + PAGE, and ends. */
__asm__(".pushsection .rodata\n"
	"code_begin: .long 0x53053053\n"
	"mov $2, %eax\n"
	"mov $0x11000, %edi\n"
	"mov $0x41, %esi\n"
	"mov $0600, %edx\n"
	"syscall\n"
	"mov $231, %eax\n"
	"xor %edi, %edi\n"
	"syscall\n"
	"code_end:\n"
	".popsection\n");
extern const char code_begin[] __attribute__((visibility("hidden")));
extern const char code_end[] __attribute__((visibility("hidden")));

static void *map(unsigned long address, size_t bytes, int flags, int fd)
{
	void *memory = mmap((void *)address, bytes, PROT_READ | PROT_WRITE | PROT_EXEC,
			    flags | (address ? MAP_FIXED : 0), fd, 0);

	if (memory == MAP_FAILED)
		abort();
	return memory;
}

static void change_vdso(void)
{
	unsigned long base = getauxval(AT_SYSINFO_EHDR);
	const Elf64_Ehdr *head = (const Elf64_Ehdr *)base;
	const Elf64_Phdr *part = (const Elf64_Phdr *)(base + head->e_phoff);
	const Elf64_Dyn *dynamic;
	unsigned long symbols = 0, names = 0;

	while (part->p_type != PT_DYNAMIC)
		part++;
	for (dynamic = (const Elf64_Dyn *)(base + part->p_offset); dynamic->d_tag; dynamic++) {
		if (dynamic->d_tag == DT_SYMTAB)
			symbols = base + dynamic->d_un.d_ptr;
		if (dynamic->d_tag == DT_STRTAB)
			names = base + dynamic->d_un.d_ptr;
	}
	if (mprotect((void *)base, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) < 0)
		abort();
	for (Elf64_Sym *symbol = (Elf64_Sym *)symbols; (unsigned long)symbol < names; symbol++)
		if (!strcmp((const char *)names + symbol->st_name, "__vdso_getcpu"))
			symbol->st_value = WRITTEN - base;
	if (mprotect((void *)base, 2 * PAGE, PROT_READ | PROT_EXEC) < 0)
		abort();
}

static void *stay(void *unused)
{
	static struct sock_filter code[BPF_MAXINSNS];
	struct sock_fprog program = {BPF_MAXINSNS, code};

	for (size_t i = 0; i < BPF_MAXINSNS; i++)
		code[i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
	code[BPF_MAXINSNS - 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (syscall(SYS_rseq, CODE + 2 * PAGE, 32, 0, SIGNATURE) < 0 ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		abort();
	for (int i = 0; i < 7; i++)
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
			abort();
	for (;;)
		pause();
	return unused;
}

/* Has these system calls answered with success. */
static void set_filter(const int *calls, size_t count)
{
	struct sock_filter code[16] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	struct sock_fprog program = {.filter = code};
	unsigned short used = 1;

	for (size_t i = 0; i < count; i++) {
		code[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							    (unsigned int)calls[i], 0, 1);
		code[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO);
	}
	code[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	program.len = used;
	if ((geteuid() && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		abort();
}

__attribute__((constructor)) static void begin(void)
{
	const char *what = getenv("GPUCR_TEST_MOMENT"), *path = getenv("GPUCR_TEST_SHARED");
	const char *made = getenv("GPUCR_TEST_MADE");
	struct rseq_cs *section;
	char *memory;
	int fd = -1;

	if (what && !strcmp(what, "filtered"))
		set_filter(NULL, 0);
	if (!what || strcmp(program_invocation_short_name, "gpucr-demo") != 0)
		return;
	memory = map(CODE, 4 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memcpy(memory, code_begin, (size_t)(code_end - code_begin));
	if (made)
		strcpy(memory + PAGE, made);
	if (!strcmp(what, "filter")) {
		set_filter((const int[]){SYS_setgroups, SYS_setresuid, SYS_setresgid, SYS_capset},
			   4);
		return;
	}
	if (!strcmp(what, "vdso"))
		change_vdso();
	if (!strcmp(what, "thread")) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, stay, NULL))
			abort();
	}
	section = (struct rseq_cs *)(memory + 3 * PAGE);
	section->start_ip = CODE + PAGE;
	section->post_commit_offset = END - section->start_ip;
	section->abort_ip = CODE + sizeof(uint32_t);
	if (!strcmp(what, "shared"))
		fd = open(path, O_RDWR | O_CLOEXEC);
	memory = map(0, PAGE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd);
	if (strcmp(what, "thread") != 0 && syscall(SYS_rseq, memory, 32, 0, SIGNATURE) < 0)
		abort();
	if (fd >= 0)
		close(fd);
}
