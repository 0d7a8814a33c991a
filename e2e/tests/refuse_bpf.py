"""Runs a command whose bpf(2) calls of some kinds are refused with EPERM, as a container runtime's seccomp profile does.

refuse_bpf.py COMMAND-NUMBER[,COMMAND-NUMBER…] PROGRAM ARGUMENT…
"""

import ctypes
import os
import struct
import sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001
SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]

commands = [int(number) for number in sys.argv[1].split(",")]
last = len(commands) - 1
filter_ = [
    (LOAD, 0, 0, 0),
    (EQUAL, 0, len(commands) + 1, SYS_BPF),
    (LOAD, 0, 0, 16),
    *[(EQUAL, last - at + 1, 0, number) for at, number in enumerate(commands)],
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, REFUSE),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in filter_))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(filter_), ctypes.addressof(code)))
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) != 0:
    sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[2], sys.argv[2:])
