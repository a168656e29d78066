#!/usr/bin/env python3
"""Checks the rules of the source tree that a compiler does not: who may include whom, where a library's headers may
appear, lengths, and a README in every folder.

  scripts/check_includes.py [ROOT]     prints one line per violation, exits 1 when there is any
"""
import re
import sys
from pathlib import Path

# The include direction: a folder may include itself, what stands here, and what those may include.
DIRECTLY_BELOW = {
    "runtime/base": [],
    "runtime/disk": ["runtime/base"],
    "runtime/device": ["runtime/base"],
    "runtime/tensor": ["runtime/device"],
    "runtime/comm": ["runtime/tensor"],
    "runtime/data": ["runtime/comm"],
    "runtime/checkpoint": ["runtime/comm", "runtime/disk"],
    "runtime/metrics": ["runtime/comm"],
    "kernels": ["runtime/tensor"],
    "parallel/grid": ["runtime/comm"],
    "parallel/layers": ["runtime/data", "kernels"],
    "parallel/schedule": ["runtime/base"],
    "parallel/pipeline": ["parallel/layers", "parallel/schedule", "parallel/grid"],
    "parallel/zero": ["parallel/pipeline", "runtime/disk"],
    "parallel/model": ["parallel/pipeline", "runtime/checkpoint"],
    "parallel/plan": ["parallel/schedule", "parallel/model", "parallel/zero"],
    "parallel/train": ["runtime/data", "runtime/checkpoint", "runtime/metrics", "parallel/zero", "parallel/model",
                       "parallel/plan"],
    "examples": ["parallel/train"],
}

# Headers of libraries that stay in their folder, so that their types cannot leak into ours.
LIBRARY_FOLDERS = [
    ("MPI", r"(open)?mpi(-ext)?\.h$|mpi/", ["runtime/comm/mpi"]),
    ("CUDA", r"(cuda|vector_types|cublas|curand|cudnn|nvtx|nvToolsExt|cooperative_groups|cub/|thrust/)", ["*/cuda", "tests/emulation"]),
    ("NCCL", r"nccl", ["*/nccl"]),
    ("oneDNN", r"(dnnl|oneapi/)", ["kernels/cpu"]),
    ("liburing", r"liburing", ["runtime/disk/uring"]),
    ("spdlog", r"spdlog/", ["runtime/base"]),
    ("CLI11", r"CLI/", ["parallel/train", "examples", "tests/gpu"]),
    ("toml++", r"toml\+\+/", ["parallel/train"]),
    ("xxHash", r"xxhash\.h$", ["runtime/base", "runtime/data", "runtime/checkpoint"]),
]

PRIVATE_FOLDERS = {"runtime/comm/mpi": "runtime/comm", "runtime/comm/thread": "runtime/comm",
                   "runtime/comm/host": "runtime/comm", "kernels/cpu": "kernels", "kernels/cuda": "kernels",
                   "runtime/disk/uring": "runtime/disk"}

# Our own headers that bring CUDA's types along: only folders that may include CUDA's or NCCL's headers include them.
CUDA_CARRIERS = ["runtime/device/cuda/cuda_check.h", "runtime/device/cuda/cuda_stream.h"]

# Names of the place where the project was written; a checkout elsewhere has no such paths.
FOREIGN_WORDS = ["/work/", "../shared"]

SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".py", ".sh", ".cmake", ".md", ".txt", ".json"}
MAX_LINES = 600
MAX_README_LINES = 25
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def allowed_below():
    """Folder -> every folder it may include: the closure of DIRECTLY_BELOW."""
    closure = {}

    def visit(folder, on_path=()):
        if folder in on_path:
            raise SystemExit(f"check_includes.py: the table itself has a cycle at {folder}")
        if folder not in closure:
            closure[folder] = {folder}
            for below in DIRECTLY_BELOW[folder]:
                closure[folder] |= visit(below, (*on_path, folder))
        return closure[folder]

    for folder in DIRECTLY_BELOW:
        visit(folder)
    return closure


def folder_of(path):
    """The row of DIRECTLY_BELOW that a path from the root belongs to, or None."""
    for folder in sorted(DIRECTLY_BELOW, key=len, reverse=True):
        if path.startswith(folder + "/"):
            return folder
    return None


