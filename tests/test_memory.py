import gc
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.conformance import MODES, check_resume, toy, toy_world
from fedkeel.engine.memory import Memories
from fedkeel.round import State
from fedkeel.run import checkpoint
from fedkeel.run.history import Written

STORES = pytest.mark.parametrize("in_ram", [2**31, 0], ids=["ram", "file"])
writes = st.lists(st.tuples(st.sets(st.integers(0, 299), min_size=1, max_size=90), st.integers(1, 9)), max_size=6)


@STORES
@settings(derandomize=True, max_examples=25, deadline=None)
@given(writes)
def test_what_was_written_last_is_read_and_the_unseen_are_zero(in_ram, writes):
    memories, model = Memories(300, in_ram), {}
    for clients, value in writes:
        index = np.array(sorted(clients))
        rows = torch.from_numpy(index[:, None] * 10.0 + value).expand(-1, 3).contiguous()
        memories.write(index, {"rule": {"a": rows, "b": -rows}})
        model |= {client: client * 10.0 + value for client in clients}
    memory = memories.read(np.arange(300))
    assert memory.seen.tolist() == [int(c in model) for c in range(300)]
    assert len(memories) == len(model)
    if model:
        want = torch.tensor([[model.get(c, 0.0)] * 3 for c in range(300)])
        assert torch.equal(memory.slots["rule"]["a"].float(), want)
        assert torch.equal(memory.slots["rule"]["b"].float(), -want)


@STORES
def test_what_is_read_is_a_copy(in_ram):
    memories = Memories(10, in_ram)
    memories.write(np.array([1]), {"r": {"a": torch.ones(1, 2)}})
    memories.read(np.array([1])).slots["r"]["a"].zero_()
    assert memories.read(np.array([1])).slots["r"]["a"].tolist() == [[1.0, 1.0]]


def test_memory_grows_with_clients_seen_and_not_with_the_population():
    memories = Memories(10**9)
    memories.write(np.array([5, 10**9 - 1]), {"r": {"a": torch.ones(2, 4)}})
    assert memories.tables["r"]["a"].numel() <= 64 * 4


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what a process takes from /proc")
def test_room_for_everybody_takes_memory_only_for_the_clients_seen():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    memories, row = Memories(400), torch.ones(1, 2**20)  # 1.6 GB if everybody came
    before = resident()
    memories.write(np.array([300]), {"r": {"a": row}})
    assert memories.tables["r"]["a"].shape == (400, 2**20) and resident() - before < 64 * 2**20


def test_files_go_when_the_memories_go():
    memories = Memories(10, in_ram=0)
    memories.write(np.array([1]), {"r": {"a": torch.ones(1, 2)}})
    folder = memories._folder
    assert Path(folder).exists()
    del memories
    gc.collect()
    assert not Path(folder).exists()


class Mean(fk.Rule):
    """Each client remembers a running mean of its own models and is pulled to it."""

    def remember(self, me):
        return {"mean": me.x.clone()}

    def gradient(self, g, y, me):
        return g + 0.1 * (y - me.memory["mean"])

    def finish(self, y, end, me):
        return fk.Up(memory={"mean": 0.5 * (me.memory["mean"] + y)})


class Notes(fk.Rule):
    """Takes notes in what it remembers, which begins as the model that everybody got."""

    def remember(self, me):
        return {"note": me.x}

    def gradient(self, g, y, me):
        me.memory["note"].fill_(7.0)
        return g

    def finish(self, y, end, me):
        return fk.Up(memory={"note": me.memory["note"].clone()})


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_may_write_to_what_it_remembers_from_the_first_participation_on(mode):
    plain, noted = (fk.train(toy(), fk.Algorithm(rules=r), toy_world(), 3, engine=mode) for r in ([], [Notes()]))
    assert torch.equal(plain.params, noted.params)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_the_same_with_memory_in_a_file(mode, monkeypatch):
    algorithm = fk.Algorithm(rules=[Mean()])
    ram = fk.train(toy(), algorithm, toy_world(), 5, engine=mode)
    monkeypatch.setattr(Memories.__init__, "__defaults__", (0,))
    file = fk.train(toy(), algorithm, toy_world(), 5, engine=mode)
    assert file.memories._folder is not None
    assert ram.memories._folder is None
    assert torch.equal(ram.params, file.params)
    check_resume(algorithm, mode)


