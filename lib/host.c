/* SPDX-License-Identifier: MIT */
/* A machine as described by uname(2) and /proc/cpuinfo, and the comparison of two machines. */
#include "lib/host.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "lib/cleanup.h"
#include "lib/proc_file.h"

/*
 * Flags of x86 (arch/x86/include/asm/cpufeatures.h of Linux) on which no program's own instructions
 * depend: power and clocks, monitoring and faults, mitigations, virtualization, and features that
 * only a kernel can use. They differ between a physical and a virtual machine, and from kernel to
 * kernel. Arm's flags are all relevant to programs.
 */
static const char kernel_flags[] =
	"acc_power acpi amd_dcm amd_ibpb_ret amd_lbr_pmc_freeze amd_lbr_v2 amd_ppin "
	"amd_ssbd aperfmperf apic arat arch_capabilities arch_lbr arch_perfmon art avic "
	"bhi_ctrl bmec bpext brs bts bus_lock_detect cat_l2 cat_l3 cdp_l2 cdp_l3 cid "
	"cmp_legacy constant_tsc core_capabilities cpb cppc cpuid_fault cqm cqm_llc "
	"cqm_mbm_local cqm_mbm_total cqm_occup_llc cr8_legacy dca de debug_swap "
	"decodeassists ds ds_cpl dtes64 dtherm dts ecmd epb ept ept_ad est extapic "
	"extd_apicid flexpriority flush_l1d flushbyasid fred hfi ht hw_pstate hwp "
	"hwp_act_window hwp_epp hwp_notify hwp_pkg_req hypervisor ibpb ibrs ibrs_enhanced "
	"ibs ibt ida intel_ppin intel_pt invpcid invpcid_single irperf kaiser lass "
	"lbrv mba mca mce md_clear monitor mp mtrr nodeid_msr nonstop_tsc nonstop_tsc_s3 "
	"npt nrip_save nx osvw overflow_recov pae pat pausefilter pbe pcid pconfig pdcm "
	"pebs perfctr_core perfctr_l2 perfctr_llc perfctr_nb perfmon_v2 pfthreshold pge "
	"pln proc_feedback pse pse36 pti pts ptsc rapl rdt_a rep_good retpoline "
	"rrsba_ctrl rtm_always_abort sdbg sev sev_es sev_snp sgx_lc skinit smap smba smca "
	"sme smep smx spec_ctrl split_lock_detect ss ssbd stibp succor svm svm_lock tce "
	"tm tm2 tme topoext tpr_shadow tsc_adjust tsc_deadline_timer tsc_known_freq "
	"tsc_reliable tsc_scale tsx_force_abort umip up v_spec_ctrl v_vmsave_vmload vgif "
	"virt_ssbd vmcb_clean vme vmmcall vmx vnmi vpid wbnoinvd wdt x2apic x2avic "
	"xtopology xtpr";

/*
 * Finds the first line "NAME:" and returns the text after the colon; its length ends before the
 * newline.
 */
static const char *find_line(const char *text, const char *name, size_t *ret_bytes)
{
	size_t length = strlen(name);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		const char *next;

		line += *line == '\n';
		if (strncmp(line, name, length) != 0)
			continue;
		next = line + length + strspn(line + length, " \t");
		if (*next != ':')
			continue;
		*ret_bytes = strcspn(next + 1, "\n");
		return next + 1;
	}
	return NULL;
}

/* Copies the words with single spaces between them. */
static int copy_words(const char *text, size_t bytes, char *to, size_t room)
{
	const char *end = text + bytes;
	size_t used = 0;

	while (text < end) {
		size_t length;

		text += strspn(text, " \t");
		length = strcspn(text, " \t\n");
		if (text >= end || !length)
			break;
		if (used + (used > 0) + length >= room)
			return -EPROTO;
		if (used)
			to[used++] = ' ';
		memcpy(to + used, text, length);
		used += length;
		text += length;
	}
	to[used] = '\0';
	return 0;
}

