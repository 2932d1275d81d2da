# SPDX-License-Identifier: MIT
"""What a test says that cannot or need not run here."""
import vendor
from amount import ALL


class Skip(Exception):
    """Something that the test needs is not on this machine."""


class NotHere(Skip):
    """The test is not for this vendor's GPUs."""


class OnceIsEnough(Skip):
    """The test finds out the same with another vendor's GPUs, or with a sanitizer."""


def needs_cuda(what):
    """The rest of the test makes use of something that there is on NVIDIA GPUs only."""
    if vendor.HIP:
        raise NotHere(f'not on AMD: {what}')


def same_for_both(what):
    """The test looks at something that knows nothing of vendors. With GPUCR_TEST_ALL it is run
    for each all the same."""
    if vendor.HIP and not ALL:
        raise OnceIsEnough(f'runs with CUDA: {what}')
