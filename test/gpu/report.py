# SPDX-License-Identifier: MIT
"""A report on a run of test/gpu/run --hip, to be sent to those who write gpucrfs: one text file
with the machine, what is installed on it, and what came of the run. Started by that script, before
anything else (--begin, the versions) and at the end (--end, the results).

Only what the kernel and the programs of ROCm tell of the GPU and its driver is asked for. Names of
the machine and of its user, and ids of GPUs, are left out.
"""
import argparse
import ctypes
import fcntl
import getpass
import glob
import os
import re
import socket
import struct
import subprocess
import sys
import time

COMMAND_SEC = 30
LINES_MAX = 300
LOG_BYTES = 64 * 1024
AMDKFD_IOC_GET_VERSION = 0x80084b01  # of linux/kfd_ioctl.h: two 32-bit numbers are read
SETTINGS = re.compile(r"^(HIP|ROCR|ROCM|HSA|GPU|AMD|PYTORCH|GPUCR|LD_(PRELOAD|LIBRARY_PATH))(_|=|$)")
TREE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..")


def read(path, size=LOG_BYTES):
    """The end of a file; what is wrong if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            length = file.tell()
            file.seek(max(0, length - size))
            return file.read(size).decode(errors="replace").strip()
    except (OSError, ValueError):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(size).strip()
        except OSError as error:
            return f"({error.strerror})"


def run(*command, lines=LINES_MAX, pattern=None):
    """What a command prints, if there is such a command."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=COMMAND_SEC, check=False)
    except FileNotFoundError:
        return "(not installed)"
    except PermissionError:
        return "(not permitted)"
    except subprocess.TimeoutExpired:
        return f"(no end after {COMMAND_SEC} s)"
    text = done.stdout.decode(errors="replace").strip().splitlines()
    if pattern:
        text = [line for line in text if re.search(pattern, line)]
    if len(text) > lines:
        text = text[:lines] + [f"({len(text) - lines} lines more)"]
    if done.returncode and not pattern:
        text.append(f"(status {done.returncode})")
    return "\n".join(text) or "(nothing)"


def rocm(name):
    """A program of ROCm, which may not be in PATH."""
    found = sorted(glob.glob(f"/opt/rocm*/bin/{name}"))
    return found[-1] if found else name


def files(*patterns, size=400):
    lines = []
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)):
            lines.append(f"{path}: " + " ".join(read(path, size).split()))
    return "\n".join(lines) or "(none)"


def nodes(sysfs):
    """Of KFD's topology, the nodes that are GPUs: all but what tells which one of its kind it is."""
    texts = []
    for node in sorted(glob.glob(f"{sysfs}/class/kfd/kfd/topology/nodes/*")):
        properties = read(f"{node}/properties", 8192)
        if not re.search(r"^simd_count [1-9]", properties, re.M):
            continue
        properties = re.sub(r"^unique_id [1-9]\d*$", "unique_id (there is one)", properties,
                            flags=re.M)
        texts.append(f"{node}: name {read(node + '/name')}\n{properties}\n"
                     + files(f"{node}/mem_banks/*/properties"))
    return "\n".join(texts) or "(none)"


def interfaces():
    """What HIP's virtual memory wants: KFD 1.15, and a libdrm with this function."""
    lines = []
    try:
        with open("/dev/kfd", "rb", buffering=0) as device:
            answer = fcntl.ioctl(device, AMDKFD_IOC_GET_VERSION, bytes(8))
        lines.append("KFD interface {}.{}".format(*struct.unpack("II", answer)))
    except OSError as error:
        lines.append(f"KFD interface: ({error.strerror})")
    for name in ["libdrm_amdgpu.so.1", *glob.glob("/opt/amdgpu/lib/*/libdrm_amdgpu.so.1")]:
        try:
            has = hasattr(ctypes.CDLL(name), "amdgpu_device_get_fd")
            lines.append(f"{name}: amdgpu_device_get_fd {'is' if has else 'is not'} there")
        except OSError as error:
            lines.append(f"{name}: ({error})")
    return "\n".join(lines)


def settings():
    return "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items())
                     if SETTINGS.match(name)) or "(none)"


def processor():
    text = read("/proc/cpuinfo", 1 << 22)
    model = re.search(r"^model name\s*: (.*)$", text, re.M)
    memory = re.search(r"^MemTotal:\s*(.*)$", read("/proc/meminfo"), re.M)
    return (f"{model.group(1) if model else 'a processor'}, {os.cpu_count()} threads, "
            f"{memory.group(1) if memory else '?'} of memory")


def torch():
    command = ("import torch; print(torch.__version__, torch.version.hip, torch.version.cuda, "
               "torch.cuda.is_available(), torch.cuda.device_count())")
    return run(sys.executable, "-c", command, lines=5)


def packages():
    pattern = r"(?i)rocm|hip|hsa|amdgpu|comgr|criu|rccl|libdrm"
    text = run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", pattern=pattern)
    return text if not text.startswith("(") else run("rpm", "-qa", pattern=pattern)


def programs(text):
    """What they said that is not what they say as long as all is well."""
    lines = []
    for line in text.splitlines():
        if line.startswith("==== "):
            lines.append("-- " + line[5:])
        elif not re.fullmatch(r"(tick|step) \d+ ok|pid \d+", line):
            lines.append(line)
    return "\n".join(lines)[-LOG_BYTES:]


