"""Loads a program that is called as Cilium's load balancing in sockets is, and holds it until it is killed."""

import ctypes
import os
import struct
import time

SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
PROG_LOAD, CGROUP_SOCK_ADDR, INET4_CONNECT = 5, 18, 10

# r0 = 1; exit
code = ctypes.create_string_buffer(struct.pack("BBhi", 0xB7, 0, 0, 1) + struct.pack("BBhi", 0x95, 0, 0, 0))
licence = ctypes.create_string_buffer(b"GPL")
attr = struct.pack(
    "IIQQIIQII16sII",
    CGROUP_SOCK_ADDR, 2, ctypes.addressof(code), ctypes.addressof(licence),
    0, 0, 0, 0, 0, b"cil_sock4_conne", 0, INET4_CONNECT,
)
buffer = ctypes.create_string_buffer(attr)
fd = ctypes.CDLL(None, use_errno=True).syscall(SYS_BPF, PROG_LOAD, buffer, len(attr))
if fd < 0:
    raise OSError(ctypes.get_errno(), "cannot load the program")
print("loaded", flush=True)
time.sleep(3600)
