"""What `make docs` adds to the pages of this folder: a page for every algorithm, the API reference, the change log.

Algorithm pages come from the tables that `fedkeel explain` prints, so they cannot differ from the code. Links that
leave this folder, to source files, become the file's name: the site is a site, not a view of the repository.
"""

from __future__ import annotations

import html
import inspect
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import fedkeel as fk
from fedkeel import grammar, recipes
from fedkeel.advice import ADVICE, STATEFUL
from fedkeel.errors import InputError
from fedkeel.explain import explain
from fedkeel.lab.reproduce import plan

ROOT = Path(__file__).resolve().parent.parent
UNFILLED = ("SETTINGS", "--8", "SharedConfig.", "RunConfig.")  # settings, included files, defaults


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    pages = {"algorithms/index.md": overview(), "api.md": reference(), "changelog.md": changes}
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
        return f"{text} (`{os.path.normpath(Path('docs') / place)}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", kept, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page on which something was not filled in."""
    text = html.unescape(re.sub(r"<[^>]*>", "", output))
    for mark in UNFILLED:
        if mark in text:
            raise PluginError(f"{page.file.src_uri} shows {mark!r}, which should have been filled in.")
    return output


def overview() -> str:
    """All names with what they add to FedAvg."""
    lines = ["# Every algorithm", "", "Each name says what it adds to FedAvg. Names combine with `+`:"]
    lines += ["`fedprox:mu=0.01+gel`. Every page is printed by `fedkeel explain NAME`, too.", ""]
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
        lines += ["## Its keys", "", "| key | default |", "|---|---|"]
        lines += [f"| `{key}` | `{value}` |" for key, value in recipe.keys.items()] + [""]
    lines += code_of(text)
    often = advice.avoid.startswith(STATEFUL)  # what clients remember is of use at their second visit
    lines += ["## Try it", ""]
    lines += [
        f"    fedkeel run {'blobs-wide' if often else 'synthetic'} fedavg {text} --rounds 50{' --cohort 4' * often}",
        "",
    ]
    refused = refusals(text)
    if refused:
        lines += ["## Not together with", "", *(f"- `{other}`: {why}" for other, why in refused.items()), ""]
    if studies:
        lines += ["## Results", "", *(result(study) for study in studies), ""]
    return "\n".join(lines)


def result(study: str) -> str:
    """A study's title, linked, and below it what its page says first: what holds, and what is not run."""
    title, _, *said = (ROOT / "docs" / "results" / f"{study}.md").read_text().splitlines()
    found = [f"    {line}" for line in said if line.startswith("- ")]
    return "\n".join([f"- [{study}](../results/{study}.md): {title.removeprefix('# ')}", *found])


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
    lines = ["# API reference", "All names of `import fedkeel as fk`.", *(f"::: fedkeel.{place(name)}" for name in order)]
    lines += ["## Checks for your own rule", "::: fedkeel.conformance\n    options: {heading_level: 3, members_order: source}"]
    return "\n\n".join(lines) + "\n"


def place(name: str) -> str:
    """Where the site finds a public name: in its module, if that is imported when used or has the name of another."""
    if name in fk.LAB:
        return f"lab.{fk.LAB[name]}.{name}"
    return f"recipes.{name}" if name == "algorithm" else name  # `fedkeel.algorithm` is a module, too