def kernel_messages():
    return "\n".join(run("dmesg", pattern=r"(?i)amdgpu|kfd", lines=100000).splitlines()[-80:])


def begin(options):
    sysfs = "/sys"
    if options.sim:
        sysfs = "/sys (of this machine, not the simulated one's)"
    yield "machine", lambda: "\n".join([
        run("uname", "-srvm"), read("/etc/os-release").split("\n", 1)[0], processor(),
        f"root: {'yes' if not os.getuid() else 'no'}; init: {read('/proc/1/comm')}",
        files("/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/vm/unprivileged_userfaultfd",
              "/sys/fs/cgroup/memory.max", "/sys/module/amdgpu/version",
              "/sys/module/amdgpu/srcversion", "/sys/module/amdgpu/parameters/noretry"),
        "kernel parameters: " + " ".join(word for word in read("/proc/cmdline").split()
                                         if re.search(r"amd|iommu|hmm", word))])
    yield "devices", lambda: run("ls", "-ln", "/dev/kfd", "/dev/dri", "/dev/fuse",
                                 "/dev/userfaultfd")
    yield f"GPUs in {sysfs}", lambda: nodes("/sys")
    yield "memory of the GPUs", lambda: files("/sys/class/drm/renderD*/device/mem_info_vram_*",
                                              "/sys/class/drm/renderD*/device/current_*partition")
    yield "interfaces", interfaces
    yield "ROCm", lambda: files("/opt/rocm*/.info/version*")
    yield "its libraries", lambda: run("ldconfig", "-p", pattern="amdhip|hiprtc|hsa-runtime|libdrm_amdgpu")
    yield "libraries below /opt", lambda: "\n".join(
        sorted(glob.glob("/opt/rocm*/lib/lib*amdhip64.so*")
               + glob.glob("/opt/rocm*/lib/lib*hiprtc.so*"))) or "(none)"
    yield "packages", packages
    yield "settings", settings
    yield "rocminfo", lambda: run(rocm("rocminfo"), lines=200)
    yield "rocm-smi", lambda: run(rocm("rocm-smi"), "--showproductname", "--showdriverversion",
                                  "--showmeminfo", "vram", "--showcomputepartition", lines=60)
    yield "amd-smi", lambda: run(rocm("amd-smi"), "version", lines=10)
    yield "PyTorch (version, HIP, CUDA, GPU there, GPUs)", torch
    yield "CRIU", lambda: "\n".join([run("criu", "--version", lines=4),
                                     *glob.glob("/usr/lib*/criu/*.so"),
                                     *glob.glob("/usr/local/lib/criu/*.so")])
    yield "compiler", lambda: run("gcc", "--version", lines=1) + "\n" + run("clang", "--version",
                                                                          lines=1)


def end(options):
    output = options.output
    yield "build", lambda: "\n".join(read(f"{output}/build.log").splitlines()[-60:])
    yield "checks", lambda: read(f"{output}/test.log", 1 << 20)
    yield "gpucr-bench", lambda: read(f"{output}/bench.txt")
    yield "gpucr-bench, all values", lambda: read(f"{output}/bench.json", 1 << 20)
    yield "the daemon", lambda: read(f"{output}/daemon.log")
    yield "the programs", lambda: programs(read(f"{output}/programs.log", 1 << 20))
    for path in sorted(glob.glob(f"{output}/*-criu.log")):
        yield os.path.basename(path), lambda path=path: read(path)
    yield "the kernel's last messages on amdgpu and kfd", kernel_messages


def discreet(text, options):
    """Without what says whose machine it is, or which GPU."""
    text = re.sub(r"\bGPU-[0-9a-f]{16}\b", "GPU-(id)", text)
    text = re.sub(r"(?im)^(\s*(?:serial number|unique id)\s*[:=]?\s*)\S+.*$", r"\1(left out)", text)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    for word, instead in ((socket.gethostname(), "(host)"), (user, "(user)"),
                          (os.path.abspath(options.output), "(output)")):
        if len(word) > 3 and word != "root":  # not every "vm"
            text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", instead, text)
    return "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text)


def write(options, sections):
    with open(options.report, "a", encoding="utf-8") as report:
        for title, function in sections:
            try:
                text = function()
            except Exception as problem:  # pylint: disable=broad-except # the rest is worth having
                text = f"({type(problem).__name__}: {problem})"
            report.write(discreet(f"\n==== {title}\n{text}\n", options))
            report.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", required=True, help="the file to write")
    parser.add_argument("--output", required=True, help="where the run's logs are")
    parser.add_argument("--sim", action="store_true", help="it is a run on the simulator")
    parser.add_argument("--status", help="the run's exit status; without it, this is its beginning")
    parser.add_argument("--words", default="", help="what it came to")
    options = parser.parse_args()

    if options.status is None:
        commit = run("git", "-C", TREE, "describe", "--always", "--dirty", lines=1)
        with open(options.report, "w", encoding="utf-8") as report:
            report.write("gpucrfs on an AMD GPU: a report of test/gpu/run --hip\n"
                         f"made: {time.strftime('%Y-%m-%d %H:%M:%S %z')}\nsource: {commit}\n"
                         f"simulated: {'yes' if options.sim else 'no'}\n")
        write(options, begin(options))
        return
    write(options, end(options))
    with open(options.report, "a", encoding="utf-8") as report:
        report.write(f"\n==== result\nstatus {options.status}: {options.words}\n")


if __name__ == "__main__":
    main()
