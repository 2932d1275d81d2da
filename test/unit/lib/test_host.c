/* SPDX-License-Identifier: MIT */
/* lib/host.c: the facts read of a machine, and the differences that forbid a restore. */
#include "lib/host.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"

static char directory[] = "/tmp/gcr-host-XXXXXX";
static char cpuinfo[sizeof(directory) + 16];

static void write_cpuinfo(const char *text)
{
	FILE *stream = fopen(cpuinfo, "we");

	CHECK(stream && fputs(text, stream) >= 0 && !fclose(stream));
}

static void test_read(void)
{
	static const struct {
		const char *text, *flags;
	} texts[] = {
		{"processor\t: 0\nvmx flags\t: vnmi\nflags\t\t: fpu  vme sse4_2 \nflags\t\t: x\n",
		 "fpu vme sse4_2"},
		{"flags\t\t: fpu", "fpu"},
		{"flagship\t: no\nflags: a\tb\n", "a b"},
		{"processor : 0\nFeatures\t: fp asimd evtstrm\nCPU implementer : 0x41\n",
		 "fp asimd evtstrm"},
		{"flags\t:\nFeatures: x\n", ""},
		{"processor\t: 0\n", ""},
		{"", ""},
	};
	_cleanup_free_ char *many = NULL;
	struct gcr_error error;
	struct gcr_host host;
	struct utsname name;

	CHECK(!uname(&name));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(texts); i++) {
		write_cpuinfo(texts[i].text);
		memset(&host, 0xff, sizeof(host));
		CHECK(!gcr_host_read(cpuinfo, &host, &error));
		CHECK(!strcmp(host.cpu_flags, texts[i].flags));
		CHECK(!strcmp(host.machine, name.machine) && !strcmp(host.kernel, name.release));
		CHECK(!host.criu_version);
	}

	/* As many flags as there is room for, and one byte more. */
	many = malloc(GCR_HOST_CPU_FLAGS_BYTES + 16);
	CHECK(many);
	memset(many, 'a', GCR_HOST_CPU_FLAGS_BYTES + 16);
	memcpy(many, "flags:", 6);
	many[GCR_HOST_CPU_FLAGS_BYTES + 5] = '\0';
	write_cpuinfo(many);
	CHECK(!gcr_host_read(cpuinfo, &host, &error));
	CHECK(strlen(host.cpu_flags) == GCR_HOST_CPU_FLAGS_BYTES - 1);
	many[GCR_HOST_CPU_FLAGS_BYTES + 5] = 'a';
	many[GCR_HOST_CPU_FLAGS_BYTES + 6] = '\0';
	write_cpuinfo(many);
	CHECK(gcr_host_read(cpuinfo, &host, &error) == -EPROTO && strstr(error.words, cpuinfo));
	CHECK(!unlink(cpuinfo));
	CHECK(gcr_host_read(cpuinfo, &host, &error) == -ENOENT && strstr(error.words, cpuinfo));

	/* This machine matches itself. */
	CHECK(!gcr_host_read(NULL, &host, &error));
	host.criu_version = 40101;
	CHECK(!gcr_host_check(&host, &host, &error));
}

static struct gcr_host make_host(const char *kernel, const char *flags, unsigned int criu_version)
{
	struct gcr_host host = {.machine = "x86_64", .criu_version = criu_version};

	strcpy(host.kernel, kernel);
	strcpy(host.cpu_flags, flags);
	return host;
}

static void check(const struct gcr_host *then, const struct gcr_host *now, const char *words)
{
	struct gcr_error error = {0};
	int result = gcr_host_check(then, now, &error);

	if (result != (words ? -EOPNOTSUPP : 0) || (words && !strstr(error.words, words))) {
		fprintf(stderr, "%d, %s; expected %s\n", result, error.words, words);
		CHECK(!"the difference");
	}
	CHECK(gcr_host_check(then, now, NULL) == result);
}

