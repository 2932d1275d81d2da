# SPDX-License-Identifier: MIT
"""Files as tests read and open them, and what is mounted."""
import errno

from checking import wait_for


def read_file(path):
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def parse_keys(text):
    """`key value` lines, up to the first empty line."""
    keys = {}
    for line in text.split('\n'):
        if not line:
            break
        key, _, value = line.partition(' ')
        keys[key] = value
    return keys


def open_both(path):
    """For reading and writing; whoever has just closed it may not have been heard of yet."""
    def attempt():
        try:
            return open(path, 'r+b', buffering=0)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return None

    return wait_for(attempt, f'{path} to be closed')


def mounts():
    """Mountpoints and types, as /proc/self/mounts has them."""
    with open('/proc/self/mounts', encoding='utf-8', errors='replace') as lines:
        return [(line.split()[1], line.split()[2]) for line in lines]
