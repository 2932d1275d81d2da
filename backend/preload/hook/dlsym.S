/* SPDX-License-Identifier: MIT */
/*
 * Our dlsym(3), dlopen(3) and dlmopen(3). What is found by RTLD_NEXT, and along whose RUNPATH and
 * $ORIGIN a library is looked for, depends on who asks, which the real functions take from their
 * return address. So they must be reached by a jump, with the caller's frame and arguments as they
 * were, but for the mode of an open; C cannot promise that.
 */
#include "backend/preload/base/preload.h"

#if GCR_PRELOAD_DLSYM && defined(__x86_64__)

#ifdef __CET__
#include <cet.h>
#else
#define _CET_ENDBR
#endif

	.macro way_in name, target
	.text
	.globl \name
	.type \name, @function
	.hidden \target
\name:
	.cfi_startproc
	_CET_ENDBR
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	subq $8, %rsp			/* calls want 16-byte alignment */
	.cfi_adjust_cfa_offset 8
	movq 24(%rsp), %rdx		/* who asks */
	call \target
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	jmpq *%rax
	.cfi_endproc
	.size \name, . - \name
	.endm

	/* The target answers with a function (%rax) and a mode (%rdx) in place of the last argument. */
	.macro open_in name, target, last
	.text
	.globl \name
	.type \name, @function
	.hidden \target
\name:
	.cfi_startproc
	_CET_ENDBR
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	call \target
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	.ifnc \last, %rdx
	movq %rdx, \last
	.endif
	jmpq *%rax
	.cfi_endproc
	.size \name, . - \name
	.endm

#define SECOND %rsi
#define THIRD  %rdx

#elif GCR_PRELOAD_DLSYM && defined(__aarch64__)

	.macro way_in name, target
	.text
	.globl \name
	.type \name, %function
	.hidden \target
\name:
	.cfi_startproc
	hint #34			/* bti c */
	stp x29, x30, [sp, #-32]!
	.cfi_adjust_cfa_offset 32
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	mov x29, sp
	stp x0, x1, [sp, #16]
	mov x2, x30			/* who asks */
	bl \target
	mov x16, x0			/* a register that BTI lets a tail call use */
	ldp x0, x1, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_adjust_cfa_offset -32
	.cfi_restore x29
	.cfi_restore x30
	br x16
	.cfi_endproc
	.size \name, . - \name
	.endm

	/* The target answers with a function (x0) and a mode (x1) in place of the last argument. */
	.macro open_in name, target, last
	.text
	.globl \name
	.type \name, %function
	.hidden \target
\name:
	.cfi_startproc
	hint #34			/* bti c */
	stp x29, x30, [sp, #-32]!
	.cfi_adjust_cfa_offset 32
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	mov x29, sp
	stp x0, x1, [sp, #16]
	bl \target
	mov x16, x0
	mov x17, x1
	ldp x0, x1, [sp, #16]
	mov \last, x17
	ldp x29, x30, [sp], #32
	.cfi_adjust_cfa_offset -32
	.cfi_restore x29
	.cfi_restore x30
	br x16
	.cfi_endproc
	.size \name, . - \name
	.endm

#define SECOND x1
#define THIRD  x2

#endif

#if GCR_PRELOAD_DLSYM
	way_in dlsym, gcr_preload_dlsym_target
	way_in GCR_PRELOAD_DLSYM_OWN, gcr_preload_last_target
	open_in dlopen, gcr_preload_dlopen_target, SECOND
	open_in dlmopen, gcr_preload_dlmopen_target, THIRD
#endif

	.section .note.GNU-stack, "", %progbits