static void test_machine_and_criu(void)
{
	struct gcr_host then = make_host("6.1.0", "fpu", 40101);
	struct gcr_host now = then;

	check(&then, &now, NULL);
	strcpy(now.machine, "aarch64");
	*now.cpu_flags = '\0';
	check(&then, &now, "this machine is aarch64, and it was dumped on x86_64");
	now = make_host("6.1.0", "fpu", 40102);
	check(&then, &now, NULL);
	now.criu_version = 50000;
	check(&then, &now, NULL);
	now.criu_version = 40100;
	check(&then, &now, "CRIU is 4.1.0 here, and it was dumped by 4.1.1");
	now.criu_version = 0;
	check(&then, &now, "CRIU is 0.0.0 here");
}

static void test_flags(void)
{
	static const struct {
		const char *then, *now, *words;
	} flags[] = {
		{"", "", NULL},
		{"", "fpu", NULL},
		{"fpu sse avx2", "avx2 more fpu sse", NULL},
		{"fpu avx512f amx_tile", "fpu", "the processor has no avx512f here"},
		{"fpu", "", "has no fpu here"},
		{"avx", "avx2 xavx", "has no avx here"},
		{"avx2", "avx", "has no avx2 here"},
		/* flags that only a kernel uses */
		{"fpu hypervisor vmx pti ept_ad x2apic xtpr acc_power", "fpu", NULL},
		{"fpu hypervisor2", "fpu", "has no hypervisor2 here"},
		{"fpu hyper", "fpu", "has no hyper here"},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(flags); i++) {
		struct gcr_host then = make_host("6.1.0", flags[i].then, 40101);
		struct gcr_host now = make_host("6.1.0", flags[i].now, 40101);

		check(&then, &now, flags[i].words);
	}
}

static void test_kernel(void)
{
	static const struct {
		const char *then, *now, *words;
	} kernels[] = {
		{"6.1.0-18-amd64", "6.1.0-18-amd64", NULL},
		{"6.1.99", "6.1.0", NULL},
		{"6.1.0", "6.12.43+deb13-amd64", NULL},
		{"6.12.0", "7.0.0", NULL},
		{"6.9.0", "6.12.0", NULL},
		{"6.12.0", "6.9.99", "Linux is 6.9.99 here and was 6.12.0 at the dump"},
		{"6.1.0", "5.15.0", "Linux is 5.15.0 here"},
		{"6.1.0", "six", "cannot be told"},
		{"6", "6.1.0", "cannot be told"},
	};
	unsigned int major = 0, minor = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(kernels); i++) {
		struct gcr_host then = make_host(kernels[i].then, "", 40101);
		struct gcr_host now = make_host(kernels[i].now, "", 40101);

		check(&then, &now, kernels[i].words);
	}
	CHECK(!gcr_host_kernel_parse("6.12", &major, &minor) && major == 6 && minor == 12);
	CHECK(!gcr_host_kernel_parse("5.10-rc1", &major, &minor) && major == 5 && minor == 10);
	CHECK(gcr_host_kernel_parse("", &major, &minor) == -EINVAL);
	CHECK(gcr_host_kernel_parse("6.", &major, &minor) == -EINVAL);
	CHECK(gcr_host_kernel_parse("-6.1", &major, &minor) == -EINVAL);
	CHECK(gcr_host_kernel_parse("99999.1", &major, &minor) == -EINVAL);
	CHECK(gcr_host_kernel_parse("6.x", &major, &minor) == -EINVAL);
	CHECK(gcr_host_kernel_parse("6.-1", &major, &minor) == -EINVAL);
}

int main(void)
{
	CHECK(mkdtemp(directory));
	snprintf(cpuinfo, sizeof(cpuinfo), "%s/cpuinfo", directory);
	test_read();
	test_machine_and_criu();
	test_flags();
	test_kernel();
	CHECK(!rmdir(directory));
	return 0;
}
