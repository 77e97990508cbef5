"""The policy's process cannot make machine code any more, and answers all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, ctypes.util, mmap, sys
import onnxruntime
from steadyhand.runtime.policy_child import confine
confine(int(sys.argv[1]), 60)
libc = ctypes.CDLL(None, use_errno=True)
area = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
print(libc.mprotect(ctypes.c_void_p(address), 4096, mmap.PROT_READ | mmap.PROT_EXEC))
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    print("made")
except OSError:
    print("refused")
"""


def kernel():
    release = Path("/proc/sys/kernel/osrelease").read_text()
    return tuple(int(word) for word in release.split("-")[0].split(".")[:2])


@pytest.mark.skipif(kernel() < (6, 3), reason="the kernel learned this in 6.3")
@pytest.mark.parametrize(("memory", "said"), [(512 * 2**20, ["-1", "refused"]), (0, ["0", "made"])])
def test_code_is_refused_on_the_cpu_and_left_to_the_driver_on_a_gpu(memory, said):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(memory)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == said
