# SPDX-License-Identifier: MIT
"""The root's `metrics`: OpenMetrics text, read by a parser of somebody else's, and what it says of
GPUs, of processes in several states, of verbs that fail and of the store."""
import os
import sys

try:
    from prometheus_client import parser as older_parser
    from prometheus_client.openmetrics import parser
except ImportError:
    # The package is one of the distribution's, for its own Python.
    OWN = '/usr/bin/python3'
    if os.path.exists(OWN) and not os.environ.get('GPUCR_TEST_PYTHON'):
        os.environ['GPUCR_TEST_PYTHON'] = OWN
        os.execv(OWN, [OWN, *sys.argv])
    print('skipped: there is no prometheus_client (python3-prometheus-client)')
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness
import vmm
from harness import MIB, Machine, check, equal, wait_for

NAME = 'Quote " back\\slash {a="b"} \\n\n#x\x1b[31m'
SHOWN = 'Quote " back\\slash {a="b"} \\n\n#x?[31m'
UNITS = ('bytes', 'seconds')
EARLIER = {}


def families(text):
    """By name; all that a parser may let pass is looked at, too."""
    found = {}
    check(text.endswith('\n# EOF\n'), text[-100:])
    for line in text.splitlines():
        check(line == line.strip() and line, repr(line))
    for family in parser.text_string_to_metric_families(text):
        check(family.name.startswith('gpucrfs_') and family.name not in found, family.name)
        check(family.type in ('gauge', 'counter') and family.documentation, family)
        unit = family.name.rpartition('_')[2]
        equal(family.unit, unit if unit in UNITS else '', family.name)
        names = {f'{family.name}_total' if family.type == 'counter' else family.name}
        check({sample.name for sample in family.samples} <= names, family)
        labels = [tuple(sorted(sample.labels.items())) for sample in family.samples]
        equal(len(set(labels)), len(labels), family.name)
        found[family.name] = family
    # Who knows the older format finds the same samples.
    older = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
             for family in older_parser.text_string_to_metric_families(text)
             for sample in family.samples}
    equal(older, samples(found), 'the older format')
    return found


def samples(found):
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in found.values() for sample in family.samples}


class Metrics:
    """One text. Counters never fall from one to the next of the same machine, and none goes."""

    def __init__(self, machine):
        self.families = families(machine.read('metrics'))
        self.samples = samples(self.families)
        counters = {key: value for key, value in self.samples.items() if key[0].endswith('_total')}
        for key, value in EARLIER.get(machine, {}).items():
            check(counters.get(key, -1) >= value, f'{key}: {counters.get(key)} after {value}')
        EARLIER[machine] = counters

    def value(self, name, **labels):
        key = (f'gpucrfs_{name}', tuple(sorted(labels.items())))
        check(key in self.samples, f'no {key} in {sorted(self.samples)}')
        return self.samples[key]

    def of_gpu(self, index, name):
        """Its sample, by index, with all labels."""
        (key,) = [key for key in self.samples
                  if key[0] == f'gpucrfs_gpu_{name}' and dict(key[1])['index'] == str(index)]
        return self.samples[key], dict(key[1])


def wait_shown(machine, demo):
    """What is known of GPUs may be older than the demo's memory, by more on a busy machine. The
    demo has a context, one buffer of 8 MiB and a small one."""
    wait_for(lambda: int(machine.status(demo.pid)['vram_bytes']) ==
             int(machine.gpu()['vram_processes_bytes']) > 24 * MIB, 'its VRAM')


def test_what_comes_back_at_a_thaw():
    """The driver's tools count it for no process: the GPU's sum has it all the same."""
    with vmm.machine() as machine:
        demo = vmm.demo(machine, '--buffers', 1)
        wait_shown(machine, demo)
        before = machine.status(demo.pid)['vram_bytes']
        machine.must(demo.pid, 'freeze')
        machine.must(demo.pid, 'thaw')
        wait_shown(machine, demo)
        equal(machine.status(demo.pid)['vram_bytes'], before)
        equal(Metrics(machine).of_gpu(0, 'vram_processes_bytes')[0], int(before))


def test_gpus():
    """Two vendors' GPUs, whose names have to be escaped."""
    names = [SHOWN, SHOWN, 'Simulated AMD GPU']
    with Machine(gpus=2, others=1, env={'GPUCR_SIM_GPU_NAME': NAME}) as machine:
        demo = machine.ready_demo('--buffers', 1)
        wait_shown(machine, demo)
        metrics = Metrics(machine)
        for index in range(3):
            status = machine.gpu(index)
            uuid = machine.read('gpus', index, 'uuid').strip()
            for name, key in (('vram_bytes', 'vram_total_bytes'),
                              ('vram_used_bytes', 'vram_used_bytes'),
                              ('vram_free_bytes', 'vram_free_bytes'),
                              ('vram_processes_bytes', 'vram_processes_bytes'),
                              ('held_bytes', 'held_bytes')):
                value, labels = metrics.of_gpu(index, name)
                equal([value, labels], [int(status[key]), {
                    'index': str(index), 'uuid': uuid, 'name': names[index]}], f'{name} of {index}')
        equal(metrics.of_gpu(0, 'vram_processes_bytes')[0],
              int(machine.status(demo.pid)['vram_bytes']))
        equal(metrics.of_gpu(1, 'vram_processes_bytes')[0], 0)
        equal(metrics.value('processes', vendor='nvidia', state='running'), 1)
        equal(metrics.value('processes', vendor='amd', state='running'), 0)
        equal([metrics.value('workers', vendor=name) for name in ('nvidia', 'amd')], [0, 0])
        status = machine.status_of_all()
        equal(metrics.value('build_info', version=status['version']), 1)
        for name, version in zip(('nvidia', 'amd'), status['driver_version'].split()):
            equal(metrics.value('driver_info', vendor=name, version=version), 1)


