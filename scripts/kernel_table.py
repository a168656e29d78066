#!/usr/bin/env python3
"""Compares the machine code of every CUDA kernel with a checked-in table: registers, stack, static shared memory, and
how many instructions of each kind that matters. Reads the cubins inside the objects of the build; needs no GPU and no
disassembler, only c++filt.

  scripts/kernel_table.py OBJECT...             prints one line per difference or broken rule, exits 1 when there is any
  scripts/kernel_table.py --update OBJECT...    writes the table (ninja -C build/release update_kernel_table does it);
                                                exits 1 when a rule is broken

A difference for the better is one too: write the table again in the same commit. Only objects of the compiler that wrote
the table are compared with it; those of another one are held against the rules alone.
"""
import argparse
import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "kernels" / "cuda" / "kernel_table.txt"

# What must hold whatever the table says: patterns of source, kernel and arch; column, comparison, limit, reason.
# `between` counts the other instructions from the first HMMA to the last. Besides the table's columns there are `per HMMA`,
# that count divided by the number of HMMA, which an A100 hides up to about 7; `narrow`, accesses of global memory of less
# than 16 bytes; `wide loads` and `wide stores`, those of 16 bytes, or of 8 where 16-bit elements walk beside fp32 ones.
BANDWIDTH = "accumulate|activation|bias|cast|cross_entropy|embedding|layernorm_.*|optimizer|partial_rows|reduce"
RULES = [
    (".*", ".*", ".*", "RED", "<=", 0, "sums do not depend on the order of threads: no atomics"),
    (".*", ".*", ".*", "ATOM", "<=", 0, "sums do not depend on the order of threads: no atomics"),
    ("gemm_(nt|nn|tn)", ".*", ".*", "regs", "<=", 255, "two blocks of 128 threads per SM"),
    ("gemm_.*", ".*", ".*", "stack", "<=", 0, "accumulators stay in registers"),
    ("gemm_.*", ".*", ".*", "LDL", "<=", 0, "accumulators stay in registers"),
    ("gemm_.*", ".*", ".*", "STL", "<=", 0, "accumulators stay in registers"),
    ("gemm_(nt|nn|tn)", ".*", ".*", "HMMA", ">=", 64, "a step is 64 tensor-core products per warp"),
    ("gemm_(nt|nn|tn)", ".*", ".*", "per HMMA", "<=", 1.2, "the tensor cores are kept busy"),
    ("gemm_.*", ".*", ".*", "narrow", "<=", 0, "operands and results move in 16 bytes"),
    ("attention_forward", ".*,64,.*", "sm_80", "stack", "<=", 0, "head size 64 fits into registers"),
    ("attention_forward", ".*,64,.*", "sm_80", "LDL", "<=", 0, "head size 64 fits into registers"),
    ("attention_forward", ".*,64,.*", "sm_80", "STL", "<=", 0, "head size 64 fits into registers"),
    ("attention_forward", ".*,128,.*", "sm_80", "stack", "<=", 96, "head size 128 nearly fits into registers"),
    ("attention_forward", ".*,false.*", ".*", "per HMMA", "<=", 4.8, "the tensor cores are kept busy"),
    ("attention_(forward|dkv|dq)", ".*", ".*", "HMMA", ">=", 1, "products are the tensor cores'"),
    ("attention_(forward|dkv|dq)", ".*", ".*", "wide stores", ">=", 8, "results move in 16 bytes"),
    (BANDWIDTH, ".*", ".*", "stack", "<=", 0, "rows and sums stay in registers"),
    (BANDWIDTH, "(?!sum_in_order).*", ".*", "wide loads", ">=", 1, "bulk reads are of 16 bytes, or 8"),
    (BANDWIDTH, "(?!cross_entropy_stats|sum_in_order).*", ".*", "wide stores", ">=", 1, "bulk writes are of 16 bytes, or 8"),
]

