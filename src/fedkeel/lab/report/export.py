"""The table of a comparison for papers and spreadsheets: LaTeX, Markdown, CSV, HTML."""

from __future__ import annotations

import csv
import html
import io
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..stats import Gain, interval
from .captions import CLIENT_HEADS, CLIENTS_ARE, has_clients
from .verdict import COSTS, Comparison, end_head, table

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "–": "--",
    "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip


def texts(c: Comparison) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of the report's table, with the names of the algorithms in front."""
    made = table(c)
    return ["algorithm", *made["heads"]], [[arm.name, *row] for arm, row in zip(c.arms, made["rows"], strict=True)]


def latex(c: Comparison) -> str:
    """A tabular for the package booktabs; the best end is bold, with all that are not clearly behind it."""
    heads, rows = texts(c)
    place, best = heads.index(end_head(c)), c.best_at_the_end()
    bold = [] if best is None or len(c.arms) == 1 else [best, *c.tied(best, c.ahead)]
    lines = [[_escaped(cell) for cell in row] for row in rows]
    for arm, cells in zip(c.arms, lines, strict=True):
        if arm in bold:
            cells[place] = f"\\textbf{{{cells[place]}}}"
    what = "bold: the best end, and every arm that is not clearly behind it (95 %)"
    return _tabular(heads, lines, [f"needs \\usepackage{{booktabs}}; {what}", *table(c)["notes"]])


def _tabular(heads: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]) -> str:
    """A tabular of rows that are LaTeX already, below its notes as comments."""
    lines = [f"% {note}" for note in notes]
    lines += [f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", "\\toprule"]
    lines += [" & ".join(map(_escaped, heads)) + " \\\\", "\\midrule"]
    lines += [" & ".join(row) + " \\\\" for row in rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _escaped(text: str) -> str:
    """
    >>> print(_escaped("fedavg_m: > +12.0% [-3, 27]"))
    fedavg\\_m: $>$ +12.0\\% [$-$3, 27]
    """
    text = "".join(SPECIAL.get(character, character) for character in text)
    return re.sub(r"(?<![\w}])-(?=\d)", "$-$", text)


def markdown(c: Comparison) -> str:
    """A table of pipes."""
    return _pipes(*texts(c))


def _pipes(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    marks = ["---", *["---:"] * (len(heads) - 1)]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in (heads, marks, *rows))


def as_html(c: Comparison) -> str:
    """A plain HTML table."""
    heads, rows = texts(c)
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heads)
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    notes = html.escape(" ".join(table(c)["notes"]))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{notes}</p>"


def as_csv(comparisons: Mapping[str, tuple[str, Comparison]]) -> str:
    """Plain numbers, a row for each algorithm; empty where there is none. By directory: the task and its comparison."""
    rows: list[dict[str, Any]] = []
    for folder, (task, c) in comparisons.items():
        place = {"directory": folder} if len(comparisons) > 1 else {}
        rows += ({"task": task, **place, **row} for row in numbers(c))
    return _lines(rows)


def _lines(rows: Sequence[Mapping[str, Any]]) -> str:
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    out = io.StringIO()
    written = csv.DictWriter(out, list(names), lineterminator="\n")
    written.writeheader()
    written.writerows(rows)
    return out.getvalue()


def numbers(c: Comparison) -> list[dict[str, Any]]:
    """The numbers behind the table, for each algorithm: costs, end, and gains over the first one with their intervals.

    Costs are those up to the target, or of the whole run if there is none. `reached`: in how many seeds it was.
    """
    base, rows = c.arms[0], []
    costs = {cost: name for cost, name in COSTS.items() if any(arm.mean_cost(cost) is not None for arm in c.arms)}
    for arm in c.arms:
        finals = list(arm.finals.values())
        row: dict[str, Any] = {"algorithm": arm.name, "seeds": len(arm.histories), "diverged": arm.diverged}
        if c.target is not None:
            row |= {"target": c.target, "reached": len(arm.histories) - arm.missed}
        for cost, name in costs.items():
            row[re.sub(r"\W+", "_", name)] = None if c.target is not None and arm.never else arm.mean_cost(cost)
        row |= {c.metric: statistics.mean(finals) if finals else None, f"{c.metric}_95": interval(finals)}
        row |= {column: arm.mean_last(column) for column in CLIENT_HEADS if has_clients(c.arms)}
        if c.target is not None:
            row |= _gain("speedup", Gain() if arm is base else arm.speedup(base))
        row |= _gain("better", (None if arm is base else c.ahead(arm, base)) or Gain())
        rows.append(row)
    return rows


def _gain(name: str, gain: Gain) -> dict[str, float | None]:
    """A gain and the ends of its interval; a bound is the end of an interval of which the other end is not known."""
    low, high = (gain.low, gain.high) if gain.low is not None else (gain.more_than, gain.less_than)
    return {name: gain.value, f"{name}_low": low, f"{name}_high": high}


def client_texts(clients: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of the table of clients, as `Comparison.clients` has them."""
    heads = ["client", "test rows", *clients[0]["accuracy"]]
    rows = []
    for one in clients:
        scores = ["–" if value is None else f"{value:.4f}" for value in one["accuracy"].values()]
        rows.append([one["client"], f"{one['test_rows']:,}", *scores])
    return heads, rows


def clients_latex(clients: Sequence[Mapping[str, Any]]) -> str:
    """The table of clients for LaTeX with booktabs."""
    heads, rows = client_texts(clients)
    lines = ([_escaped(cell) for cell in row] for row in rows)
    return _tabular(heads, lines, ["needs \\usepackage{booktabs}", CLIENTS_ARE])


def clients_markdown(clients: Sequence[Mapping[str, Any]]) -> str:
    """The table of clients in Markdown."""
    return _pipes(*client_texts(clients))


def clients_csv(comparisons: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]]) -> str:
    """The clients as plain numbers, a row for each; by directory: the task and its clients."""
    rows: list[dict[str, Any]] = []
    for folder, (task, clients) in comparisons.items():
        place = {"directory": folder} if len(comparisons) > 1 else {}
        for one in clients:
            known = {"client": one["client"], "test_rows": one["test_rows"]}
            rows.append({"task": task, **place, **known, **one["accuracy"]})
    return _lines(rows)
