# SPDX-License-Identifier: MIT
"""What the tests of the CRIU plugin share: a directory that behaves like a mount (by
test/unit/criu/plugin_mount.c, preloaded into who uses it), snapshots in it, and a program in CRIU's
place."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile

from harness import BUILD, MIB, check, equal, read_file, wait_for

PLUGIN = f'{BUILD}/criu-glue/gpucr_plugin.so'
SHIM = f'{BUILD}/test/unit/criu/libplugin-mount.so'
DUMP, PRE_DUMP, RESTORE = range(3)


def start_ticks(pid):
    return read_file(f'/proc/{pid}/stat').rpartition(')')[2].split()[19]


def write(path, data):
    with open(path, 'wb') as file:
        file.write(data if isinstance(data, bytes) else data.encode())


def pattern(seed, size):
    """Bytes that are not the same for another seed."""
    return (bytes((seed + i * 7) % 251 + 1 for i in range(4093)) * (size // 4093 + 1))[:size]


class Mount:
    def __init__(self, directory):
        self.path = f'{directory}/mnt'
        self.env = {'FAKE_MOUNT': self.path, 'GPUCR_MOUNT': self.path, 'LD_PRELOAD': SHIM}
        os.mkdir(self.path)
        for name in 'ctl', 'status', 'events', '.log':
            write(f'{self.path}/{name}', '')

    def add(self, pid, state='running', launcher=False, size=3 * MIB, ticks=None, engine='vmm'):
        """A process that uses a GPU; returns the bytes of its VRAM by name."""
        directory = f'{self.path}/{pid}'
        os.mkdir(directory)
        for name in 'ctl', 'events':
            write(f'{directory}/{name}', '')
        write(f'{directory}/error', 'ok\n')
        write(f'{directory}/status',
              f'pid {pid}\nstart_ticks {ticks or start_ticks(pid)}\nstate {state}\n'
              + ('members 1 2\n' if launcher else f'engine {engine}\nmembers -\n'))
        if launcher:
            return {}
        os.makedirs(f'{directory}/snapshot/vram')
        write(f'{directory}/snapshot/manifest', f'{{"pid": {pid}}}\n')
        write(f'{directory}/snapshot/digests', pattern(pid, 5000))
        files = {'gpu0-7f0000000000': pattern(pid, size), 'gpu1-unmapped-3': pattern(pid + 1, 4097),
                 'managed-7e0000000000': b''}
        for name, data in files.items():
            write(f'{directory}/snapshot/vram/{name}', data)
        with open(f'{directory}/snapshot/vram/gpu0-7d0000000000', 'wb') as sparse:
            sparse.truncate(8 * MIB)
            sparse.seek(4 * MIB)
            sparse.write(b'in the middle')
        files['gpu0-7d0000000000'] = bytes(4 * MIB) + b'in the middle' + bytes(4 * MIB - 13)
        # What the owner of a snapshot may have put there.
        write(f'{directory}/snapshot/vram/note to myself', 'hello')
        return files

    def set(self, name, text):
        write(f'{self.path}/.{name}', text)

    def log(self):
        return read_file(f'{self.path}/.log').split('\n')[:-1]

    def wait_log(self, regex):
        wait_for(lambda: any(re.fullmatch(regex, line) for line in self.log()),
                 f'{regex} in the log of the mount: {self.log()}')

    def places(self):
        return sorted(name for name in os.listdir(self.path) if name.startswith('criu-'))


def check_snapshot(directory, pid, files):
    """It is the snapshot that add() made, and nothing else."""
    equal(sorted(os.listdir(directory)), ['digests', 'manifest', 'vram'])
    equal(read_file(f'{directory}/manifest'), f'{{"pid": {pid}}}\n')
    equal(sorted(os.listdir(f'{directory}/vram')), sorted(files))
    for name, data in files.items():
        with open(f'{directory}/vram/{name}', 'rb') as file:
            equal(file.read() == data, True, f'the bytes of {name}')
    # A page of a tmpfs may be 2 MiB.
    equal(os.stat(f'{directory}/vram/gpu0-7d0000000000').st_blocks * 512 <= 2 * MIB, True,
          'its holes')


class Tool:
    """test/unit/criu/plugin_tool.c, in CRIU's place."""

    def __init__(self, images, env, inventory='has'):
        self.popen = subprocess.Popen([f'{BUILD}/test/unit/criu/plugin_tool', PLUGIN, images, inventory],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      env={**{k: v for k, v in os.environ.items()
                                              if k != 'GPUCR_MOUNT'}, **env})
        self.lines = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.stdin.close()
        self.popen.stdout.read()
        self.popen.stdout.close()
        self.popen.wait()

    def call(self, word, number):
        self.popen.stdin.write(f'{word} {number}\n')
        self.popen.stdin.flush()
        for line in self.popen.stdout:
            if line.startswith('= '):
                return int(line[2:])
            self.lines.append(line.rstrip('\n'))
        return None

    def errors(self):
        return [line for line in self.lines if line.startswith('1 ')]

    def kill(self):
        self.popen.kill()
        self.popen.wait()


class Place:
    """A fake mount, a directory of images, and programs."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix='gpucrfs-test-')
        self.images = f'{self.directory}/images'
        os.mkdir(self.images)
        write(f'{self.images}/inventory.img', 'CRIU')
        self.mount = Mount(self.directory)
        self.programs = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for popen in self.programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
        subprocess.run(['umount', '-l', self.images], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.directory)

    def program(self, *command):
        popen = subprocess.Popen(command or ['sleep', '1000'], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, start_new_session=True)
        self.programs.append(popen)
        return popen

    def gpu_program(self):
        """The pid of one that the mount has."""
        pid = self.program().pid
        self.mount.add(pid)
        return pid

    def tree(self):
        """A shell with two children."""
        root = self.program('sh', '-c', 'sleep 1000 & sleep 1000 & wait').pid

        def children():
            found = read_file(f'/proc/{root}/task/{root}/children').split()
            return [int(pid) for pid in found] if len(found) == 2 else None
        return root, wait_for(children, 'the children')

    def tool(self, inventory='has', **env):
        return Tool(self.images, {**self.mount.env, **env}, inventory)

    def saved(self):
        return sorted(name for name in os.listdir(self.images) if name.startswith('gpucr-'))

    def save(self, pid):
        """An undisturbed dump, after which the program is killed."""
        with self.tool() as tool:
            equal(tool.call('init', DUMP), 0)
            equal(tool.call('pause', pid), 0)
            equal(tool.call('save', pid), 0)
            self.kill(pid)
            tool.call('exit', 0)

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)
        next(popen for popen in self.programs if popen.pid == pid).wait()


def check_error(tool, regex):
    check(any(re.search(regex, line) for line in tool.errors()), f'{regex} is not in {tool.lines}')


def state_of(pid):
    return read_file(f'/proc/{pid}/stat').rpartition(')')[2].split()[0]
