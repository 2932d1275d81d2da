/* SPDX-License-Identifier: MIT */
/*
 * Wrappers for functions of the driver of which nothing is known but that they are there: all
 * registers that can carry arguments are handed on, and so many words of the stack. They are shown to
 * gcr_unknown_enter() first, which puts the driver's handles in place of the program's.
 */
#include "backend/preload/base/preload.h"

#if GCR_PRELOAD_UNKNOWN

#define STACK_WORDS GCR_UNKNOWN_STACK_WORDS

	.text
	.hidden gcr_unknown_enter
	.hidden gcr_unknown_leave
	.globl gcr_unknown_wrappers
	.hidden gcr_unknown_wrappers
	.type gcr_unknown_wrappers, @function
	.balign GCR_UNKNOWN_BYTES
gcr_unknown_wrappers:

#endif

#if GCR_PRELOAD_UNKNOWN && defined(__x86_64__)

#ifdef __CET__
#include <cet.h>
#else
#define _CET_ENDBR
#endif

	.cfi_startproc
	.set number, 0
	.rept GCR_UNKNOWN_MAX
	.balign GCR_UNKNOWN_BYTES
	_CET_ENDBR
	movl $number, %r11d
	jmp gcr_unknown_call
	.set number, number + 1
	.endr
	.cfi_endproc
	.size gcr_unknown_wrappers, . - gcr_unknown_wrappers

	.type gcr_unknown_call, @function
gcr_unknown_call:
	.cfi_startproc
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	/* -8: pass; below, six registers and %al, then eight vector registers */
	subq $208, %rsp
	movq %rdi, -24(%rbp)
	movq %rsi, -32(%rbp)
	movq %rdx, -40(%rbp)
	movq %rcx, -48(%rbp)
	movq %r8, -56(%rbp)
	movq %r9, -64(%rbp)
	movq %rax, -72(%rbp)
	movups %xmm0, -96(%rbp)
	movups %xmm1, -112(%rbp)
	movups %xmm2, -128(%rbp)
	movups %xmm3, -144(%rbp)
	movups %xmm4, -160(%rbp)
	movups %xmm5, -176(%rbp)
	movups %xmm6, -192(%rbp)
	movups %xmm7, -208(%rbp)
	subq $(8 * STACK_WORDS), %rsp
	leaq 16(%rbp), %rsi
	movq %rsp, %rdi
	movl $STACK_WORDS, %ecx
	rep movsq
	movl %r11d, %edi
	leaq -8(%rbp), %rsi
	leaq -64(%rbp), %rdx
	movq %rsp, %rcx
	call gcr_unknown_enter
	movq %rax, %r11
	movq -24(%rbp), %rdi
	movq -32(%rbp), %rsi
	movq -40(%rbp), %rdx
	movq -48(%rbp), %rcx
	movq -56(%rbp), %r8
	movq -64(%rbp), %r9
	movq -72(%rbp), %rax
	movups -96(%rbp), %xmm0
	movups -112(%rbp), %xmm1
	movups -128(%rbp), %xmm2
	movups -144(%rbp), %xmm3
	movups -160(%rbp), %xmm4
	movups -176(%rbp), %xmm5
	movups -192(%rbp), %xmm6
	movups -208(%rbp), %xmm7
	call *%r11
	movq %rax, -24(%rbp)
	movq %rdx, -32(%rbp)
	movups %xmm0, -96(%rbp)
	movq -8(%rbp), %rdi
	call gcr_unknown_leave
	movq -24(%rbp), %rax
	movq -32(%rbp), %rdx
	movups -96(%rbp), %xmm0
	leave
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size gcr_unknown_call, . - gcr_unknown_call

#elif GCR_PRELOAD_UNKNOWN && defined(__aarch64__)

	.cfi_startproc
	.set number, 0
	.rept GCR_UNKNOWN_MAX
	.balign GCR_UNKNOWN_BYTES
	hint #34			/* bti c */
	mov w17, #number
	b gcr_unknown_call
	.set number, number + 1
	.endr
	.cfi_endproc
	.size gcr_unknown_wrappers, . - gcr_unknown_wrappers

	.type gcr_unknown_call, %function
gcr_unknown_call:
	.cfi_startproc
	stp x29, x30, [sp, #-240]!
	.cfi_def_cfa_offset 240
	.cfi_offset x29, -240
	.cfi_offset x30, -232
	mov x29, sp
	.cfi_def_cfa_register x29
	/* 16: pass; then nine registers, then eight vector registers */
	stp x0, x1, [x29, #24]
	stp x2, x3, [x29, #40]
	stp x4, x5, [x29, #56]
	stp x6, x7, [x29, #72]
	str x8, [x29, #88]
	stp q0, q1, [x29, #96]
	stp q2, q3, [x29, #128]
	stp q4, q5, [x29, #160]
	stp q6, q7, [x29, #192]
	sub sp, sp, #(8 * STACK_WORDS)
	add x9, x29, #240
	mov x10, sp
	mov w11, #(STACK_WORDS / 2)
1:	ldp x12, x13, [x9], #16
	stp x12, x13, [x10], #16
	subs w11, w11, #1
	b.ne 1b
	mov w0, w17
	add x1, x29, #16
	add x2, x29, #24
	mov x3, sp
	bl gcr_unknown_enter
	mov x16, x0
	ldp x0, x1, [x29, #24]
	ldp x2, x3, [x29, #40]
	ldp x4, x5, [x29, #56]
	ldp x6, x7, [x29, #72]
	ldr x8, [x29, #88]
	ldp q0, q1, [x29, #96]
	ldp q2, q3, [x29, #128]
	ldp q4, q5, [x29, #160]
	ldp q6, q7, [x29, #192]
	blr x16
	stp x0, x1, [x29, #24]
	str q0, [x29, #96]
	ldr x0, [x29, #16]
	bl gcr_unknown_leave
	ldp x0, x1, [x29, #24]
	ldr q0, [x29, #96]
	mov sp, x29
	.cfi_def_cfa_register sp
	ldp x29, x30, [sp], #240
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
	ret
	.cfi_endproc
	.size gcr_unknown_call, . - gcr_unknown_call

#endif

	.section .note.GNU-stack, "", %progbits