class Fragile(Mean):
    """Client 0 fails to give a finite update in round 2."""

    def walk(self, go, me, y):
        end = go(y)
        if me.facts.round == 2:
            y[torch.from_numpy(me.site.clients == 0)] = torch.nan
        return end


@pytest.mark.parametrize("mode", MODES)
def test_a_dropped_client_keeps_its_old_memory(mode):
    algorithm, world = fk.Algorithm(rules=[Fragile()]), fk.World([[0, 1]], fk.FixedSteps(2))
    first = fk.train(toy(), algorithm, world, 3, stop_after=1, engine=mode)
    before = first.memories.read(np.arange(2)).slots["fragile"]["mean"].clone()
    second = fk.train(toy(), algorithm, world, 3, stop_after=2, engine=mode)
    after = second.memories.read(np.arange(2)).slots["fragile"]["mean"]
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])
    assert [(row["clients"], row["dropped"]) for row in second.history] == [(0, 0), (2, 0), (1, 1)]


def test_a_checkpoint_of_file_backed_memory_does_not_pass_through_ram(tmp_path, monkeypatch):
    """A million parameters on 100,000 clients would need 400 GB: rows live in a file and are saved block by block."""
    monkeypatch.setattr("fedkeel.run.checkpoint.BLOCK", 1000)
    monkeypatch.setattr("fedkeel.files.BLOCK", 1000)
    memories = Memories(population=100_000)
    clients, rows = np.array([5, 99_999, 17]), torch.arange(3.0)[:, None] + torch.zeros(3, 1_000_000)
    memories.write(clients, {"scaffold": {"ci": rows}})
    assert memories._folder is not None
    x = torch.zeros(3)
    state = State(x, x, {}, {}, {"scaffold": {"c": x}}, round=4)
    (tmp_path / "history.jsonl").touch()
    identity = checkpoint.Identity({"seed": 0}, "data")
    checkpoint.save_state(tmp_path, state, memories, identity, Written().known())
    again, remembered, _ = checkpoint.newest_state(tmp_path, identity, 100_000, "cpu")
    kept = remembered.read(np.array([17, 5, 3]))
    assert kept.seen.tolist() == [1, 1, 0]
    assert kept.slots["scaffold"]["ci"][:, 0].tolist() == [2.0, 0.0, 0.0]
    assert torch.equal(kept.slots["scaffold"]["ci"][0], rows[2])
    assert again.round == 4
    names = set(
        safetensors.torch.load_file(tmp_path / "checkpoint/state.safetensors")
    )  # the library reads what we wrote
    assert names == {"x", "x0", "clients", "rules/scaffold/c", "memory/scaffold/ci"}


@pytest.mark.parametrize("mode", ["serial", "batched"])
def test_a_rule_may_keep_and_send_what_lies_where_the_next_client_trains(mode):
    class Keeps(fk.Rule):
        g = room = None  # the last gradient, where it lies; and what is written to at every client

        def init(self, x, lr):
            return {"sent": torch.zeros_like(x)}

        def gradient(self, g, y, me):
            self.g = g
            return g

        def finish(self, y, end, me):
            self.room = y.clone() if self.room is None or len(self.room) != len(y) else self.room.copy_(y)
            return fk.Up(mean={"y": y}, memory={"y": y, "g": self.g, "moved": end.moved, "room": self.room})

        def serve(self, server, up, view):
            return {"sent": up.mean("y")}, up.delta

    def trained(cohort, rules):
        engine, world = fk.Local(mode, workers=1, chunk=3), fk.World([cohort], fk.FixedSteps(2))
        return fk.train(toy(clients=3), fk.Algorithm(rules=rules), world, 1, engine=engine)

    run = trained([0, 1, 2], [Keeps()])
    kept = run.memories.read(np.arange(3)).slots["keeps"]
    for client in range(3):
        alone = trained([client], []).state
        own = trained([client], [Keeps()]).memories.read(np.array([client])).slots["keeps"]
        assert torch.allclose(kept["y"][client], alone.x, atol=1e-6)
        assert torch.allclose(kept["moved"][client], alone.x - alone.x0, atol=1e-6)
        assert torch.allclose(kept["g"][client], own["g"][0], atol=1e-6)
    assert len(kept["g"].unique(dim=0)) == 3 and torch.equal(kept["room"], kept["y"])
    assert torch.allclose(run.state.rules["keeps"]["sent"], kept["y"].mean(0), atol=1e-6)