def inside(path, pattern):
    if pattern.startswith("*/"):
        return f"/{pattern[2:]}/" in f"/{path}"
    return path.startswith(pattern + "/")


def project_files(root):
    for top in ["CMakeLists.txt", "cmake", "runtime", "kernels", "parallel", "examples", "tests", "scripts", ".ci",
                "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CMakePresets.json"]:
        start = root / top
        files = [start] if start.is_file() else sorted(start.rglob("*")) if start.is_dir() else []
        for path in files:
            if path.is_file() and "__pycache__" not in path.parts:
                yield path, path.relative_to(root).as_posix()


def check_source(root, name, lines, below, problems):
    """Returns the project's headers that this file includes."""
    headers = []
    folder = folder_of(name)
    if folder is None and name.split("/")[0] in ("runtime", "parallel"):
        problems.append(f"{name}: this folder is not in the include order of scripts/check_includes.py")
    if name.endswith(".h") and not any(line.strip() == "#pragma once" for line in lines):
        problems.append(f"{name}: a header without #pragma once")
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        place = f"{name}:{number}"
        for library, pattern, folders in LIBRARY_FOLDERS:
            if re.match(pattern, target) and not any(inside(name, f) for f in folders):
                problems.append(f"{place}: {library} header <{target}> outside {', '.join(folders)}")
        if quote != '"':
            continue
        if not (root / target).is_file():
            if not any(re.match(pattern, target) for _, pattern, _ in LIBRARY_FOLDERS):
                problems.append(f'{place}: "{target}" is no path from the repository root')
            continue
        headers.append(target)
        if target in CUDA_CARRIERS and not any(inside(name, f) for f in ["*/cuda", "*/nccl", "tests/emulation"]):
            problems.append(f"{place}: {target} brings CUDA's headers along, outside */cuda and */nccl")
        if name.startswith("tests/"):
            continue
        if target.startswith("tests/"):
            problems.append(f"{place}: includes a test's header {target}")
        goal = folder_of(target)
        if folder and goal and goal not in below[folder]:
            problems.append(f"{place}: {folder} may not include {goal} ({target})")
        for private, owner in PRIVATE_FOLDERS.items():
            if target.startswith(private + "/") and not name.startswith(owner + "/"):
                problems.append(f"{place}: {target} is private to {owner}")
    return headers


def find_cycles(graph, problems):
    done, path = set(), []

    def visit(name):
        if name in path:
            problems.append("include cycle: " + " -> ".join(path[path.index(name):] + [name]))
            return
        if name in done:
            return
        path.append(name)
        for target in graph.get(name, []):
            visit(target)
        path.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


def check_readmes(root, problems):
    for folder in [*DIRECTLY_BELOW, *(p.relative_to(root).as_posix() for p in (root / "examples").glob("*"))]:
        if folder == "examples" or not any(p.suffix in SOURCE_SUFFIXES for p in (root / folder).glob("*")):
            continue
        readme = root / folder / "README.md"
        if not readme.is_file():
            problems.append(f"{folder}: no README.md")
        elif (count := len(readme.read_text(encoding="utf-8").splitlines())) > MAX_README_LINES:
            problems.append(f"{folder}/README.md: {count} lines, at most {MAX_README_LINES}")


def check_tree(root):
    problems, graph = [], {}
    below = allowed_below()
    for path, name in project_files(root):
        if path.suffix not in TEXT_SUFFIXES and path.name != "run":
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if len(lines) > MAX_LINES and path.suffix != ".md":
            problems.append(f"{name}: {len(lines)} lines, at most {MAX_LINES}")
        if path.suffix in SOURCE_SUFFIXES:
            graph[name] = check_source(root, name, lines, below, problems)
        if not name.startswith("tests/") and name != "scripts/check_includes.py":
            for number, line in enumerate(lines, 1):
                problems.extend(f"{name}:{number}: mentions {word}" for word in FOREIGN_WORDS if word in line)
    find_cycles(graph, problems)
    check_readmes(root, problems)
    return problems


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    problems = check_tree(root.resolve())
    for problem in problems:
        print(problem)
    print(f"check_includes.py: {len(problems)} violation{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
