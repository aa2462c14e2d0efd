"""Plays by role."""

import json
import lzma
import tarfile
from pathlib import Path

import pytest

from fedkeel import InputError
from fedkeel.data import read

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "shakespeare"
PLAY = """<?xml version="1.0"?><!DOCTYPE PLAY SYSTEM "play.dtd"><PLAY><TITLE>A Play</TITLE><ACT><SCENE>
<SPEECH><SPEAKER>HAMLET</SPEAKER><LINE><STAGEDIR>Aside</STAGEDIR> A little more than kin,</LINE><LINE>and less</LINE>
<STAGEDIR>Exit</STAGEDIR></SPEECH>
<SPEECH><SPEAKER>First Lord</SPEAKER><SPEAKER>Hamlet</SPEAKER><LINE>Our duty.</LINE></SPEECH>
<SPEECH><SPEAKER>GHOST</SPEAKER></SPEECH></SCENE></ACT></PLAY>"""


def test_speeches_are_gathered_by_role_without_stage_directions(tmp_path):
    (tmp_path / "a.xml").write_text(PLAY)
    assert read.roles(tmp_path) == [
        ("A Play", "HAMLET", ["A little more than kin,\nand less", "Our duty."]),
        ("A Play", "FIRST LORD", ["Our duty."]),
    ]


def test_json_lines_say_the_same(tmp_path):
    (tmp_path / "roles.jsonl").write_text(json.dumps({"play": "P", "role": "R", "speeches": ["a", "b"]}) + "\n")
    assert read.roles(tmp_path / "roles.jsonl") == [("P", "R", ["a", "b"])]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.xml", PLAY[:-20], "cannot be read as a play in XML"),
        ("a.xml", "<BOOK><TITLE>x</TITLE></BOOK>", "not a <PLAY>"),
        ("a.jsonl", '{"play": "P", "role": "R", "speeches": "a"}', "not a list of texts"),
        ("a.jsonl", '{"play": "P"}', "no 'role'"),
        ("a.jsonl", "", "no roles"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, why):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=why) as caught:
        read.roles(tmp_path / name)
    assert name in str(caught.value)


def test_entities_that_explode_are_refused(tmp_path):
    bomb = '<!DOCTYPE PLAY [<!ENTITY a "aaaaaaaaaa">'
    bomb += "".join(f'<!ENTITY {n} "{f"&{p};" * 10}">' for p, n in zip("abcdefghi", "bcdefghij", strict=True))
    (tmp_path / "bomb.xml").write_text(bomb + "]><PLAY><TITLE>&j;</TITLE></PLAY>")
    with pytest.raises(InputError, match=r"bomb\.xml"):
        read.play(tmp_path / "bomb.xml")


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not there")
def test_the_real_plays_in_xml_give_every_role_that_the_json_lines_give(tmp_path):
    (tmp_path / "roles.jsonl").write_bytes(lzma.decompress((SHARED / "roles.jsonl.xz").read_bytes()))
    with tarfile.open(SHARED / "moby_xml.tar.xz") as archive:
        for member in archive:
            if member.name.endswith(".xml"):
                (tmp_path / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    lines, plays = read.roles(tmp_path / "roles.jsonl"), read.roles(tmp_path)
    assert len(lines) == 1353 and sorted(lines) == sorted(plays)
