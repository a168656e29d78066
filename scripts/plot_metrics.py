#!/usr/bin/env python3
"""Draws the loss curve of a run as SVG from its --metrics-file. Standard library only.

usage: scripts/plot_metrics.py metrics.jsonl loss.svg [title]
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 420, 62, 20, 44, 48


def nice_step(span, count):
    raw = span / count
    scale = 10 ** math.floor(math.log10(raw))
    return next(scale * m for m in (1, 2, 2.5, 5, 10) if scale * m >= raw)


def ticks(low, high, count):
    step = nice_step(high - low, count)
    first = math.ceil(low / step - 1e-9) * step
    return [first + i * step for i in range(int((high - first) / step + 1e-9) + 1)]


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    train, valid = [], []
    try:
        with open(sys.argv[1]) as file:
            lines = file.readlines()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"plot_metrics.py: {sys.argv[1]}: cannot be read as a --metrics-file: {error}")
    for number, line in enumerate(lines, 1):
        try:
            point = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):
                break  # a killed run leaves half a line
            sys.exit(f"plot_metrics.py: {sys.argv[1]}: line {number} is not a line of metrics")
        curve = {"train": train, "validation": valid}.get(point["kind"])
        if curve is not None and isinstance(point["loss"], (int, float)):
            curve.append((point["step"], point["loss"]))
    if not train:
        sys.exit(f"{sys.argv[1]}: no training steps in it")
    losses = [loss for _, loss in train + valid]
    low, high = min(losses), max(losses)
    pad = max(0.05 * (high - low), 1e-3)
    low, high = low - pad, high + pad
    last = max(max(step for step, _ in train), 2)

    def x(step):
        return LEFT + (step - 1) / (last - 1) * (WIDTH - LEFT - RIGHT)

    def y(loss):
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def path(points):
        return " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in points)

    title = sys.argv[3] if len(sys.argv) == 4 else "training and validation loss"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{title.replace("&", "&amp;").replace("<", "&lt;")}</text>',
    ]
    for tick in ticks(low, high, 6):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(1, last, 8):
        out.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">step</text>')
    out.append(f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">loss (nats per token)</text>')
    out.append(f'<polyline points="{path(train)}" fill="none" stroke="#4878b0" stroke-width="1.3"/>')
    legend = WIDTH - RIGHT - 150
    out.append(f'<line x1="{legend}" x2="{legend + 24}" y1="60" y2="60" stroke="#4878b0" stroke-width="2"/>')
    out.append(f'<text x="{legend + 30}" y="64">training, each step</text>')
    if valid:
        out.append(f'<polyline points="{path(valid)}" fill="none" stroke="#c8442c" stroke-width="2"/>')
        out.extend(f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3.5" fill="#c8442c"/>' for s, v in valid)
        s, v = valid[-1]
        out.append(f'<text x="{x(s) - 6:.1f}" y="{y(v) - 10:.1f}" text-anchor="end" fill="#c8442c">{v:.3f}</text>')
        out.append(f'<circle cx="{legend + 12}" cy="80" r="3.5" fill="#c8442c"/>')
        out.append(f'<text x="{legend + 30}" y="84">validation</text>')
    out.append("</svg>")
    with open(sys.argv[2], "w") as svg:
        svg.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