# Opcodes are the low 12 bits of an instruction of 16 bytes; bits 73 to 75 are the width of an access. Found by compiling
# one-line kernels for sm_80 and sm_90a with CUDA 13.0.
OPCODES = {
    0x23C: "HMMA", 0x83B: "LDSM", 0xFAE: "LDGSTS", 0x981: "LDG", 0x986: "STG", 0x980: "LD", 0x985: "ST",
    0x984: "LDS", 0x388: "STS", 0x988: "STS", 0x983: "LDL", 0x387: "STL", 0x987: "STL", 0x308: "MUFU", 0xF89: "SHFL",
    0xB1D: "BAR", 0x98E: "RED", 0x9A6: "RED",
    0x98A: "ATOM", 0x9A8: "ATOM", 0x9A3: "ATOM", 0x9A2: "ATOM", 0x3A9: "ATOM", 0x3AA: "ATOM", 0x38B: "ATOM",  # memory
    0x38C: "ATOM", 0x98C: "ATOM", 0x38D: "ATOM",  # shared memory
}
WITH_WIDTH = {"LDGSTS", "LDG", "STG", "LD", "ST", "LDS", "STS"}
WIDTHS = ["8", "8", "16", "16", "32", "64", "128", "?"]
ELF_MAGIC = b"\x7fELF\x02"
EM_CUDA = 190
SHT_NOBITS = 8
REGISTERS, STACK = 0x2F, 0x12  # attributes in .nv.info; the stack is a kernel's own and of what it calls


def sections(elf):
    """(name, info, data or None, size) of each section."""
    start, = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, start + i * entry) for i in range(count)]
    for name, kind, _, _, offset, size, _, info, _, _ in headers:
        at = headers[names][4] + name
        text = bytes(elf[at:elf.index(b"\0", at)]).decode()
        yield text, info, None if kind == SHT_NOBITS else elf[offset:offset + size], size


def cubins(data):
    """The CUDA images inside an object, which holds them uncompressed."""
    at = data.find(ELF_MAGIC)
    while at >= 0:
        if len(data) >= at + 64 and struct.unpack_from("<H", data, at + 18)[0] == EM_CUDA:
            yield data[at:]
        at = data.find(ELF_MAGIC, at + 1)


def attributes(info):
    """{(attribute, symbol number): value} from .nv.info, a list of format, attribute, size, value."""
    values, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:  # a value follows; in the other formats `size` is the value
            if attribute in (REGISTERS, STACK):
                symbol, value = struct.unpack_from("<II", info, at)
                values[attribute, symbol] = value
            at += size
    return values


