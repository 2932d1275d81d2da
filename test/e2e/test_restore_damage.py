# SPDX-License-Identifier: MIT
"""A place in which something is wrong, or that does not fit the machine: told in one line, and but
for what only the GPU can find out before anything is started. Put right, it can be thawed."""
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import dump
import harness
import restore
import vendor
import vmm
from harness import (BUILD, MIB, Skip, check, equal, is_root, needs_cuda, read_file, same_for_both,
                     wait_for)
from pieces import Pieces


RESTORE = [] if vendor.HIP else [('cuCheckpointProcessRestore', 'CUDA_ERROR_UNKNOWN')]


class Place:
    """A dumped place, whose files can be changed and put back."""

    def __init__(self, machine, **options):
        self.machine = machine
        self.one = dump.program(machine, **options)
        self.name = dump.dumped(machine, self.one)
        self.snapshot = machine.path(self.name, 'snapshot')

    def files(self, directory):
        return sorted(os.listdir(f'{self.snapshot}/{directory}'))

    def path(self, name):
        return f'{self.snapshot}/{name}'

    def flip(self, name, offset):
        with open(self.path(name), 'r+b') as file:
            byte = os.pread(file.fileno(), 1, offset)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 0x10]), offset)

    def refused(self, expected, words='', verb='thaw', started=False):
        machine = self.machine
        machine.restores.set('')
        equal(machine.write(self.name, verb), expected, machine.error(self.name))
        error = machine.error(self.name)
        check(words in error and '\n' not in error, error)
        equal(machine.restores.has('ran'), started, 'whether CRIU has been started')
        restore.check_back(machine, self.one, self.name)

    def manifest(self, change, *arguments, **others):
        """With a manifest that somebody has changed and made good again it is refused so."""
        path = self.path('manifest')
        with open(path, encoding='utf-8') as file:
            before = file.read()
        after = change(before)
        check(after != before, 'nothing has been changed')
        sealed = f'{self.machine.directory}/manifest'
        with open(sealed, 'w', encoding='utf-8') as file:
            file.write(after)
        subprocess.run([f'{BUILD}/test/unit/tools/make_snapshot', '--seal', sealed], check=True)
        shutil.copyfile(sealed, path)
        try:
            self.refused(*arguments, **others)
        finally:
            with open(path, 'w', encoding='utf-8') as file:
                file.write(before)

    def thaws(self):
        restore.thaws(self.machine, self.one, self.name)


