"""results.json as a page and a chart. Every number on them comes from that file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from engines import ENGINES, FLOOR, LIMIT, NAIVE
from workloads import WORKLOADS

COMPILED = "fedkeel, --compile"
# What we set out to reach before anything was measured, as ratios to the best naive loop: (needed, hoped for).
TARGETS = {
    ("fedkeel, any model", "W1"): (9.0, None), ("fedkeel", "W1"): (20.0, None), (COMPILED, "W1"): (40.0, 67.0),
    ("fedkeel", "W2"): (1.6, 1.8), (COMPILED, "W2"): (2.0, None),
    ("fedkeel", "W3"): (1.6, 1.9), (COMPILED, "W3"): (2.0, None),
    ("fedkeel", "W4"): (1.45, 1.65), ("fedkeel", "W5"): (1.6, 1.95), (COMPILED, "W5"): (1.6, 1.95),
}  # fmt: skip
MEMORY = {"W1": 2 / 3, "W2": 2 / 3, "W3": 3 / 4, "W4": 2 / 3, "W5": 2 / 3}  # at most this share of pfl's two processes
PFL = "pfl, 2 processes"
NOT_HERE = """## What was not measured

Nothing was run on a GPU. With `--device cuda` or `mps` the data and the models move there once, before round 1; what
crosses later is a batch's index and, once per chunk of clients, whether updates are finite. A test counts that a round
in lockstep waits for values of the device no more often when it has more clients or more steps; on `cpu` that is all
that can be tested. On other devices there is one worker, and the size bound of `auto` is the one measured on CPUs.
Embedding and normalisation layers run in lockstep by vmap; linear layers, ReLU, tanh, sigmoid and cross-entropy have
their derivatives written out; everything else that is not in lockstep runs one client at a time. `--compile` has C for
chains of plain layers in lockstep, and where clients run one at a time for convolutions of 3 x 3 and 5 x 5, and for
those with 2 x 2 max-pooling and a ReLU behind them; it is refused for models with none of these.""".splitlines()
Results = dict[str, Any]


def write(results: Results, docs: Path) -> None:
    """docs/speed.md and docs/speed.svg."""
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "speed.md").write_text(page(results))
    (docs / "speed.svg").write_text(chart(results))


def good(results: Results, workload: str, engine: str) -> list[dict[str, Any]]:
    """The cells of this engine and workload that ran."""
    cells = results["cells"]
    return [c for c in cells if c["workload"] == workload and c["engine"] == engine and "error" not in c]


def ratios(results: Results, workload: str, engine: str, others: Sequence[str] = NAIVE) -> list[float]:
    """Pass by pass, the speed over that of the fastest of these in the same pass; by default, of the naive loops."""
    base: dict[int, float] = {}
    for name in others:
        for cell in good(results, workload, name):
            base[cell["pass"]] = max(base.get(cell["pass"], 0.0), cell["steps_per_s"])
    return [c["steps_per_s"] / base[c["pass"]] for c in good(results, workload, engine) if c["pass"] in base]


def spread(values: Sequence[float], style: str = "{:.3g}") -> str:
    """The median and, in brackets, the range.

    >>> spread([1.0, 3.0, 2.0])
    '2 (1-3)'
    """
    if not values:
        return "-"
    middle = style.format(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({style.format(min(values))}-{style.format(max(values))})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)] + [""]


def shown(results: Results) -> tuple[list[str], list[str]]:
    """The workloads and engines of this file, in the order of our tables."""
    seen = {(c["workload"], c["engine"]) for c in results["cells"]}
    return [w for w in WORKLOADS if any(w == s for s, _ in seen)], [e for e in ENGINES if any(e == s for _, s in seen)]


def grid(results: Results, cell: Callable[[str, str], str]) -> list[str]:
    workloads, engines = shown(results)
    return table(["engine", *workloads], [[engine, *(cell(w, engine) for w in workloads)] for engine in engines])


def page(results: Results) -> str:
    """The text of docs/speed.md."""
    workloads, _ = shown(results)
    machine = results["machine"]
    lines = [
        "# Speed",
        "",
        f"Made by `make bench` ({results['date']}, commit {results['commit']}): {machine['cpu']},",
        f"{machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}, Python {machine['python']};",
        f"load before the start {machine['load_at_start']:.2f}.",
        f"{results['passes']} passes, {results['seconds']:g} s of rounds per cell.",
        *([results["note"]] if "note" in results else []),
        "",
        "![Speed over the best naive loop](speed.svg)",
        "",
        "FedAvg, client SGD with momentum 0.9, mean weighted by samples, random data in memory, no evaluation while",
        "time is taken. Engines take turns within a pass, second by second (slow ones, which ran in fewer passes,",
        "come after the others); a ratio compares with the best naive loop (deepcopy, DataLoader, torch.optim.SGD;",
        "one thread or two) of the same pass. A number is the median over passes, in brackets the range.",
        f"{FLOOR.capitalize()}: forward and backward passes on all cores, nothing learned or sent.",
        "fedkeel is torch alone, its default; --compile is the same with C kernels, where the model has some: chains",
        "of plain layers (W1) and convolutions of 3 x 3 or 5 x 5. There are none for LSTMs.",
        f"{LIMIT.capitalize()}: as many multiplications as the gradients have, in matrix products of 512 by 512;",
        "how near an engine is to that tells how much of the machine it uses. Convolutions by C need fewer.",
        "",
        *table(
            ["", "", "model", "clients", "cohort", "batch", "steps"],
            [[w.name, w.title, w.about, *(str(v) for v in (w.clients, w.cohort, w.batch, w.steps))]
             for w in WORKLOADS.values() if w.name in workloads],
        ),
        "## Ratio to the best naive loop",
        "",
        *grid(results, lambda w, e: spread(ratios(results, w, e))),
        *targets(results),
        "## Local steps per second",
        "",
        *grid(results, lambda w, e: spread([c["steps_per_s"] for c in good(results, w, e)])),
        "## Peak memory, MB",
        "",
        "Of the process and all below it, shared pages counted once (PSS from /proc), looked at every half second.",
        "With --compile, a C compiler runs once, before round 1.",
        "",
        *grid(results, lambda w, e: spread([c["memory_mb"] for c in good(results, w, e)], "{:.0f}")),
        "## Seconds from launch to the end of the first round",
        "",
        "Imports, reading the data and compiling included.",
        "",
        *grid(results, lambda w, e: spread([c["startup_s"] for c in good(results, w, e)], "{:.1f}")),
    ]  # fmt: skip
    parts = [lines, failures(results), versions(results), sections(results), NOT_HERE]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def targets(results: Results) -> list[str]:
    """What we set out to reach beside what came out, and the fastest other framework of the same run."""
    rows = []
    for (engine, workload), (needed, hoped) in TARGETS.items():
        if not (found := ratios(results, workload, engine)):
            continue
        peers = [e for e in shown(results)[1] if ENGINES[e].peer is not None]
        others = {e: statistics.median(r) for e in peers if (r := ratios(results, workload, e))}
        fastest = max(others, key=lambda e: others[e], default=None)
        ahead = [ratio > 1 for ratio in ratios(results, workload, engine, peers)]
        rows.append([
            workload, engine, f"{needed:g}", f"{statistics.median(found):.3g}",
            "yes" if statistics.median(found) >= needed else "**no**", "-" if hoped is None else f"{hoped:g}",
            "-" if fastest is None else f"{fastest} {others[fastest]:.3g}",
            f"{sum(ahead)} of {len(ahead)} passes" if ahead else "-", *memory(results, workload, engine),
            *(spread(ratios(results, workload, engine, [bound]), "{:.2f}") for bound in (FLOOR, LIMIT)),
        ])  # fmt: skip
    head = [
        "", "engine", "needed", "got", "reached", "hoped for", "fastest other", "ahead of all others in",
        "memory / pfl's", "wanted", f"of {FLOOR}", f"of {LIMIT}",
    ]  # fmt: skip
    notes = [
        f"A ratio also depends on how well the naive loop uses the machine; the share of {LIMIT} does not.",
        "[The same on another machine](speed-xeon.md).",
    ]
    return ["What was wanted, set before anything was measured:", "", *table(head, rows), *notes, ""] if rows else []


def memory(results: Results, workload: str, engine: str) -> tuple[str, str]:
    """Peak memory over that of pfl with two processes, and what was wanted."""
    mine, theirs = ([c["memory_mb"] for c in good(results, workload, name)] for name in (engine, PFL))
    if not mine or not theirs:
        return "-", "-"
    return f"{statistics.median(mine) / statistics.median(theirs):.2f}", f"at most {MEMORY[workload]:.2f}"


def failures(results: Results) -> list[str]:
    """What did not install or run, in its own words."""
    told = [f"- {peer}: {problem}" for peer, problem in results["missing"].items()]
    for cell in results["cells"]:
        line = f"- {cell['engine']} on {cell['workload']}: {cell.get('error')}"
        if "error" in cell and line not in told:
            told.append(line)
    return ["## What did not run", "", *told, ""] if told else []


def versions(results: Results) -> list[str]:
    known: dict[str, str] = {}
    for cell in results["cells"]:
        known |= {name: found for name, found in cell.get("versions", {}).items() if found}
    return ["Versions: " + ", ".join(f"{name} {known[name]}" for name in sorted(known)) + ".", ""] if known else []


def sections(results: Results) -> list[str]:
    """The measurements of fedkeel alone."""
    lines: list[str] = []
    for name, (title, draw) in DRAWN.items():
        found = results["sections"].get(name)
        if found is not None:
            lines += [
                f"## {title}",
                "",
                *([f"Not measured: {found['error']}", ""] if "error" in found else draw(found)),
            ]
    return lines


def scale(found: Results) -> list[str]:
    rows = [
        [f"{r['clients']:,}", f"{r['cohort']:,}", f"{r['round_s'] * 1e3:.3g}", f"{r['steps_per_s']:,.0f}",
         f"{r['peak_mb']:,.0f}", f"{r['data_mb']:,.0f}"]
        for r in found["rows"]
    ]  # fmt: skip
    return table(["registered", "cohort", "ms per round", "steps/s", "peak MB (resident)", "of which inputs, MB"], rows)


def rules(found: Results) -> list[str]:
    names = list(dict.fromkeys(r["workload"] for r in found["rows"]))
    cells = {(r["rule"], r["workload"]): spread(r["ratios"], "{:.2f}") for r in found["rows"]}
    kinds = list(dict.fromkeys(r["rule"] for r in found["rows"]))
    told = (
        "Time per round over that of FedAvg's rounds just before and after it, with the same local steps: medians of\n"
        "all rounds, in three repetitions, each rule in a process of its own. A round has two clients per worker, who\n"
        "have been there before. Extra gradients a rule asks for are in it; the row of FedAvg itself is noise alone."
    )
    return [told, "", *table(["rule", *names], [[k, *(cells.get((k, n), "-") for n in names)] for k in kinds])]


def layers(found: Results) -> list[str]:
    told = (
        "One layer there and back, one thread, in turns. With `--compile`, C is used for what it was seen to be\n"
        "faster with: convolutions of stride 1 from c to k channels, c k at most 256 x 256 and both multiples of 16,\n"
        "whose tiles save half of the multiplications; and of up to 64 / kernel channels with max-pooling and a ReLU,\n"
        'here "pooled", as one layer.'
    )
    shown = [(r["layer"], r["torch_s"], r["c_s"], r["ratio"]) for r in found["rows"]]
    rows = [[name, f"{1e3 * torch:.2f}", f"{1e3 * c:.2f}", f"{ratio:.2f}"] for name, torch, c, ratio in shown]
    return [told, "", *table(["layer", "torch, ms", "compiled C, ms", "torch / C"], rows)]


def profile(found: Results) -> list[str]:
    told = (
        "Shares of the time of a round, one worker, torch alone, as torch's profiler counts them: every line of 3 %\n"
        "or more. Names without `aten` are ours: `_Linear` is a large layer that writes its own derivative.\n"
        "A profile slows many small operations down, so W1's is more about them than a round is."
    )
    rows = []
    for row in found["rows"]:
        lines = sorted(row["lines"].items(), key=lambda line: -line[1])
        shown = ", ".join(f"{name} {share:.0%}" for name, share in lines)
        rows.append([row["workload"], shown, f"{row['rest']:.0%}"])
    return [told, "", *table(["", "lines", "the rest"], rows)]


def startup(found: Results) -> list[str]:
    told = "A fresh interpreter, median of five."
    return [told, "", *table(["", "seconds"], [[name, f"{seconds:.2f}"] for name, seconds in found["rows"]])]


def crossover(found: Results) -> list[str]:
    rows = []
    for r in found["rows"]:
        compiled = r.get("compiled")
        speeds = [f"{r[mode]:,.0f}" for mode in ("serial", "batched")] + [f"{compiled:,.0f}" if compiled else "-"]
        ratios = [f"{r['batched'] / r['serial']:.2f}", f"{compiled / r['batched']:.2f}" if compiled else "-"]
        work = f"{r['operations'] / 1e6:.3g}"
        rows.append([r["model"], f"{r['parameters']:,}", str(r["batch"]), work, *speeds, *ratios])
    modes = ["serial, steps/s", "batched, steps/s", "--compile, steps/s", "batched / serial", "--compile / batched"]
    told = (
        "Left to choose, fedkeel runs clients in lockstep (batched) up to 100,000 parameters if the model is a chain\n"
        "of plain layers; other models up to 40,000, if a client's step takes at most 10 million operations."
    )
    return [told, "", *table(["model", "parameters", "batch", "million operations", *modes], rows)]


DRAWN: dict[str, tuple[str, Callable[[Results], list[str]]]] = {
    "scale": ("Many clients (fedkeel, W1's model)", scale),
    "rules": ("What a rule costs (fedkeel)", rules),
    "startup": ("Start (fedkeel)", startup),
    "crossover": ("Serial, batched or compiled (fedkeel, cohort 20)", crossover),
    "profile": ("Where the time goes (fedkeel)", profile),
    "layers": ("Layers by torch or by compiled C (fedkeel)", layers),
}

# One set of greys and one accent, that read on white and on black.
STYLE = """<style>
text { font: 12px sans-serif; fill: #57606a } .title { font-weight: bold } .bar { fill: #8c959f } .own { fill: #0969da }
.base { stroke: #57606a; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) { text { fill: #9198a1 } .bar { fill: #656c76 } .own { fill: #4493f8 }
.base { stroke: #9198a1 } }
</style>"""
LEFT, WIDE, LINE = 150, 420, 18


def chart(results: Results) -> str:
    """Bars of the ratios, one group per workload, on a logarithmic axis."""
    workloads, engines = shown(results)
    bars = [(w, e, statistics.median(found)) for w in workloads for e in engines if (found := ratios(results, w, e))]
    low, high = min([0.5, *(b[2] for b in bars)]), max([2.0, *(b[2] for b in bars)])

    def across(value: float) -> float:
        return WIDE * math.log(value / low) / math.log(high / low)

    parts, y = [], 20
    for workload in workloads:
        parts.append(f'<text class="title" x="10" y="{y}">{workload} {escape(WORKLOADS[workload].title)}</text>')
        for _, engine, value in (bar for bar in bars if bar[0] == workload):
            y += LINE
            kind = "own" if engine.startswith("fedkeel") else "bar"
            parts.append(
                f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(engine)}</text>'
                f'<rect class="{kind}" x="{LEFT}" y="{y - 11}" width="{max(1.0, across(value)):.1f}" height="13"/>'
                f'<text x="{LEFT + across(max(value, 1.0)) + 6:.1f}" y="{y}">{value:.3g}x</text>'  # right of the line
            )
        y += 2 * LINE
    one = LEFT + across(1.0)
    parts.append(f'<line class="base" x1="{one:.1f}" x2="{one:.1f}" y1="26" y2="{y - LINE}"/>')
    parts.append(f'<text x="10" y="{y}">Speed over the best naive loop, logarithmic axis; the dashed line is 1.</text>')
    size = f'width="{LEFT + WIDE + 70}" height="{y + 12}" viewBox="0 0 {LEFT + WIDE + 70} {y + 12}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{STYLE}\n' + "\n".join(parts) + "\n</svg>\n"
