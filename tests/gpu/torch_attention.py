#!/usr/bin/env python3
"""PyTorch's attention at the shapes of `gpu_check attention`, on the same GPU, as a table and as JSON.

  tests/gpu/torch_attention.py [--out FILE] [--tiny]

Causal scaled_dot_product_attention in bf16 on random data; the median of 20 runs by CUDA events, caches overwritten
before each. Exit code 3 where PyTorch or its GPU is missing.
"""
import argparse
import json
import sys

SHAPES = [(64, 1024, 12, 64), (8, 2048, 16, 128), (1, 8192, 32, 128)]


def median_seconds(torch, run, flushed, repeats=20):
    times = []
    for i in range(repeats + 3):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) * 1e-3)
    return sorted(times)[len(times) // 2]


def measure(torch, shape):
    batch, length, heads, dim = shape
    flushed = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    q, k, v = (torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention
    out = attention(q, k, v, is_causal=True)
    dout = torch.randn_like(out)
    forward = median_seconds(torch, lambda: attention(q, k, v, is_causal=True), flushed)
    backward = median_seconds(torch, lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), flushed)
    flops = 2.0 * batch * heads * length * length * dim
    return {"[B,T,H,D]": str(list(shape)), "forward TFLOP/s": flops / forward * 1e-12,
            "backward TFLOP/s": 2.5 * flops / backward * 1e-12}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--tiny", action="store_true", help="one small shape")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch_attention: python3 has no torch")
        return 3
    if not torch.cuda.is_available():
        print("torch_attention: torch finds no GPU")
        return 3
    rows = [measure(torch, shape) for shape in ([(1, 64, 2, 64)] if arguments.tiny else SHAPES)]
    title = f"scaled_dot_product_attention of PyTorch {torch.__version__}"
    print(f"\ntorch: {title}\n  {'[B,T,H,D]':<44} {'forward TFLOP/s':>16} {'backward TFLOP/s':>16}")
    for row in rows:
        print(f"  {row['[B,T,H,D]']:<44} {row['forward TFLOP/s']:>16.1f} {row['backward TFLOP/s']:>16.1f}")
    if arguments.out:
        report = {"step": "torch", "emulated": False, "passed": True, "failures": [],
                  "tables": [{"title": title, "rows": rows}]}
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
