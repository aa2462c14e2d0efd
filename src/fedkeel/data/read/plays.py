"""Plays by speaking role: Jon Bosak's XML, or JSON lines with `play`, `role` and `speeches`."""

from itertools import chain
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from ...files import damaged, reading
from .tables import lines


class Role(NamedTuple):
    """All that one role says in one play, in order."""

    play: str
    name: str
    speeches: list[str]


def roles(path: Path) -> list[Role]:
    """The roles of a JSON-lines file, of one play in XML, or of all `*.xml` plays of a folder."""
    if path.is_dir():
        files = sorted(path.glob("*.xml"))
        if not files:
            raise damaged(path, "it holds no play in XML")
        return list(chain.from_iterable(map(play, files)))
    if path.suffix == ".xml":
        return play(path)
    found = []
    for line in lines(path, ("speeches",), texts=("play", "role")):
        if not isinstance(line["speeches"], list) or not all(isinstance(s, str) for s in line["speeches"]):
            raise damaged(path, f"the speeches of {line['role']!r:.100} are not a list of texts")
        found.append(Role(line["play"], line["role"], line["speeches"]))
    if not found:
        raise damaged(path, "it has no roles")
    return found


def play(file: Path) -> list[Role]:
    """The roles of one play: lines joined by line breaks, stage directions left out; a speech of two counts for both.

    Names are in capitals, as the plays spell the same role in different ways.

    >>> import tempfile
    >>> text = "<PLAY><TITLE>T</TITLE><SPEECH><SPEAKER>A</SPEAKER><LINE>To be</LINE><LINE>or not</LINE></SPEECH></PLAY>"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "t.xml").write_text(text)
    ...     play(Path(folder, "t.xml"))
    [Role(play='T', name='A', speeches=['To be\\nor not'])]
    """
    with reading(file, "a play in XML"):
        tree = ElementTree.parse(file).getroot()
    title = tree.findtext("TITLE")
    if tree.tag != "PLAY" or not title:
        raise damaged(file, "it is not a <PLAY> with a <TITLE>")
    said: dict[str, list[str]] = {}
    for speech in tree.iter("SPEECH"):
        lines = "\n".join(text for line in speech.findall("LINE") if (text := _spoken(line)))
        for speaker in speech.findall("SPEAKER"):
            if (name := (speaker.text or "").strip().upper()) and lines:
                said.setdefault(name, []).append(lines)
    return [Role(title, name, speeches) for name, speeches in said.items()]


def _spoken(line: ElementTree.Element) -> str:
    """The words of a line without the stage directions inside it."""
    return " ".join(((line.text or "") + "".join(inner.tail or "" for inner in line)).split())