int gcr_host_read(const char *cpuinfo, struct gcr_host *ret_host, struct gcr_error *error)
{
	const char *path = cpuinfo ? cpuinfo : "/proc/cpuinfo";
	_cleanup_free_ char *text = NULL;
	struct gcr_host host = {.machine = ""};
	const char *flags;
	struct utsname name;
	size_t bytes = 0;
	int result;

	if (uname(&name) < 0)
		return gcr_error_set(error, errno, "uname: %s", strerror(errno));
	snprintf(host.machine, sizeof(host.machine), "%s", name.machine);
	snprintf(host.kernel, sizeof(host.kernel), "%s", name.release);
	result = gcr_file_read(path, &text, NULL);
	if (result < 0)
		return gcr_error_set(error, -result, "%s: %s", path, strerror(-result));
	flags = find_line(text, "flags", &bytes); /* x86 */
	if (!flags)
		flags = find_line(text, "Features", &bytes); /* Arm */
	if (flags && copy_words(flags, bytes, host.cpu_flags, sizeof(host.cpu_flags)) < 0)
		return gcr_error_set(error, EPROTO, "%s: it has more flags than there can be",
				     path);
	*ret_host = host;
	return 0;
}

static bool has_word(const char *words, const char *word, size_t length)
{
	while (*words) {
		size_t next = strcspn(words, " ");

		if (next == length && strncmp(words, word, length) == 0)
			return true;
		words += next;
		words += strspn(words, " ");
	}
	return false;
}

static int check_flags(const struct gcr_host *then, const struct gcr_host *now,
		       struct gcr_error *error)
{
	const char *flag = then->cpu_flags;

	while (*flag) {
		size_t length = strcspn(flag, " ");

		if (!has_word(now->cpu_flags, flag, length) &&
		    !has_word(kernel_flags, flag, length))
			return gcr_error_set(error, EOPNOTSUPP,
					     "the processor has no %.*s here, which that of the "
					     "dump had: the program may use it",
					     (int)(length < 100 ? length : 100), flag);
		flag += length;
		flag += strspn(flag, " ");
	}
	return 0;
}

/* Parses up to four digits; returns the text after them, or NULL. */
static const char *parse_number(const char *text, unsigned int *ret_number)
{
	size_t length = strspn(text, "0123456789");

	if (!length || length > 4)
		return NULL;
	*ret_number = (unsigned int)strtoul(text, NULL, 10);
	return text + length;
}

int gcr_host_kernel_parse(const char *release, unsigned int *ret_major, unsigned int *ret_minor)
{
	unsigned int major, minor;
	const char *next = parse_number(release, &major);

	if (!next || *next != '.' || !parse_number(next + 1, &minor))
		return -EINVAL;
	*ret_major = major;
	*ret_minor = minor;
	return 0;
}

static int check_kernel(const struct gcr_host *then, const struct gcr_host *now,
			struct gcr_error *error)
{
	unsigned int then_major, then_minor, now_major, now_minor;

	if (gcr_host_kernel_parse(then->kernel, &then_major, &then_minor) < 0 ||
	    gcr_host_kernel_parse(now->kernel, &now_major, &now_minor) < 0)
		return gcr_error_set(error, EOPNOTSUPP,
				     "it cannot be told whether Linux %s here is older than %s, "
				     "which it was dumped on",
				     now->kernel, then->kernel);
	if (now_major < then_major || (now_major == then_major && now_minor < then_minor))
		return gcr_error_set(error, EOPNOTSUPP,
				     "Linux is %s here and was %s at the dump: on an older one a "
				     "program may miss what it has found before",
				     now->kernel, then->kernel);
	return 0;
}

int gcr_host_check(const struct gcr_host *then, const struct gcr_host *now, struct gcr_error *error)
{
	int result;

	if (strcmp(then->machine, now->machine) != 0)
		return gcr_error_set(error, EOPNOTSUPP,
				     "this machine is %s, and it was dumped on %s", now->machine,
				     then->machine);
	result = check_flags(then, now, error);
	if (!result)
		result = check_kernel(then, now, error);
	if (!result && now->criu_version < then->criu_version)
		result = gcr_error_set(error, EOPNOTSUPP,
				       "CRIU is %u.%u.%u here, and it was dumped by %u.%u.%u: "
				       "install that or a newer one",
				       now->criu_version / 10000, now->criu_version / 100 % 100,
				       now->criu_version % 100, then->criu_version / 10000,
				       then->criu_version / 100 % 100, then->criu_version % 100);
	return result;
}
