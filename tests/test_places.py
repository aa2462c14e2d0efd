"""Engines by name, and what can be known of Ray without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedkeel as fk
from fedkeel.engine.places import moved, place_of
from fedkeel.toys import toy, toy_world


@pytest.mark.parametrize("place", [fk.Ray(), fk.Ray("10.0.0.1:6379", 4, mode="serial"), fk.Ray(gpus_per_worker=0.5)])
def test_the_name_of_a_place_makes_the_same_place(place: fk.Ray) -> None:
    assert place_of(place.name) == place


def test_a_run_that_moves_keeps_its_mode_and_its_chunks() -> None:
    begun = place_of("ray:mode=batched,workers=8", chunk=16)
    assert moved(begun, fk.Local(workers=2)) == fk.Local("batched", 2, 16)
    assert moved(fk.Local("serial", 1), "auto") == fk.Local("serial", 1)  # a run beside others keeps its one thread
    assert moved(fk.Local("serial", chunk=3), "ray:workers=2") == fk.Ray(workers=2, mode="serial", chunk=3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ray:worker=2", "Did you mean 'workers'"),
        ("ray:workers=0", "'workers' parameter of Ray must be"),
        ("ray:mode=probe", "'mode' parameter of Ray must be"),
        ("ray:workers=1+gel", "Cannot read the engine"),
        ("rays", "parameter of Local must be"),
    ],
)
def test_a_bad_name_is_refused_before_anything_starts(text: str, says: str) -> None:
    with pytest.raises(fk.InputError, match=says):
        fk.train(toy(), "fedavg", toy_world(), 1, engine=text)


def test_a_missing_ray_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(fk.MissingExtra, match=r'pip install "ray'):
        fk.train(toy(), "fedavg", toy_world(), 1, engine="ray")


def test_no_run_on_this_machine_imports_ray() -> None:
    """In a process of its own, since other tests import it; a finder sees attempts also where Ray is not installed."""
    code = """
import sys
from fedkeel.conformance import toy, toy_world
import fedkeel as fk
class Finder:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "ray"
sys.meta_path.insert(0, Finder())
fk.train(toy(), "fedavg", toy_world(), 1, engine=ENGINE)
"""
    for engine, fails in (("'auto'", False), ("'ray'", True)):  # the second shows that the finder sees it
        done = subprocess.run([sys.executable, "-c", code.replace("ENGINE", engine)], capture_output=True, text=True)
        assert (done.returncode != 0 and "in find_spec" in done.stderr) == fails, done.stderr
        assert fails or done.returncode == 0
