/* SPDX-License-Identifier: MIT */
/*
 * Our dlsym(3). What it is asked for by RTLD_NEXT depends on who asks, which the real function
 * takes from its return address. So it must be reached by a jump, with the caller's frame and
 * arguments as they were; C cannot promise that.
 */
#include "backend/preload/preload.h"

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

#endif

#if GCR_PRELOAD_DLSYM
	way_in dlsym, gcr_preload_dlsym_target
	way_in GCR_PRELOAD_DLSYM_OWN, gcr_preload_last_target
#endif

	.section .note.GNU-stack, "", %progbits
