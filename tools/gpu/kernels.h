/* SPDX-License-Identifier: MIT */
/*
 * The kernels of gpucr-demo and of the GPU tests, as PTX text for cuModuleLoadData. Written by hand
 * for the oldest PTX version that current drivers accept, so that no CUDA compiler is needed. The
 * simulator recognises these entries by name and computes the same results.
 *
 * All four are grid-stride loops over 32-bit words with 64-bit indices: any grid size works.
 */
#ifndef GCR_TOOLS_GPU_KERNELS_H
#define GCR_TOOLS_GPU_KERNELS_H

/* Word i is filled with seed ^ (uint32_t)i * GCR_DEMO_MULTIPLIER. */
#define GCR_DEMO_MULTIPLIER 2654435761u

/* i = this thread's first index, stride = threads in the grid. */
#define GCR_DEMO_PTX_INDEX              \
	"	mov.u32 %r1, %ctaid.x;\n"     \
	"	mov.u32 %r2, %ntid.x;\n"      \
	"	mov.u32 %r3, %tid.x;\n"       \
	"	mov.u32 %r4, %nctaid.x;\n"    \
	"	cvt.u64.u32 %stride, %r3;\n"  \
	"	mul.wide.u32 %i, %r1, %r2;\n" \
	"	add.u64 %i, %i, %stride;\n"   \
	"	mul.wide.u32 %stride, %r4, %r2;\n"

static const char gcr_demo_ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	"\n"
	/* words[i] = seed ^ (uint32_t)i * GCR_DEMO_MULTIPLIER, for i < words */
	".visible .entry gpucr_fill(\n"
	"	.param .u64 gpucr_fill_pointer,\n"
	"	.param .u64 gpucr_fill_words,\n"
	"	.param .u32 gpucr_fill_seed)\n"
	"{\n"
	"	.reg .pred %end;\n"
	"	.reg .b32 %r<5>, %seed, %word;\n"
	"	.reg .b64 %i, %stride, %base, %words, %address;\n"
	"	ld.param.u64 %base, [gpucr_fill_pointer];\n"
	"	ld.param.u64 %words, [gpucr_fill_words];\n"
	"	ld.param.u32 %seed, [gpucr_fill_seed];\n"
	"	cvta.to.global.u64 %base, %base;\n" GCR_DEMO_PTX_INDEX "LOOP:\n"
	"	setp.ge.u64 %end, %i, %words;\n"
	"	@%end bra END;\n"
	"	cvt.u32.u64 %word, %i;\n"
	"	mul.lo.u32 %word, %word, 2654435761;\n"
	"	xor.b32 %word, %word, %seed;\n"
	"	shl.b64 %address, %i, 2;\n"
	"	add.u64 %address, %address, %base;\n"
	"	st.global.u32 [%address], %word;\n"
	"	add.u64 %i, %i, %stride;\n"
	"	bra LOOP;\n"
	"END:\n"
	"	ret;\n"
	"}\n"
	"\n"
	/* words[first + i] += value, for i < count */
	".visible .entry gpucr_add(\n"
	"	.param .u64 gpucr_add_pointer,\n"
	"	.param .u64 gpucr_add_first,\n"
	"	.param .u64 gpucr_add_count,\n"
	"	.param .u32 gpucr_add_value)\n"
	"{\n"
	"	.reg .pred %end;\n"
	"	.reg .b32 %r<5>, %value, %word;\n"
	"	.reg .b64 %i, %stride, %base, %first, %count, %address;\n"
	"	ld.param.u64 %base, [gpucr_add_pointer];\n"
	"	ld.param.u64 %first, [gpucr_add_first];\n"
	"	ld.param.u64 %count, [gpucr_add_count];\n"
	"	ld.param.u32 %value, [gpucr_add_value];\n"
	"	cvta.to.global.u64 %base, %base;\n"
	"	shl.b64 %first, %first, 2;\n"
	"	add.u64 %base, %base, %first;\n" GCR_DEMO_PTX_INDEX "LOOP:\n"
	"	setp.ge.u64 %end, %i, %count;\n"
	"	@%end bra END;\n"
	"	shl.b64 %address, %i, 2;\n"
	"	add.u64 %address, %address, %base;\n"
	"	ld.global.u32 %word, [%address];\n"
	"	add.u32 %word, %word, %value;\n"
	"	st.global.u32 [%address], %word;\n"
	"	add.u64 %i, %i, %stride;\n"
	"	bra LOOP;\n"
	"END:\n"
	"	ret;\n"
	"}\n"
	"\n"
	/* *result (64 bits) += the sum over i of (words[i] + 1) * (2 * i + 1), modulo 2^64 */
	".visible .entry gpucr_checksum(\n"
	"	.param .u64 gpucr_checksum_pointer,\n"
	"	.param .u64 gpucr_checksum_words,\n"
	"	.param .u64 gpucr_checksum_result)\n"
	"{\n"
	"	.reg .pred %end;\n"
	"	.reg .b32 %r<5>, %word;\n"
	"	.reg .b64 %i, %stride, %base, %words, %address, %result, %sum, %term, %weight;\n"
	"	ld.param.u64 %base, [gpucr_checksum_pointer];\n"
	"	ld.param.u64 %words, [gpucr_checksum_words];\n"
	"	ld.param.u64 %result, [gpucr_checksum_result];\n"
	"	cvta.to.global.u64 %base, %base;\n"
	"	cvta.to.global.u64 %result, %result;\n"
	"	mov.u64 %sum, 0;\n" GCR_DEMO_PTX_INDEX "LOOP:\n"
	"	setp.ge.u64 %end, %i, %words;\n"
	"	@%end bra END;\n"
	"	shl.b64 %address, %i, 2;\n"
	"	add.u64 %address, %address, %base;\n"
	"	ld.global.u32 %word, [%address];\n"
	"	cvt.u64.u32 %term, %word;\n"
	"	add.u64 %term, %term, 1;\n"
	"	shl.b64 %weight, %i, 1;\n"
	"	add.u64 %weight, %weight, 1;\n"
	"	mad.lo.u64 %sum, %term, %weight, %sum;\n"
	"	add.u64 %i, %i, %stride;\n"
	"	bra LOOP;\n"
	"END:\n"
	"	red.global.add.u64 [%result], %sum;\n"
	"	ret;\n"
	"}\n"
	"\n"
	/* Runs until the 32-bit word at flag is not zero. */
	".visible .entry gpucr_spin(\n"
	"	.param .u64 gpucr_spin_flag)\n"
	"{\n"
	"	.reg .pred %wait;\n"
	"	.reg .b32 %word;\n"
	"	.reg .b64 %flag;\n"
	"	ld.param.u64 %flag, [gpucr_spin_flag];\n"
	"	cvta.to.global.u64 %flag, %flag;\n"
	"LOOP:\n"
	"	ld.volatile.global.u32 %word, [%flag];\n"
	"	setp.eq.u32 %wait, %word, 0;\n"
	"	@%wait bra LOOP;\n"
	"	ret;\n"
	"}\n";

#endif
