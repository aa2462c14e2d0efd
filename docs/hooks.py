"""What `make docs` adds to the pages of this folder: a page for every algorithm, the API reference, the change log.

Algorithm pages come from the tables that `fedkeel explain` prints, so they cannot differ from the code. Links that
leave this folder, to source files, become the file's name: the site is a site, not a view of the repository.
"""

from __future__ import annotations

import html
import inspect
import os
import re
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedkeel as fk
from fedkeel import conformance, grammar, recipes
from fedkeel.advice import ADVICE, STATEFUL
from fedkeel.errors import InputError
from fedkeel.explain import explain
from fedkeel.lab.reproduce import HEADINGS, plan
from fedkeel.notation import UNSET

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
TRIED = {  # what a page tries, where that is not a comparison with FedAvg
    "fedavg": "synthetic fedavg fedavgcm --rounds 50",
    "sgd": "synthetic sgd:lr=0.01 sgd:lr=0.1 --rounds 50",
    "gel": "synthetic fedavgcm fedavgcm+gel fedavgcm:server_lr=match-gel --rounds 50",
    "ghbm": "synthetic fedavg ghbm:tau=10 --rounds 50",  # by default tau is 50 there: it would not begin to push
    "moon": "blobs-wide fedavg moon --rounds 50 --cohort 4",  # its model has representations
    "heterofl": "blobs-wide fedavg:level=e heterofl --rounds 50 --cohort 4",  # its model has widths
    "scalefl": "fmnist fedavg:level=1 heterofl scalefl --rounds 30",  # its model has early exits
}
OTHER_RESULTS = {"no-tuning": ("DeltaSGD and FATHOM on LEAF Synthetic", ("deltasgd", "fathom"))}  # of no paper's table
OURS = {"../CHANGELOG.md": "changelog.md", "../CONTRIBUTING.md": "contributing.md"}
UNFILLED = ("SETTINGS", "--8", "SharedConfig.", "RunConfig.")  # settings, included files, defaults


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File  # here, because tests read this file without mkdocs

    changes = (ROOT / "CHANGELOG.md").read_text()
    pages = {"algorithms/index.md": overview(), "api.md": reference(), "changelog.md": changes}
    pages["contributing.md"] = (ROOT / "CONTRIBUTING.md").read_text()
    studies = studies_by_name()
    for name in recipes.KNOWN:
        pages[f"algorithms/{name}.md"] = algorithm_page(name, studies.get(name, []))
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files outside of this folder become their names."""

    def kept(found: re.Match[str]) -> str:
        text, target = found[1], found[2].partition("#")[0]
        place = os.path.normpath(Path(page.file.src_uri).parent / target)
        if not target or re.match(r"[a-z]+:", target) or files.get_file_from_path(place) is not None:
            return found[0]
        if place in OURS:  # a page of the site, too
            return f"[{text}]({os.path.relpath(OURS[place], Path(page.file.src_uri).parent)})"
        name = os.path.normpath(Path("docs") / place)
        return f"`{name}`" if name == text.strip("`./") else f"{text} (`{name}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", kept, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page on which something was not filled in."""
    from mkdocs.exceptions import PluginError

    text = html.unescape(re.sub(r"<[^>]*>", "", output))
    for mark in UNFILLED:
        if mark in text:
            raise PluginError(f"{page.file.src_uri} shows {mark!r}, which should have been filled in.")
    return output


def overview() -> str:
    """All names with what they add to FedAvg."""
    lines = ["# Every algorithm", "", "Each name says what it adds to FedAvg. Names combine with `+`:"]
    lines += ["`fedprox:mu=0.01+gel`. `fedkeel explain NAME` prints formulas, advice and references, also of several"]
    lines += ["names together.", ""]
    for title, known in (("Algorithms", recipes.RECIPES), ("Parts for other algorithms", recipes.PARTS)):
        lines += [f"## {title}", "", "| name | what it adds | use it when |", "|---|---|---|"]
        rows = [f"| [{name}]({name}.md) | {recipe.summary} | {ADVICE[name].use} |" for name, recipe in known.items()]
        lines += [*rows, ""]
    return "\n".join(lines)


def algorithm_page(name: str, studies: list[str]) -> str:
    """Formulas, keys, what is kept and sent, what it cannot be combined with, and where results are."""
    recipe = recipes.KNOWN[name]
    text = name if name in recipes.RECIPES else f"fedavg+{name}"
    summary = f"{recipe.summary[0].upper()}{recipe.summary[1:]}."
    lines = [f"# {name}", "", summary, "", "```text", explain(text), "```", ""]
    advice = ADVICE[name]
    lines += ["## When to use it, and when not", "", f"Use it when {advice.use}.", "", f"Not when {advice.avoid}.", ""]
    if recipe.keys:
        lines += ["## Its keys", "", "| key | default | may be |", "|---|---|---|"]
        for key, value in recipe.keys.items():
            default = UNSET[key] if value is None else f"`{value}`"
            lines += [f"| `{key}` | {default} | {allowed(text, key)} |"]
        lines += [""]
    lines += code_of(text)
    lines += ["## Try it", "", f"    {command(name, text)}", ""]
    refused = refusals(text)
    if refused:
        lines += ["## Not together with", "", *(f"- `{other}`: {why}" for other, why in refused.items()), ""]
    pages = [result(study, name) for study in studies]
    pages += [f"- [{title}](../results/{page}.md)" for page, (title, names) in OTHER_RESULTS.items() if name in names]
    if pages:
        lines += ["## Results", "", *pages, ""]
    return "\n".join(lines)