def test_metadata_and_images():
    """A byte of each, at its beginning, in its middle and at its end."""
    same_for_both('metadata and files')
    with restore.machine() as machine:
        place = Place(machine)
        for name in ['manifest', 'digests', *[f'criu/{file}' for file in place.files('criu')]]:
            size = os.path.getsize(place.path(name))
            for offset in sorted({0, size // 2, size - 2}):
                if 0 <= offset < size:
                    place.flip(name, offset)
                    place.refused('EIO')
                    place.flip(name, offset)
            if name.startswith('criu/'):
                os.rename(place.path(name), place.path('aside'))
                place.refused('EOPNOTSUPP', name)
                os.rename(place.path('aside'), place.path(name))
        shutil.copy(place.path('criu/inventory.img'), place.path('criu/zzz.img'))
        place.refused('EIO', 'criu/zzz.img')
        os.unlink(place.path('criu/zzz.img'))
        with open(place.path('criu/inventory.img'), 'ab') as file:
            file.write(b'x')
        place.refused('EIO', 'criu/inventory.img')
        os.truncate(place.path('criu/inventory.img'),
                    os.path.getsize(place.path('criu/inventory.img')) - 1)
        place.thaws()


def test_vram():
    """The bytes are checked on the GPU, when CRIU is through; how many there are, before."""
    with restore.machine() as machine:
        place = Place(machine)
        files = [f'vram/{file}' for file in place.files('vram')]
        equal(len(files), 3)
        for name in files:
            size = os.path.getsize(place.path(name))
            place.flip(name, size - 1)
            place.refused('EIO', started=True)
            place.flip(name, size - 1)
        os.rename(place.path(files[0]), place.path('aside'))
        place.refused('EIO', 'is not there')
        os.rename(place.path('aside'), place.path(files[0]))
        with open(place.path(files[1]), 'r+b') as file:
            file.seek(-1, os.SEEK_END)
            last = file.read()
            file.seek(0, os.SEEK_END)
            file.write(b'x')
        place.refused('EIO', 'bytes, not')
        os.truncate(place.path(files[1]), os.path.getsize(place.path(files[1])) - 2)
        place.refused('EIO', 'bytes, not')
        with open(place.path(files[1]), 'ab') as file:
            file.write(last)
        place.thaws()


def test_many_digests():
    """Digests of more memory than there is are not read: files with holes cost next to nothing."""
    needs_cuda('digests are of this engine')
    if not is_root():
        raise Skip('needs root')
    claimed = 1 << 44
    with vmm.machine() as machine:
        program = Pieces(machine, f'0:{2 * MIB}')
        name = program.name(0)
        machine.must(program.pid, 'freeze')
        with open(program.path('manifest'), encoding='utf-8') as file:
            manifest = file.read()
        with open(program.path('digests'), 'rb') as file:
            digests = file.read()
        machine.must(program.pid, 'thaw')
        header = len(digests) - 16 * (2 * MIB // 65536)
        length = header + 16 * (claimed // 65536)
        manifest = manifest.replace(f'"bytes": {2 * MIB}', f'"bytes": {claimed}')
        manifest = manifest.replace(f'"bytes": {len(digests)}', f'"bytes": {length}')
        os.mkdir(machine.path('elsewhere'))
        sealed = f'{machine.directory}/sealed'
        with open(sealed, 'w', encoding='utf-8') as file:
            file.write(manifest)
        subprocess.run([f'{BUILD}/test/unit/tools/make_snapshot', '--seal', sealed], check=True)
        shutil.copyfile(sealed, machine.path('elsewhere', 'snapshot', 'manifest'))
        with open(machine.path('elsewhere', 'snapshot', 'digests'), 'wb') as file:
            file.write(digests[:header])
            file.truncate(length)

        def refused(result, words):
            equal(machine.write('elsewhere', f'thaw pid={program.pid}'), result)
            check(words in machine.error('elsewhere'), machine.error('elsewhere'))
            peak = re.search(r'VmHWM:\s*(\d+) kB', read_file(f'/proc/{machine.daemon.pid}/status'))
            check(int(peak.group(1)) < 1 << 20, peak.group())

        refused('EIO', 'is not there')
        vram = machine.path('elsewhere', 'snapshot', 'vram')
        os.mkdir(vram)
        with open(f'{vram}/{name}', 'wb') as file:
            file.truncate(claimed)
        refused('EOPNOTSUPP', 'is more than')
        program.check()


def test_unverified():
    """The program gets the bytes as they are."""
    with restore.machine() as machine:
        place = Place(machine)
        place.flip(f'vram/{place.files("vram")[0]}', 5)
        place.refused('EIO', started=True)
        # It may have found the byte, and ended, before the writer hears of the thaw.
        result = machine.write(place.name, 'thaw unverified')
        check(result in ('ok', 'ESRCH'), result)
        wait_for(lambda: [line for line in place.one.lines()[1:] if not line.endswith(' ok')] or
                 place.one.reap() or not os.path.exists(f'/proc/{place.one.pid}'),
                 'the program to find the wrong byte')


def one_more_gpu(text):
    """Of the same model."""
    (gpu,) = re.search(r'"gpus": \[\s*(\{[^}]*\})', text).groups()
    other = re.sub('"index": 0', '"index": 1', re.sub('GPU-........', 'GPU-01234567', gpu))
    return text.replace(gpu, f'{gpu}, {other}', 1)


def test_other_machines():
    """Another driver, GPU, processor, kernel, CRIU or file."""
    with restore.machine() as machine:
        place = Place(machine)

        def other(pattern, text):
            return lambda manifest: re.sub(pattern, text, manifest, count=1)

        if not vendor.HIP:
            place.manifest(other('580.159.04', '999.1'), 'EOPNOTSUPP', 'driver 999.1')
            place.manifest(lambda text: other('Simulated GPU', 'Other GPU')(
                re.sub('GPU-........', 'GPU-01234567', text)), 'EOPNOTSUPP', 'Other GPU')
            place.manifest(
                lambda text: other('"memory_bytes": [0-9]*', f'"memory_bytes": {1 << 40}')(
                    re.sub('GPU-........', 'GPU-01234567', text)), 'EOPNOTSUPP', 'bytes of memory')
            place.manifest(one_more_gpu, 'ENODEV', 'more GPUs of this model')
            # What a thaw keeps for the driver is kept from others.
            place.manifest(other('"control_bytes": [0-9]*', f'"control_bytes": {1 << 46}'),
                           'EOPNOTSUPP', 'the driver needed')
        place.manifest(other('"cpu_flags": "', '"cpu_flags": "zmmm '), 'EOPNOTSUPP', 'zmmm')
        place.manifest(other('"kernel": "[0-9]*', '"kernel": "99'), 'EOPNOTSUPP', '99.')
        place.manifest(other('"criu_version": [0-9]*', '"criu_version": 990000'), 'EOPNOTSUPP',
                       'CRIU')
        place.manifest(other('"machine": "[^"]*', '"machine": "vax'), 'EOPNOTSUPP', 'vax')
        for path in re.findall('"path": "([^"]*program.out)"', open(place.path('manifest')).read()):
            os.rename(path, f'{path}.aside')
            place.refused('EIO', 'program.out')
            with open(path, 'w', encoding='utf-8') as file:
                file.write('something else\n' * 100)
            place.refused('EIO', 'program.out')
            os.unlink(path)
            os.rename(f'{path}.aside', path)
        place.thaws()


def test_a_tree_is_not_made_of_a_freeze():
    """A snapshot that was taken by freeze has no CPU side."""
    with restore.machine() as machine:
        one = dump.program(machine)
        machine.must(one.pid, 'freeze')
        os.mkdir(machine.path('frozen'))
        subprocess.run(['cp', '-r', f'{machine.path(one.pid, "snapshot")}/.',
                        machine.path('frozen', 'snapshot')], check=True)
        machine.restores.set('')
        equal(machine.write('frozen', 'thaw'), 'EOPNOTSUPP')
        check('CPU side' in machine.error('frozen'), machine.error('frozen'))
        os.mkdir(machine.path('empty'))
        check(machine.write('empty', 'thaw') in ('EIO', 'EOPNOTSUPP'), machine.error('empty'))
        check(not machine.restores.has('ran'), 'CRIU has been started')
        equal(machine.state('empty'), 'incoming')
        machine.must(one.pid, 'thaw')
        one.wait_ticks(2)


def test_faults_in_the_thaw():
    """CRIU is through, and the GPU fails: the tree is ended."""
    with restore.machine() as machine:
        place = Place(machine)
        for call, error in (('cuMemCreate comm=gpucr-worker', 'CUDA_ERROR_OUT_OF_MEMORY'),
                            ('cuMemcpyHtoDAsync comm=gpucr-worker', 'CUDA_ERROR_UNKNOWN'),
                            ('cuMemExportToShareableHandle comm=gpucr-worker',
                             'CUDA_ERROR_UNKNOWN'),
                            ('cuMemImportFromShareableHandle thread=gpucr-agent',
                             'CUDA_ERROR_UNKNOWN'),
                            ('cuMemMap thread=gpucr-agent', 'CUDA_ERROR_UNKNOWN'),
                            *RESTORE):
            machine.restores.set('')
            machine.watch_faults()
            machine.faults(f'{call} error={error}')
            result = machine.write(place.name, 'thaw')
            machine.faults()
            check(machine.faulted(), f'{call} was not called: {result}')
            check(result in ('EIO', 'ENOMEM'), f'{call}: {result}: {machine.error(place.name)}')
            restore.check_back(machine, place.one, place.name)
        # The program is ended in the middle.
        machine.watch_faults()
        machine.faults('cuMemCreate comm=gpucr-worker delay_ms=1500')
        writer = machine.writer(place.name, 'thaw')
        machine.wait_faulted()
        os.kill(place.one.pid, 9)
        result = writer.result()
        check(result != 'ok', 'it has ended')
        machine.faults()
        restore.check_back(machine, place.one, place.name)
        # cancel in the middle.
        machine.watch_faults()
        machine.faults('cuMemcpyHtoDAsync comm=gpucr-worker delay_ms=1500')
        writer = machine.writer(place.name, 'thaw')
        machine.wait_faulted()
        machine.write(place.name, 'cancel')
        machine.faults()
        if writer.result() != 'ok':
            restore.check_back(machine, place.one, place.name)
            place.thaws()


def test_no_room_in_vram():
    with restore.machine(vram='128M', worker_idle=1) as machine:
        place = Place(machine)
        vmm.idle(machine)
        other = machine.ready_demo('--bytes', '80M', '--buffers', '1', '--tick', '200')
        equal(machine.write(place.name, 'thaw'), 'ENOMEM', machine.error(place.name))
        restore.check_back(machine, place.one, place.name)
        other.end()
        place.thaws()


def test_another_gpu():
    with restore.machine(gpus=2) as machine:
        place = Place(machine)
        equal(machine.write(place.name, 'thaw gpu=0:7'), 'ENODEV', machine.error(place.name))
        restore.check_back(machine, place.one, place.name)
        if vendor.HIP:  # CRIU's plugin has brought its queues to the first one
            equal(machine.write(place.name, 'thaw gpu=0:1'), 'EOPNOTSUPP')
            restore.check_back(machine, place.one, place.name)
            place.thaws()
            return
        machine.must(place.name, 'thaw gpu=0:1')
        restore.check_on(machine, place.one, place.name)
        check(machine.used(1) > machine.used(0), f'{machine.used(0)}, {machine.used(1)}')
        machine.must(place.one.pid, 'freeze')
        machine.must(place.one.pid, 'thaw')
        place.one.wait_ticks(2)
        check(machine.used(1) > machine.used(0), f'{machine.used(0)}, {machine.used(1)}')


def test_another_host():
    """A copy of the place on a machine whose GPU is another."""
    for verb in 'thaw', 'thaw gpu=0:0':
        with restore.machine() as machine:
            place = Place(machine)
            copy = f'{machine.directory}/copy'
            shutil.copytree(place.snapshot, copy)
            os.rmdir(machine.path(place.name))
            machine.stop()
            shutil.rmtree(machine.simulator)
            machine.env['GPUCR_SIM_HOST'] = 'other'
            machine.start()
            os.mkdir(machine.path('came'))
            subprocess.run(['cp', '-a', f'{copy}/.', machine.path('came', 'snapshot')], check=True)
            place.name, place.snapshot = 'came', machine.path('came', 'snapshot')
            there = json.loads(harness.read_file(place.path('manifest')))['gpus'][0]['uuid']
            check(there[4:12] not in ' '.join(os.listdir(machine.path('gpus'))), 'it is another')
            place.thaws()
            for _ in range(2):
                machine.must('came', 'freeze')
                machine.must('came', 'thaw')
                place.one.wait_ticks(2)
            name = dump.dumped(machine, place.one)
            restore.thaws(machine, place.one, name)


if __name__ == '__main__':
    harness.main(globals(), at_once=2)
