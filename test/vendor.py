# SPDX-License-Identifier: MIT
"""Whose GPUs the tests run on: GPUCR_TEST_VENDOR is cuda (NVIDIA's, the default) or hip (AMD's).
What is called differently there stands here. Calls that are to fail have CUDA's names for both."""
import os
import re

BUILD = os.environ.get('GPUCR_TEST_BUILD', '')
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAME = os.environ.get('GPUCR_TEST_VENDOR', 'cuda')
HIP = NAME == 'hip'
assert NAME in ('cuda', 'hip'), NAME

RUN = [f'{BUILD}/tools/gpucr-run', '--sim']
# The programs in test/e2e look at GPUCR_TEST_VENDOR themselves.
MODES = {'cuda': [], 'hip': ['--hip']}
MODE = MODES[NAME]
DEMO = [f'{BUILD}/tools/gpucr-demo', *MODE]
# That moves the memory which the preload library has made.
ENGINES = {'cuda': 'vmm', 'hip': 'hip'}
ENGINE = ENGINES[NAME]
LIBRARIES = f'{BUILD}/backend/sim'
# The file in the simulator's directory that all users of its GPUs share.
STATE = 'hip/state' if HIP else 'state'
VISIBLE = 'HIP_VISIBLE_DEVICES' if HIP else 'CUDA_VISIBLE_DEVICES'
# What makes gpucr-demo use managed memory, which no engine takes on AMD.
MANAGED = [] if HIP else ['--managed', 2]
ALIKE = re.compile(r'^(?:ALIKE|ADAPTED)\((\w+), (\w+)\)', re.MULTILINE)
VERSION = re.compile(r'(_v\d)?(_pt[ds][sz])?$')
# Names of processes have 15 characters.
COMMS = {'gpucr-worker': 'gpucr-worker-hi', 'gpucr-control': 'gpucr-control-h'}


def gpus(count, others=0):
    """The environment of a simulated machine with so many GPUs, and so many of the other vendor."""
    numbers = (others, count) if HIP else (count, others)
    return {'GPUCR_SIM_GPUS': str(numbers[0]), 'GPUCR_SIM_HIP_GPUS': str(numbers[1])}


def _read_calls():
    """HIP's functions by CUDA's names."""
    with open(f'{SOURCE}/backend/rocm/alike.def', encoding='utf-8') as file:
        return {VERSION.sub('', cuda): hip for cuda, hip in ALIKE.findall(file.read())}


CALLS = _read_calls() if HIP else {}


def rule(text):
    """One of injected faults, for our helpers and the functions of this vendor's."""
    if not HIP or not text:
        return text
    call, *words = text.split()
    for number, word in enumerate(words):
        if word.startswith('comm='):
            words[number] = f'comm={COMMS.get(word[5:], word[5:])}'
    return ' '.join([CALLS.get(VERSION.sub('', call), call), *words])


def comm(name):
    """Of one of our helpers, whoever's GPU it is for."""
    return next((ours for ours, its in COMMS.items() if name == its), name)


# In which call a freeze or a thaw can be held up or fail, and the phase that it is in then: on
# NVIDIA those of the driver's checkpoint, on AMD those that the program's own agent makes.
AGENT = 'thread=gpucr-agent nth=1'
STEPS = {
    'cuda': {'freeze': ('cuCheckpointProcessCheckpoint', '', 'checkpoint'),
             'thaw': ('cuCheckpointProcessRestore', '', 'restore')},
    'hip': {'freeze': ('cuMemUnmap', AGENT, 'handover'), 'thaw': ('cuMemMap', AGENT, 'map')},
}[NAME]


def step(verb, what, pid=None):
    """The rule of a fault in a verb, of everybody's or of one process's, and the phase."""
    name, where, phase = STEPS[verb]
    return ' '.join(filter(None, [name, where, f'pid={pid}' if pid else '', what])), phase