STORE_KEYS = ('held_bytes', 'store_bytes', 'store_used_bytes', 'store_free_bytes',
              'store_reserve_bytes', 'packed_bytes', 'packed_to_bytes', 'shared_bytes',
              'spilled_bytes', 'keep_bytes', 'kept_bytes', 'pool_bytes', 'pool_used_bytes')


def check_store(machine):
    """Memory may just be on its way back: what is compared is the same before and after."""
    def read():
        status = machine.status_of_all()
        return [int(status[key]) for key in STORE_KEYS]

    def both():
        before, metrics = read(), Metrics(machine)
        return (before, metrics) if before == read() else None
    before, metrics = wait_for(both, 'a store that is at rest')
    for key, value in zip(STORE_KEYS, before):
        equal(metrics.value(key), value, key)
    equal(metrics.value('store_survives_restart'),
          machine.status_of_all()['store_survives_restart'] == 'yes')


def test_states_and_verbs():
    """Processes in several states at once, and counters that count."""
    with vmm.machine() as machine:
        frozen, moving, failing = [vmm.demo(machine) for _ in range(3)]
        metrics = Metrics(machine)
        equal(sum(value for (name, _), value in metrics.samples.items() if name.endswith('_total')),
              0, 'nothing has happened')
        before = int(machine.status(frozen.pid)['vram_bytes'])
        machine.must(frozen.pid, 'freeze')
        machine.failing('freeze', failing.pid)
        equal(machine.write(failing.pid, 'freeze'), 'EIO')
        check_store(machine)
        phase = machine.slow('freeze', 1500 * harness.SLOW, moving.pid)
        writer = machine.writer(moving.pid, 'freeze')
        machine.wait_status(moving.pid, 'phase', phase)
        os.mkdir(machine.path('elsewhere'))
        with open(machine.path('elsewhere', 'snapshot', 'some'), 'wb') as file:
            file.write(bytes([1]) * 4 * MIB)

        metrics = Metrics(machine)
        for state, count in (('running', 1), ('frozen', 1), ('freezing', 1), ('thawing', 0)):
            equal(metrics.value('processes', vendor='nvidia', state=state), count, state)
        equal(metrics.value('places', state='incoming'), 1)
        equal(metrics.value('places_bytes'), 4 * MIB)
        equal(metrics.value('workers', vendor='nvidia'), 1)
        equal(metrics.value('verbs_total', verb='freeze', result='ok'), 1)
        equal(metrics.value('verbs_total', verb='freeze', result='EIO'), 1)
        equal(metrics.value('verbs_total', verb='thaw', result='ok'), 0)
        status = machine.status(frozen.pid)
        equal(metrics.value('verb_bytes_total', verb='freeze'), int(status['last_freeze_bytes']))
        equal(round(metrics.value('verb_seconds_total', verb='freeze') * 1e6),
              int(status['last_freeze_usec']))
        check(before <= metrics.of_gpu(0, 'held_bytes')[0], 'what is held')

        machine.must(moving.pid, 'cancel')
        equal(writer.result(), 'ECANCELED')
        machine.faults()
        equal(machine.write(frozen.pid, 'nonsense'), 'EINVAL')
        equal(machine.write('elsewhere', 'freeze'), 'EBUSY')
        machine.must(frozen.pid, 'thaw')
        os.unlink(machine.path('elsewhere', 'snapshot', 'some'))
        os.rmdir(machine.path('elsewhere'))
        metrics = Metrics(machine)
        equal(metrics.value('processes', vendor='nvidia', state='running'), 3)
        equal(metrics.value('places', state='incoming'), 0)
        equal(metrics.value('verbs_total', verb='freeze', result='ECANCELED'), 1)
        equal(metrics.value('verbs_total', verb='thaw', result='ok'), 1)
        equal(metrics.value('refused_writes_total', result='EINVAL'), 1)
        equal(metrics.value('refused_writes_total', result='EBUSY'), 1)
        equal([metrics.value('held_bytes'), metrics.of_gpu(0, 'held_bytes')[0]], [0, 0])
        (worker,) = [pid for pid, comm in machine.helpers() if comm == 'gpucr-worker']
        os.kill(worker, 9)
        wait_for(lambda: Metrics(machine).value('workers', vendor='nvidia') == 0, 'no worker')


def test_a_daemon_begins_anew():
    with Machine() as machine:
        demo = machine.ready_demo()
        equal(machine.write(demo.pid, 'nonsense'), 'EINVAL')
        first = Metrics(machine)
        equal(first.value('refused_writes_total', result='EINVAL'), 1)
        machine.stop()
        machine.start()
        del EARLIER[machine]
        second = Metrics(machine)
        check(second.value('start_time_seconds') > first.value('start_time_seconds'), 'the start')
        equal(second.value('refused_writes_total', result='EINVAL'), 0)


if __name__ == '__main__':
    harness.main(globals(), at_once=3)