def allowed(text: str, key: str) -> str:
    """What the last name's key may be, in the words in which anything else is refused."""
    try:
        recipes.algorithm(f"{text}:{key}=?")
    except InputError as error:
        found = re.search(r"must be (.+)\. Got|is not (.+)\.$", str(error))
        return found[1] or found[2] if found else ""
    return "true or false" if isinstance(recipes.KNOWN[grammar.parse(text)[-1][0]].keys[key], bool) else ""


def command(name: str, text: str) -> str:
    """A short comparison with what this algorithm is measured by."""
    often = ADVICE[name].avoid.startswith(STATEFUL)  # what clients remember is of use at their second visit
    usual = f"blobs-wide fedavg {text} --rounds 50 --cohort 4" if often else f"synthetic fedavg {text} --rounds 50"
    return f"fedkeel run {TRIED.get(name, usual)}"


def result(study: str, name: str) -> str:
    """A study's title, linked, and below it its verdicts on claims about this name; where there are none, what the
    study's page says first.
    """
    title, _, *said = (ROOT / "docs" / "results" / f"{study}.md").read_text().splitlines()
    after = dropwhile(lambda line: not line.startswith("- "), said)
    found = verdicts(said, labels(study, name)) or list(takewhile(str.strip, after))
    head = f"- [{study}](../results/{study}.md): {title.removeprefix('# ')}"
    return "\n".join([head, *(f"    {line}" for line in found)])


def labels(study: str, name: str) -> dict[str, str]:
    """What a study calls the arms that end in this name, and their algorithms: `gel` in `fedavgcm+gel`."""
    arms = [pair for panel in plan.load(study).panels for pair in panel.arms.items()]
    return {label: arm.run for label, arm in arms if grammar.parse(arm.run)[-1][0] == name}


def verdicts(lines: list[str], labels: dict[str, str]) -> list[str]:
    """The claims of a results page about one of these arms, each with its panel, algorithm, gain and verdict."""
    panel, heading, judged, found = "", "", False, []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        stand_in = " (a stand-in)" if heading == HEADINGS["stand-in"] else ""
        panel = line.removeprefix("### ") + stand_in if line.startswith("### ") else panel
        judged = line.startswith("| claim |") or (judged and line.startswith("|"))
        for label, run in labels.items():
            if judged and re.match(rf"{re.escape(label)} (needs|is)\b", cells[0]):
                found.append(f"- {panel}: {cells[0]} (`{run}`): {cells[-3]}, {cells[-1]}")
    return found


def code_of(text: str) -> list[str]:
    """The classes of an algorithm's own parts, as the package has them."""
    made = recipes.algorithm(text)
    parts = [*made.rules, made.capacity, made.client, made.server]
    parts += [made.weighing] if made.weighing.stacks else []
    kinds = dict.fromkeys(type(part) for part in parts if part is not None and type(part) is not fk.SGD)
    lines = []
    for kind in kinds:
        file = Path(inspect.getsourcefile(kind) or "").relative_to(ROOT)
        lines += [f"`{file}`:", "", "```python", inspect.getsource(kind).rstrip(), "```", ""]
    return ["## The code", "", *lines] if lines else []


def refusals(text: str) -> dict[str, str]:
    """Names that this algorithm refuses to be combined with, and the reason."""
    found = {}
    own = [name for name, _ in grammar.parse(text)]
    for other in recipes.KNOWN:
        if other in own:
            continue
        try:
            recipes.algorithm(f"{text}+{other}")
        except InputError as error:
            found[other] = str(error)
    return found


def studies_by_name() -> dict[str, list[str]]:
    """The studies in which a name is an arm."""
    found: dict[str, list[str]] = {}
    for study in plan.names():
        names: dict[str, None] = {}
        for panel in plan.load(study).panels:
            for arm in panel.arms.values():
                names |= dict.fromkeys(name for name, _ in grammar.parse(arm.run))
        for name in names:
            found.setdefault(name, []).append(study)
    return found


def reference() -> str:
    """Every public name, and the checks for rules."""
    names = [name for name in fk.__all__ if name[0] != "_" and name not in ("tasks", "trackers")]
    order = sorted(names, key=lambda name: (name[0].isupper(), name.lower()))
    lines = ["# API reference", "All names of `import fedkeel as fk`."]
    lines += [f"::: fedkeel.{place(name)}" for name in order]
    checks = ", ".join(name for name in vars(conformance) if name.startswith("check_"))
    options = f"{{heading_level: 3, group_by_category: false, members_order: source, members: [{checks}]}}"
    lines += ["## Checks for your own rule", f"::: fedkeel.conformance\n    options: {options}"]
    return "\n\n".join(lines) + "\n"


def place(name: str) -> str:
    """Where the site finds a public name: in its module, if that is imported when used or has the name of another."""
    if name in fk.LAB:
        return f"lab.{fk.LAB[name]}.{name}"
    return f"recipes.{name}" if name == "algorithm" else name  # `fedkeel.algorithm` is a module, too
