"""The filter of system calls for commands in the sandbox, as a classic BPF program.

The names come from the kernel: <linux/seccomp.h>, <linux/filter.h>, <linux/audit.h>, <linux/sched.h>.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import socket
import stat
import struct
from typing import NamedTuple

__all__ = ["build_filter", "is_known_machine"]

BPF_LD, BPF_JMP, BPF_RET = 0x00, 0x05, 0x06
BPF_W, BPF_ABS, BPF_K = 0x00, 0x20, 0x00
BPF_JEQ, BPF_JGE, BPF_JSET = 0x10, 0x30, 0x40
SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64 = 0xC000003E, 0xC00000B7
X32_SYSCALL_BIT = 0x40000000

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER = 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC
    | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)  # fmt: skip
# A file with one of these bits runs with the rights of its owner or group.
_SETID = stat.S_ISUID | stat.S_ISGID
# __O_TMPFILE: os.O_TMPFILE also contains O_DIRECTORY, whose value depends on the machine.
_O_TMPFILE = 0o20000000
# `open` uses its argument `mode` only with one of these flags.
_CREATE = os.O_CREAT | _O_TMPFILE


class _SeccompData(ctypes.Structure):
    """The input of the filter, `struct seccomp_data`."""

    _fields_ = (
        ("nr", ctypes.c_int),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 6),
    )


class _Call(NamedTuple):
    """The number of a system call per machine."""

    x86_64: int
    aarch64: int


# A system call that the machine does not have.
_NONE = 0xFFFF
_SOCKET = _Call(41, 198)
_REFUSED = {
    "add_key": _Call(248, 217),
    "request_key": _Call(249, 218),
    "keyctl": _Call(250, 219),
    "mount": _Call(165, 40),
    "umount2": _Call(166, 39),
    "pivot_root": _Call(155, 41),
    "unshare": _Call(272, 97),
    "setns": _Call(308, 268),
    "syslog": _Call(103, 116),
    "bpf": _Call(321, 280),
    "perf_event_open": _Call(298, 241),
    "userfaultfd": _Call(323, 282),
    "io_uring_setup": _Call(425, 425),
    "io_uring_enter": _Call(426, 426),
    "io_uring_register": _Call(427, 427),
    "open_tree": _Call(428, 428),
    "move_mount": _Call(429, 429),
    "fsopen": _Call(430, 430),
    "fsconfig": _Call(431, 431),
    "fsmount": _Call(432, 432),
    "fspick": _Call(433, 433),
    "mount_setattr": _Call(442, 442),
    "open_tree_attr": _Call(467, 467),
}
# A filter cannot read the arguments of these calls, which are in memory. Programs fall back to the older calls.
_MISSING = {"clone3": _Call(435, 435), "openat2": _Call(437, 437)}
# The address families that a network namespace confines.
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)


class _Bits(NamedTuple):
    """A system call, refused if every argument in `arguments` has at least one bit of the mask."""

    call: _Call
    arguments: tuple[tuple[int, int], ...]


_REFUSED_BITS = {
    "clone": _Bits(_Call(56, 220), ((0, _NAMESPACES),)),
    "chmod": _Bits(_Call(90, _NONE), ((1, _SETID),)),
    "fchmod": _Bits(_Call(91, 52), ((1, _SETID),)),
    "fchmodat": _Bits(_Call(268, 53), ((2, _SETID),)),
    "fchmodat2": _Bits(_Call(452, 452), ((2, _SETID),)),
    "creat": _Bits(_Call(85, _NONE), ((1, _SETID),)),
    "open": _Bits(_Call(2, _NONE), ((1, _CREATE), (2, _SETID))),
    "openat": _Bits(_Call(257, 56), ((2, _CREATE), (3, _SETID))),
    "mknod": _Bits(_Call(133, _NONE), ((1, _SETID),)),
    "mknodat": _Bits(_Call(259, 33), ((2, _SETID),)),
}
_AUDIT_ARCHES = {"x86_64": AUDIT_ARCH_X86_64, "aarch64": AUDIT_ARCH_AARCH64}

# An instruction is struct sock_filter: code, jump if true, jump if false, operand. A jump skips instructions.
_Instruction = tuple[int, int, int, int]
_ALLOW: _Instruction = (BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW)
_REFUSE: _Instruction = (BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | errno.EPERM)
_NOT_IMPLEMENTED: _Instruction = (
    BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | errno.ENOSYS,
)  # fmt: skip


def is_known_machine() -> bool:
    """Return whether the filter supports the processor of the machine."""
    return platform.machine() in _AUDIT_ARCHES


def _load(offset: int) -> _Instruction:
    return BPF_LD | BPF_W | BPF_ABS, 0, 0, offset


def _load_argument(number: int) -> _Instruction:
    """Load the low half of an argument. Both machines are little-endian."""
    return _load(_SeccompData.args.offset + number * ctypes.sizeof(ctypes.c_uint64))


def _jump(
    condition: int, operand: int, *, then: int = 0, otherwise: int = 0
) -> _Instruction:
    return BPF_JMP | condition | BPF_K, then, otherwise, operand


@functools.cache
def build_filter() -> bytes:
    """Return the program for the machine, as an array of `struct sock_filter`."""
    machine = platform.machine()

    def number(call: _Call) -> int:
        return int(getattr(call, machine))

    program = [
        _load(_SeccompData.arch.offset),
        _jump(BPF_JEQ, _AUDIT_ARCHES[machine], then=1),
        _REFUSE,
        _load(_SeccompData.nr.offset),
        _jump(BPF_JGE, X32_SYSCALL_BIT, otherwise=1),
        _REFUSE,
    ]
    for call in _REFUSED.values():
        program += [_jump(BPF_JEQ, number(call), otherwise=1), _REFUSE]
    for call in _MISSING.values():
        program += [_jump(BPF_JEQ, number(call), otherwise=1), _NOT_IMPLEMENTED]
    for call, arguments in _REFUSED_BITS.values():
        program += _refuse_bits(number(call), arguments)
    # Any other address family is refused.
    count = len(_FAMILIES)
    program += [
        _jump(BPF_JEQ, number(_SOCKET), otherwise=count + 3),
        _load_argument(0),
        *(
            _jump(BPF_JEQ, family, then=count - position)
            for position, family in enumerate(_FAMILIES)
        ),
        _REFUSE,
        _ALLOW,
        _ALLOW,
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _refuse_bits(
    number: int, arguments: tuple[tuple[int, int], ...]
) -> list[_Instruction]:
    """Refuse a call if every argument has at least one bit of its mask, and allow the call otherwise."""
    # For each argument a load and a test, then _REFUSE and _ALLOW.
    program = [_jump(BPF_JEQ, number, otherwise=2 * len(arguments) + 2)]
    for position, (argument, bits) in enumerate(arguments):
        remaining = len(arguments) - position
        program += [
            _load_argument(argument),
            _jump(BPF_JSET, bits, otherwise=2 * remaining - 1),
        ]
    return [*program, _REFUSE, _ALLOW]
