#!/usr/bin/env python3
"""Plants one violation of each rule in a small tree and asks that scripts/check_includes.py reports it, and only it."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_includes.py"

LEGAL = {
    "runtime/base/error.h": "#pragma once\n#include <string>\n",
    "runtime/base/error.cpp": '#include "runtime/base/error.h"\n\n#include <spdlog/spdlog.h>\n',
    "runtime/base/README.md": "# base\n",
    "runtime/comm/communicator.h": '#pragma once\n#include "runtime/base/error.h"\n',
    "runtime/comm/README.md": "# comm\n",
    "runtime/comm/mpi/mpi_world.h": '#pragma once\n#include <mpi.h>\n#include "runtime/comm/communicator.h"\n',
    "runtime/device/cuda/cuda_stream.h": "#pragma once\n#include <cuda_runtime_api.h>\n",
    "kernels/cuda/gemm.cu": '#include "runtime/device/cuda/cuda_stream.h"\n',
    "kernels/matmul.h": '#pragma once\n#include "runtime/base/error.h"\n',
    "kernels/README.md": "# kernels\n",
    "kernels/cpu/matmul.cpp": '#include "kernels/matmul.h"\n#include <oneapi/dnnl/dnnl.h>\n',
    "parallel/train/step.cpp": '#include "kernels/matmul.h"\n#include "runtime/comm/communicator.h"\n',
    "parallel/train/README.md": "# train\n",
    "examples/pretrain_gpt/main.cpp": '#include "runtime/comm/communicator.h"\n',
    "examples/pretrain_gpt/README.md": "# pretrain_gpt\n",
    "tests/kernels/matmul_test.cpp": '#include "kernels/matmul.h"\n// reads ../shared/data\n',
}


def run_on(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, timeout=60, check=False)
        lines = done.stdout.splitlines()
        return done.returncode, lines[:-1], lines[-1]


class CheckIncludes(unittest.TestCase):
    def planted(self, name, text, *expected, count=1):
        code, problems, last = run_on({**LEGAL, name: text})
        self.assertEqual(code, 1, problems)
        self.assertEqual(len(problems), count, problems)
        self.assertTrue(last.startswith(f"check_includes.py: {count} violation"), last)
        for words in expected:
            self.assertTrue(any(words in problem for problem in problems), f"{words!r} not in {problems}")

    def test_legal_tree(self):
        self.assertEqual(run_on(LEGAL), (0, [], "check_includes.py: 0 violations"))

    def test_upward_include(self):
        self.planted("runtime/base/log.h", '#pragma once\n#include "runtime/comm/communicator.h"\n',
                     "runtime/base/log.h:2: runtime/base may not include runtime/comm")
        self.planted("kernels/gelu.cpp", '#include "runtime/comm/communicator.h"\n', "kernels may not include runtime/comm")
        self.planted("runtime/comm/x.cpp", '#include "kernels/matmul.h"\n', "runtime/comm may not include kernels")

    def test_commented_include_is_none(self):
        code, problems, _ = run_on({**LEGAL, "kernels/a.cpp": '// #include "runtime/comm/communicator.h"\n'})
        self.assertEqual((code, problems), (0, []))

    def test_cycle_between_files(self):
        self.planted("runtime/base/error.h", '#pragma once\n#include "runtime/base/b.h"\n', "no path from the repository root")
        code, problems, _ = run_on({**LEGAL, "runtime/base/a.h": '#pragma once\n#include "runtime/base/b.h"\n',
                                    "runtime/base/b.h": '#pragma once\n#include "runtime/base/a.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn("include cycle: runtime/base/a.h -> runtime/base/b.h -> runtime/base/a.h", problems)

    def test_vendor_headers(self):
        self.planted("parallel/train/x.cpp", "#include <mpi.h>\n", "MPI header <mpi.h> outside runtime/comm/mpi")
        self.planted("runtime/comm/x.cpp", '#include "mpi.h"\n', "MPI header")
        self.planted("tests/kernels/x_test.cpp", "#include <mpi.h>\n", "MPI header")
        self.planted("kernels/x.cpp", "#include <cuda_runtime.h>\n", "CUDA header")
        self.planted("kernels/x.cpp", '#include "runtime/device/cuda/cuda_stream.h"\n', "brings CUDA's headers along")
        self.planted("runtime/comm/x.cpp", "#  include <nccl.h>\n", "NCCL header")
        self.planted("parallel/train/x.cpp", "#include <dnnl.hpp>\n", "oneDNN header")
        self.planted("kernels/x.cpp", "#include <spdlog/spdlog.h>\n", "spdlog header")

    def test_private_folders(self):
        self.planted("parallel/train/x.cpp", '#include "runtime/comm/mpi/mpi_world.h"\n', "private to runtime/comm")

    def test_unknown_folder(self):
        self.planted("runtime/extra/x.cpp", "#include <string>\n", "runtime/extra/x.cpp: this folder is not in")

    def test_test_headers(self):
        files = {**LEGAL, "tests/kernels/help.h": "#pragma once\n", "kernels/x.cpp": '#include "tests/kernels/help.h"\n'}
        code, problems, _ = run_on(files)
        self.assertEqual(code, 1)
        self.assertEqual(problems, ["kernels/x.cpp:1: includes a test's header tests/kernels/help.h"])

    def test_lengths_and_readmes(self):
        self.planted("kernels/x.cpp", "\n" * 601, "kernels/x.cpp: 601 lines, at most 600")
        self.planted("kernels/README.md", "line\n" * 26, "kernels/README.md: 26 lines, at most 25")
        self.planted("parallel/grid/grid.h", "#pragma once\n", "parallel/grid: no README.md")
        self.planted("examples/new_one/main.cpp", "int main() {}\n", "examples/new_one: no README.md")
        self.planted("kernels/x.h", "#include <string>\n", "without #pragma once")

    def test_foreign_words(self):
        self.planted("scripts/x.sh", "cat /work/file\n", "scripts/x.sh:1: mentions /work/")
        self.planted("README.md", "see ../shared\n", "README.md:1: mentions ../shared")


if __name__ == "__main__":
    unittest.main()
