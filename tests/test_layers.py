"""Which part of the package knows of which: the core never imports the laboratory."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fedkeel

PACKAGE = Path(fedkeel.__file__).parent
CORE = [file for file in sorted(PACKAGE.rglob("*.py")) if file.relative_to(PACKAGE).parts[0] not in ("lab", "cli")]


def imported(tree: ast.Module) -> set[str]:
    """The names of the modules that are imported when the module is, not only when a function is called."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module or ''}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_no_module_of_the_core_imports_the_laboratory_or_the_command() -> None:
    assert len(CORE) > 80
    for file in CORE:
        if file.name != "__main__.py":  # which is the command
            for name in imported(ast.parse(file.read_text())):
                first = name.lstrip(".").split(".")[0]
                assert first not in ("lab", "cli"), f"{file.relative_to(PACKAGE)} imports {name}"


def test_a_run_without_a_diagnosis_loads_nothing_of_the_laboratory() -> None:
    code = (
        "import sys, fedkeel as fk; fk.train(fk.tasks.synthetic(), 'scaffold', rounds=1);"
        "print([name for name in sys.modules if name.startswith(('fedkeel.lab', 'fedkeel.cli'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_of_the_laboratory_are_there_when_they_are_used() -> None:
    assert fedkeel.trackers.__name__ == "fedkeel.lab.trackers"
