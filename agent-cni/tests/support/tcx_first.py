"""Puts a program first at an interface's TCX hook that ends it for every packet (TCX_PASS), and leaves it there."""

import ctypes
import os
import socket
import struct
import sys

SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
PROG_LOAD, PROG_ATTACH, SCHED_CLS, TCX_INGRESS, BEFORE = 5, 8, 3, 46, 8


def bpf(command, attr):
    buffer = ctypes.create_string_buffer(attr, len(attr))
    result = ctypes.CDLL(None, use_errno=True).syscall(SYS_BPF, command, buffer, len(attr))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command})")
    return result


# r0 = 0; exit
code = ctypes.create_string_buffer(struct.pack("BBhi", 0xB7, 0, 0, 0) + struct.pack("BBhi", 0x95, 0, 0, 0))
licence = ctypes.create_string_buffer(b"GPL")
program = bpf(
    PROG_LOAD,
    struct.pack("IIQQIIQII16s", SCHED_CLS, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0, 0, b"theirs"),
)
bpf(PROG_ATTACH, struct.pack("IIIIIIQ", socket.if_nametoindex(sys.argv[1]), program, TCX_INGRESS, BEFORE, 0, 0, 0))
