#!/usr/bin/env python3
"""Worsens one number of a kernel at a time and asks that scripts/kernel_table.py reports it. The objects are made here,
with just the parts of a cubin that the script reads, so that no CUDA is needed."""
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kernel_table.py"
COMPILER = "13.0, V13.0.88"
KERNEL = "_ZN6ashlar7kernels4cuda12_GLOBAL__N_111gemm_kernelI6__halfEEvPfi"  # void (anonymous)::gemm_kernel<__half>(float*, int)
LDG_128 = (0x981, 6)
STG_128 = (0x986, 6)
STL = (0x387, 4)
HMMA = (0x23C, 0)
ATOM = (0x9A8, 4)
GOOD = {"regs": 200, "stack": 0, "shared": 64, "code": [HMMA] * 64 + [LDG_128, LDG_128, STG_128]}


def cubin(arch, regs, stack, shared, code, kernel=KERNEL, compiler=COMPILER):
    symbol = 5
    note = f"ptxas\0Cuda compilation tools, release {compiler}\0-arch {arch} -m 64\0".encode()
    info = struct.pack("<BBHII", 4, 0x2F, 8, symbol, regs) + struct.pack("<BBH", 3, 0x1D, 7)
    info += struct.pack("<BBHII", 4, 0x12, 8, symbol, stack)
    text = b"".join(struct.pack("<QQ", opcode, width << 9) for opcode, width in code)
    parts = [("", 0, b"", 0), (".shstrtab", 0, b"", 3), (".note.nv.tkinfo", 0, note, 7), (".nv.info", 0, info, 1),
             (f".text.{kernel}", symbol, text, 1), (f".nv.shared.{kernel}", 0, b"\0" * shared, 8)]
    names = b"".join(name.encode() + b"\0" for name, *_ in parts)
    parts[1] = (".shstrtab", 0, names, 3)
    body, headers, name_at = b"", b"", 0
    for name, symbol_number, data, kind in parts:
        headers += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, 64 + len(body), len(data), 0, symbol_number, 1, 0)
        body += b"" if kind == 8 else data
        name_at += len(name) + 1
    start = b"\x7fELF\x02\x01\x01\x41\x08".ljust(16, b"\0") + struct.pack("<HH", 2, 190)
    start = start.ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(body))
    start = start.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(parts), 1)
    return start + body + headers


class KernelTable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.object = Path(folder.name) / "gemm_nt.o"
        self.table = Path(folder.name) / "table.txt"
        self.write(GOOD)
        self.assertEqual(self.run_script("--update"), (0, ["kernel_table.py: 2 kernel instances, 0 problems"]))

    def write(self, both, **changes):
        """An object with a kernel for two architectures; `changes` are those of sm_80."""
        self.object.write_bytes(b"\x7fELF\x02 of the host" + cubin("sm_80", **{**both, **changes}) + b"between" +
                                cubin("sm_90a", **both))

    def run_script(self, *flags):
        done = subprocess.run([sys.executable, SCRIPT, "--table", self.table, *flags, self.object], capture_output=True,
                              text=True, timeout=60, check=False)
        return done.returncode, done.stdout.splitlines() + done.stderr.splitlines()

    def assert_reported(self, *lines, flags=()):
        code, output = self.run_script(*flags)
        self.assertEqual((code, output[:-1]), (1, [f"gemm_nt gemm_kernel<fp16> {line}" for line in lines]))

    def test_the_table_can_be_read_and_is_met(self):
        self.assertIn("gemm_nt gemm_kernel<fp16> sm_80: regs=200 stack=0 shared=64 HMMA=64 LDG.128=2 STG.128=1 between=0\n",
                      self.table.read_text(encoding="utf-8"))
        self.assertEqual(self.run_script(), (0, ["kernel_table.py: 2 kernel instances, 0 problems"]))

    def test_worse_numbers_are_reported(self):
        self.write(GOOD, regs=201)
        self.assert_reported("sm_80: regs was 200, is 201")
        self.write(GOOD, shared=65)
        self.assert_reported("sm_80: shared was 64, is 65")
        self.write(GOOD, code=GOOD["code"] + [LDG_128])
        self.assert_reported("sm_80: LDG.128 was 2, is 3")

    def test_better_numbers_are_differences_too(self):
        self.write(GOOD, regs=100)
        self.assert_reported("sm_80: regs was 200, is 100")

    def test_rules_hold_whatever_the_table_says(self):
        self.write(GOOD, code=GOOD["code"] + [STL], stack=8)
        for flags in [("--update",), ()]:
            self.assert_reported("sm_80: stack is 8, the rule is <= 0: accumulators stay in registers",
                                 "sm_80: STL is 1, the rule is <= 0: accumulators stay in registers", flags=flags)
        self.write(GOOD, code=GOOD["code"] + [ATOM])
        self.assert_reported("sm_80: ATOM is 1, the rule is <= 0: sums do not depend on the order of threads: no atomics",
                             flags=("--update",))
        self.write(GOOD, code=GOOD["code"] + [(0x986, 4)])
        self.assert_reported("sm_80: narrow is 1, the rule is <= 0: operands and results move in 16 bytes",
                             flags=("--update",))

    def test_instructions_between_products_are_counted(self):
        self.write(GOOD, code=GOOD["code"] + [LDG_128] * 76 + [HMMA])
        self.assert_reported("sm_80: per HMMA is 1.215, the rule is <= 1.2: the tensor cores are kept busy",
                             flags=("--update",))

    def test_new_and_lost_kernels_are_reported(self):
        other = KERNEL.replace("6__half", "13__nv_bfloat16")
        self.write(GOOD, kernel=other)
        code, output = self.run_script()
        self.assertEqual((code, output[:-1]), (1, ["gemm_nt gemm_kernel<bf16> sm_80: not in the table",
                                                   "gemm_nt gemm_kernel<fp16> sm_80: in the table, but not in the build"]))

    def test_rules_about_no_kernel_are_reported(self):
        code, output = self.run_script("--complete")
        self.assertEqual(code, 1)
        self.assertTrue(any(line.startswith("the rule for attention_forward") for line in output), output)
        self.assertFalse(any(line.startswith("the rule for gemm") for line in output), output)

    def test_another_compiler_is_held_against_the_rules_only(self):
        self.write({**GOOD, "compiler": "12.4, V12.4.99"}, regs=201)
        code, output = self.run_script()
        self.assertEqual(code, 0)
        self.assertIn("only the rules are checked", output[0])
        self.write({**GOOD, "compiler": "12.4, V12.4.99"}, code=[STL])
        self.assertEqual(self.run_script()[0], 1)

    def test_a_missing_object_is_an_error(self):
        self.object.unlink()
        code, output = self.run_script()
        self.assertEqual(code, 1)
        self.assertIn("build the target ashlar_kernels_cuda first", output[0])


if __name__ == "__main__":
    unittest.main()