def instruction_mix(code):
    mix, places = Counter(), []
    for at in range(0, len(code) - 15, 16):
        low, high = struct.unpack_from("<QQ", code, at)
        name = OPCODES.get(low & 0xFFF)
        if name in WITH_WIDTH:
            mix[f"{name}.{WIDTHS[high >> 9 & 7]}"] += 1
        elif name:
            mix[name] += 1
        if name == "HMMA":
            places.append(at // 16)
    if places:
        mix["between"] = places[-1] - places[0] + 1 - len(places)
    return mix


def measure_cubin(elf):
    """arch, compiler, {mangled name: {column: number}}"""
    found = {name: (info, data, size) for name, info, data, size in sections(elf)}
    note = bytes(found.get(".note.nv.tkinfo", (0, b"", 0))[1])
    arch = re.search(rb"-arch (sm_\w+)", note)
    compiler = re.search(rb"release ([\d.]+, V[\d.]+)", note)
    if not arch or not compiler:
        raise SystemExit("kernel_table.py: a cubin does not say what it was compiled by and for (.note.nv.tkinfo)")
    values = attributes(found[".nv.info"][1])
    kernels = {}
    for name, (info, code, _) in found.items():
        if name.startswith(".text."):
            name = name[len(".text."):]
            symbol = info & 0xFFFFFF
            columns = {"regs": values[REGISTERS, symbol], "stack": values[STACK, symbol]}
            columns["shared"] = found.get(f".nv.shared.{name}", (0, None, 0))[2]
            columns.update(instruction_mix(code))
            kernels[name] = columns
    return arch.group(1).decode(), compiler.group(1).decode(), kernels


def short_name(demangled):
    """gemm_kernel<bf16,(Stored)0> from void ashlar::..::gemm_kernel<__nv_bfloat16, (ashlar::..::Stored)0>(args)"""
    name = demangled.replace("(anonymous namespace)::", "").replace("ashlar::kernels::cuda::", "")
    name = re.sub(r"\bashlar::kernels::", "", name)
    name = name.replace("__nv_bfloat16", "bf16").replace("__half", "fp16").replace(" ", "~")
    depth = 0
    for at, letter in enumerate(name):  # up to the parameters, and without the result type before
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            name = name[:at]
            break
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += {">": 1, "<": -1}.get(name[at], 0)
        if name[at] == "~" and depth == 0:
            name = name[at + 1:]
            break
    return name.replace("~", "")


def measure(objects):
    """{(source, kernel, arch): {column: number}}, compiler"""
    rows, compilers = {}, set()
    for path in objects:
        if not path.is_file():
            raise SystemExit(f"kernel_table.py: {path} is missing: build the target ashlar_kernels_cuda first")
        for elf in cubins(path.read_bytes()):
            arch, compiler, kernels = measure_cubin(elf)
            compilers.add(compiler)
            done = subprocess.run(["c++filt"], input="\n".join(kernels), capture_output=True, text=True, check=True)
            for demangled, columns in zip(done.stdout.splitlines(), kernels.values()):
                key = (path.stem, short_name(demangled), arch)
                if key in rows:
                    raise SystemExit(f"kernel_table.py: {path.stem} has two kernels {key[1]}; give them different names")
                rows[key] = columns
    if len(compilers) != 1:
        raise SystemExit(f"kernel_table.py: objects of one compiler expected, found {sorted(compilers) or 'no kernel'}")
    return rows, compilers.pop()


def write_table(rows, compiler):
    lines = ["# Registers, stack bytes, static shared bytes and instructions of every kernel, compared by",
             "# scripts/kernel_table.py. To write it again: ninja -C build/release update_kernel_table",
             f"# compiler: {compiler}"]
    for (source, kernel, arch), columns in sorted(rows.items()):
        values = " ".join(f"{c}={n}" for c, n in list(columns.items())[:3] + sorted(list(columns.items())[3:]))
        lines.append(f"{source} {kernel} {arch}: {values}")
    return "\n".join(lines) + "\n"


def read_table(text):
    rows, compiler = {}, None
    for line in text.splitlines():
        if line.startswith("# compiler: "):
            compiler = line[len("# compiler: "):]
        elif not line.startswith("#"):
            key, values = line.split(": ")
            columns = (value.split("=") for value in values.split())
            rows[tuple(key.split(" "))] = {column: int(number) for column, number in columns}
    return rows, compiler


def differences(is_rows, was_rows):
    for key in sorted(is_rows.keys() | was_rows.keys()):
        name = " ".join(key)
        if key not in was_rows:
            yield f"{name}: not in the table"
        elif key not in is_rows:
            yield f"{name}: in the table, but not in the build"
        else:
            now, was = is_rows[key], was_rows[key]
            for column in list(was) + [column for column in now if column not in was]:
                if now.get(column, 0) != was.get(column, 0):
                    yield f"{name}: {column} was {was.get(column, 0)}, is {now.get(column, 0)}"


def broken_rules(rows):
    for key, columns in sorted(rows.items()):
        def total(pattern):
            return sum(n for column, n in columns.items() if re.fullmatch(pattern, column))

        derived = {"narrow": total(r"(LDG|STG|LDGSTS)\.(8|16|32|64)"), "wide loads": total(r"(LDG|LDGSTS)\.(64|128)"),
                   "wide stores": total(r"STG\.(64|128)"),
                   "per HMMA": columns.get("between", 0) / max(columns.get("HMMA", 0), 1)}
        for *patterns, column, comparison, limit, reason in RULES:
            if all(re.fullmatch(pattern, part) for pattern, part in zip(patterns, key)):
                value = derived.get(column, columns.get(column, 0))
                if not (value <= limit if comparison == "<=" else value >= limit):
                    yield f"{' '.join(key)}: {column} is {value:.4g}, the rule is {comparison} {limit}: {reason}"


def dead_rules(rows):
    for *patterns, _, _, _, reason in RULES:
        if not any(all(re.fullmatch(pattern, part) for pattern, part in zip(patterns, key)) for key in rows):
            yield f"the rule for {' '.join(patterns)} ({reason}) is about no kernel"


def main():
    parser = argparse.ArgumentParser(description="Compares the machine code of CUDA kernels with a checked-in table.")
    parser.add_argument("--update", action="store_true", help="write the table instead of comparing with it")
    parser.add_argument("--complete", action="store_true", help="these are all objects: a rule about no kernel is a problem")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("objects", type=Path, nargs="+", metavar="OBJECT")
    arguments = parser.parse_args()
    rows, compiler = measure(arguments.objects)
    problems = list(broken_rules(rows)) + list(dead_rules(rows) if arguments.complete else [])
    if arguments.update:
        arguments.table.write_text(write_table(rows, compiler), encoding="utf-8")
    else:
        was_rows, was_compiler = read_table(arguments.table.read_text(encoding="utf-8"))
        if compiler == was_compiler:
            problems += differences(rows, was_rows)
        else:
            print(f"kernel_table.py: only the rules are checked: the table is of compiler {was_compiler}, not {compiler}")
    for problem in problems:
        print(problem)
    print(f"kernel_table.py: {len(rows)} kernel instances, {len(problems)} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
