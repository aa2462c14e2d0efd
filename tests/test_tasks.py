"""Named tasks: the papers' settings, on real files where `../shared` has them, else on tiny ones of the same format."""

import inspect
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.data import catalogue, store
from fedkeel.errors import InputError
from fedkeel.tasks import TASKS, words

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"
GENERATED = ("synthetic", "synthetic-fedprox", "blobs-deep", "blobs-wide", "digits")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def real(tmp_path):
    """Adds real sets to the store, from the official files that `unpack.py` writes."""

    def add(*names):
        if not SHARED.is_dir():
            pytest.skip("../shared/data is not there")
        folders = {"fmnist": ("fashion_mnist", "fashion-mnist"), "heart": ("heart_disease", "heart_disease"),
                   "wisdm": ("wisdm", "wisdm"), "shakespeare": ("shakespeare", "shakespeare"),
                   "mnist": ("mnist", "mnist"), "qmnist": ("mnist", "qmnist"), "agnews": ("ag_news", "ag_news"),
                   "newsgroups": ("newsgroups20", "newsgroups20")}  # fmt: skip
        for name in names:
            packed, folder = folders[name]
            command = [sys.executable, str(SHARED / "unpack.py"), str(tmp_path / "real"), packed]
            subprocess.run(command, check=True, capture_output=True)
            store.add(name, tmp_path / "real" / folder)

    return add


def short(task, rounds=2, cohort=2, **more):
    return fk.train(task, "fedavg", fk.World(cohort=cohort, budget=fk.FixedSteps(2)), rounds=rounds, **more)


def test_every_task_has_a_page_that_says_how_to_get_its_files():
    pages = Path(__file__).resolve().parents[1] / "docs" / "tasks"
    for name in TASKS:
        text = (pages / f"{name}.md").read_text()
        for word in ("Source", "Licence", "Clients", "Model", "Settings", "Files"):
            assert f"| {word} |" in text, (name, word)


def test_every_parameter_of_every_task_has_a_default_so_that_its_name_is_enough():
    for make in TASKS.values():
        assert all(p.default is not inspect.Parameter.empty for p in inspect.signature(make).parameters.values())


@pytest.mark.parametrize("name", sorted(set(TASKS) - {*GENERATED, "csv"}))
def test_without_its_files_a_task_says_in_one_line_how_to_get_them(name):
    with pytest.raises(InputError, match=r"is not here: .*fedkeel data add \w+ PATH") as caught:
        fk.tasks.get(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", GENERATED)
def test_generated_tasks_are_the_same_every_time_and_train(text):
    task, again = fk.tasks.get(text), fk.tasks.get(text)
    assert task.spec == text and torch.equal(task.data.x, again.data.x)
    assert short(task).status == "done"


@pytest.mark.parametrize(
    "text", ["synthetic-fedprox:alpha=0.5,iid=true", "blobs-deep:seed=3", "digits:clients=10,partition=iid"]
)
def test_what_differs_from_the_defaults_is_written_so_that_a_run_can_be_repeated(text):
    task = fk.tasks.get(text)
    assert task.spec == text and torch.equal(fk.tasks.get(task.spec).data.y, task.data.y)


@pytest.mark.parametrize(
    "text",
    [
        "digits:partition=random",
        "digits:alpha=-1",
        "digits:clients=0",
        "blobs-deep:seed=-1",
        "synthetic-fedprox:beta=-1",
        "digits:colour=1",
    ],
)
def test_bad_parameters_are_refused(text):
    with pytest.raises(InputError):
        fk.tasks.get(text)


@pytest.mark.parametrize(("text", "clients", "layers"), [("blobs-deep", 20, 3), ("blobs-wide", 40, 2)])
def test_each_blob_client_holds_one_class(text, clients, layers):
    task = fk.tasks.get(text)
    assert len(task.data) == clients
    for begin, end in zip(task.data.offsets[:-1], task.data.offsets[1:], strict=True):
        assert len(set(task.data.y[begin:end].tolist())) == 1
    assert sum(isinstance(m, torch.nn.Linear) for m in task.model().modules()) == layers + 1


def test_one_linear_model_fits_synthetic_fedprox_better_when_users_share_a_labelling():
    fitted = {}
    for iid in (True, False):
        task = fk.tasks.synthetic_fedprox(iid=iid)
        x, y = task.data.x.numpy(), task.data.y.numpy()
        x1 = np.hstack([x, np.ones((len(x), 1))])
        guess = np.linalg.lstsq(x1, np.eye(10)[y], rcond=None)[0]
        fitted[iid] = float(((x1 @ guess).argmax(1) == y).mean())
    assert fitted[True] > fitted[False] + 0.03


def test_the_shipped_digits_are_the_1797_of_uci():
    data = fk.tasks.digits(partition="iid").data
    assert len(data.y) + len(data.test[1]) == 1797 and float(data.x.max()) == 1.0
    counts = torch.bincount(torch.cat([data.y, data.test[1]]).long())
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert fk.train(fk.tasks.digits(), "fedavg", fk.World(cohort=25), rounds=40).history[-1]["accuracy"] > 0.75


def test_digits_take_a_model_of_the_users_own():
    def my_cnn():
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))

    task = fk.tasks.digits(clients=10, model=my_cnn)
    assert task.name == "digits:clients=10,model=my_cnn" and task.lr == fk.tasks.digits().lr
    assert len(fk.train(task, "fedavg", fk.World(cohort=2), rounds=1).params) == 20 + 730


def test_an_instance_of_a_model_is_refused_in_one_line_and_an_unknown_task_has_its_neighbour_named():
    with pytest.raises(fk.InputError, match="'model' parameter of digits is an instance of Sequential; pass the class"):
        fk.tasks.digits(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(AttributeError, match=r"Unknown task 'fashion_mnist'\. Did you mean 'fmnist'\?"):
        fk.tasks.fashion_mnist()
    assert not hasattr(fk.tasks, "nothing")


def cifar_files(folder, rng, classes=10):
    rows = rng.integers(0, 256, (60, 3072 + (1 if classes == 10 else 2)), dtype=np.uint8)
    rows[:, 0] = np.arange(60) % 10
    folder.mkdir()
    if classes == 10:
        for file, part in zip(catalogue.CIFAR10, np.split(rows, 6), strict=True):
            (folder / file).write_bytes(part.tobytes())
    else:
        for file in ("train.bin", "test.bin"):
            (folder / file).write_bytes(rows.tobytes())
    return rows


@pytest.fixture
def cifar(tmp_path):
    rows = cifar_files(tmp_path / "ten", np.random.default_rng(0))
    store.add("cifar10", tmp_path / "ten")
    return rows


def test_cifar_at_alpha_zero_gives_each_client_one_class(cifar):
    task = fk.tasks.cifar10(clients=10)
    for begin, end in zip(task.data.offsets[:-1], task.data.offsets[1:], strict=True):
        assert len(set(task.data.y[begin:end].tolist())) == 1
    assert (task.batch_size, str(task.budget), len(task.data.test[1])) == (64, "1e", 10)
    assert sum(p.numel() for p in task.model().parameters()) == 797_962


def test_small_cifar_is_the_mean_of_squares_of_four_pixels(cifar):
    task = fk.tasks.cifar10_small(clients=1, partition="iid")
    assert task.data.x.shape[1:] == (3, 16, 16)
    picture = cifar[0, 1:].reshape(3, 32, 32).astype(float)
    square = (picture[1, :2, 2:4].mean() - 122.950) / 62.089
    found = task.data.x[:, 1, 0, 1].numpy()
    assert np.isclose(found, square, atol=1e-5).any()
    assert sum(p.numel() for p in task.model().parameters()) == 31_578
    assert short(task, cohort=1).status == "done"


def test_cifar_is_scaled_as_in_the_papers_code_and_cropped_with_a_black_border(cifar):
    task = fk.tasks.cifar10(clients=1, partition="iid")
    picture = cifar[0, 1:].reshape(3, 32, 32).astype(float)
    for channel, (mean, deviation) in enumerate([(125.307, 0.2023), (122.950, 0.1994), (113.865, 0.2010)]):
        expected = (picture[channel] - mean) / (255 * deviation)
        assert any(np.allclose(x[channel].numpy(), expected, atol=1e-5) for x in task.data.x)
    black = task.data.scaling.inputs(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    assert torch.allclose(torch.tensor(task.augment.fill), black[0, :, 0, 0])


def test_resnets_leave_out_the_short_last_batch_as_the_papers_code_does(cifar, tmp_path):
    assert fk.tasks.cifar10(clients=10, model="resnet20").budget == fk.Epochs(1, per_epoch=True, drop_last=True)
    cifar_files(tmp_path / "hundred", np.random.default_rng(1), 100)
    for file in ("train.bin", "test.bin"):  # fine labels in the second byte must be below 100
        rows = np.frombuffer((tmp_path / "hundred" / file).read_bytes(), np.uint8).reshape(-1, 3074).copy()
        rows[:, 1] %= 100
        (tmp_path / "hundred" / file).write_bytes(rows.tobytes())
    store.add("cifar100", tmp_path / "hundred")
    with pytest.warns(fk.StabilityWarning, match="the whole CIFAR-100 has 50,000 and 10,000"):
        task = fk.tasks.cifar100(clients=5)
    assert sum(p.numel() for p in task.model().parameters()) == 275_572
    assert short(task, rounds=1, batch_size=4).status == "done"


def test_the_normalisation_of_resnets_is_a_parameter_of_the_task(cifar):
    task = fk.tasks.get("cifar10:clients=5,model=resnet8,norm=batch")
    assert task.spec == "cifar10:clients=5,model=resnet8,norm=batch"
    norms = [m for m in task.model().modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(norms) == 9 and not any(m.track_running_stats for m in norms)
    for mode in ("serial", "batched"):
        run = short(task, rounds=1, batch_size=4, engine=mode)
        assert (run.status, run.config["engine"]) == ("done", mode)
    with pytest.raises(fk.InputError, match="no C kernel for this model where clients run batched"):
        short(task, rounds=1, engine="batched", compile=True)
    with pytest.raises(fk.InputError, match="'norm' parameter of cifar10 must be left out with lenet"):
        fk.tasks.cifar10(norm="batch")
    with pytest.raises(fk.InputError, match="one of group, batch"):
        fk.tasks.cifar10(model="resnet8", norm="layer")


def test_augmentation_can_be_left_out(cifar):
    assert fk.tasks.cifar10(clients=5).augment is not None
    task = fk.tasks.cifar10(clients=5, augment=False)
    assert task.augment is None and task.spec == "cifar10:clients=5,augment=false"


def leaf_folders(folder, x, y):
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        users = {f"u{i}": {"x": x, "y": y} for i in range(3)}
        content = {"users": list(users), "num_samples": [len(y)] * 3, "user_data": users}
        (folder / part / "all_data.json").write_text(json.dumps(content))


def test_femnist_is_read_from_leaf_json(tmp_path):
    leaf_folders(tmp_path / "leaf", np.linspace(0, 1, 4 * 784).reshape(4, 784).tolist(), [0, 61, 5, 5])
    store.add("femnist", tmp_path / "leaf")
    task = fk.tasks.femnist()
    assert len(task.data) == 3 and task.data.x.shape[1:] == (1, 28, 28)
    assert (task.batch_size, str(task.budget), task.target) == (20, "4:20", 0.76)
    assert sum(p.numel() for p in task.model().parameters()) == 608_702
    assert short(task, rounds=1).status == "done"


def test_femnist_is_read_from_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    for part in ("train", "test"):
        with h5py.File(tmp_path / f"fed_emnist_{part}.h5", "w") as out:
            for writer in ("w1", "w2"):
                out[f"examples/{writer}/pixels"] = np.full((2, 28, 28), 0.75, np.float32)
                out[f"examples/{writer}/label"] = [61, 3]
    store.add("femnist", tmp_path)
    task = fk.tasks.femnist(setting="fathom")
    assert task.data.client_ids.tolist() == ["w1", "w2"] and task.data.y.tolist() == [61, 3, 61, 3]
    for data, pixel in ((fk.tasks.femnist().data, 0.75), (task.data, 0.25)):  # fedjax inverts, TFF and LEAF do not
        assert data.x.unique().tolist() == data.test[0].unique().tolist() == [pixel]
    assert sum(p.numel() for p in task.model().parameters()) == 1_206_590


def test_sent140_is_read_from_leaf_json(tmp_path):
    tweets = [["1", "Mon", "NO_QUERY", "ann", text, "x"] for text in ("so happy today", "oh no, rain")]
    leaf_folders(tmp_path / "leaf", tweets, [4, 0])
    store.add("sent140", tmp_path / "leaf")
    task = fk.tasks.sent140()
    assert task.data.y.tolist() == [1, 0] * 3 and (task.batch_size, task.target) == (10, 0.7)
    assert short(task, rounds=20).history[-1]["accuracy"] == 1.0
    assert "stand-in" in fk.tasks.sent140.__doc__.splitlines()[0]
    lstm = fk.tasks.get("sent140:model=sent140_lstm,length=25")
    assert (lstm.spec, lstm.lr) == ("sent140:length=25,model=sent140_lstm", 1e-3)
    assert sum(p.numel() for p in lstm.model().parameters()) == 1_173_986
    for text in ("fedavg:client=adam", "moon"):
        assert fk.train(lstm, text, fk.World(cohort=2, budget=fk.FixedSteps(2)), rounds=2).status == "done"


def stackoverflow_files(folder, h5py):
    (folder / "stackoverflow.word_count").write_text("the 9\nto 5\nhow 3\n")
    for part in ("train", "test"):
        with h5py.File(folder / f"stackoverflow_{part}.h5", "w") as out:
            for user in ("7", "8", "9"):
                out[f"examples/{user}/tokens"] = [b"how to the moon", b"to", b"the the the the the the the"]


def test_stackoverflow_sentences_become_next_words(tmp_path):
    stackoverflow_files(tmp_path, pytest.importorskip("h5py"))
    store.add("stackoverflow", tmp_path)
    task = fk.tasks.stackoverflow(clients=2, limit=2, words=3, length=5, test=4)
    assert task.data.client_ids.tolist() == ["7", "8"] and len(task.data.test[1]) == 4
    # begin=1, the=3, to=4, how=5, any other word 6, end=2, padding=0
    assert task.data.x[0].tolist() == [1, 5, 4, 3, 6] and task.data.y[0].tolist() == [5, 4, 3, 6, 2]
    assert task.data.x[1].tolist() == [1, 4, 2, 0, 0] and task.data.y[1].tolist() == [4, 2, 0, 0, 0]
    run = short(task, rounds=1)
    assert run.status == "done" and 0 <= run.history[-1]["accuracy"] <= 1


def test_padding_and_special_words_do_not_count():
    right = torch.nn.functional.one_hot(torch.tensor([[3, 4, 2, 0]]), 7).movedim(-1, 1).float() * 50
    assert words.next_word_loss(right, torch.tensor([[3, 4, 2, 0]])).item() == pytest.approx(0, abs=1e-4)
    assert words.word_accuracy(right, torch.tensor([[3, 3, 2, 0]]), other=6) == 0.5
    wrong_padding = torch.nn.functional.one_hot(torch.tensor([[3, 4, 2, 5]]), 7).movedim(-1, 1).float() * 50
    assert torch.equal(
        words.next_word_loss(right, torch.tensor([[3, 4, 2, 0]])),
        words.next_word_loss(wrong_padding, torch.tensor([[3, 4, 2, 0]])),
    )


def photographs(folder, names):
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (20, 30), (number * 10, 0, 0)).save(folder / name)


@pytest.mark.parametrize(
    ("name", "table"), [("gldv2", "federated_train.csv"), ("inaturalist", "federated_train_user_120k.csv")]
)
def test_photographs_are_found_by_the_tables_that_name_them(tmp_path, name, table):
    photographs(tmp_path / "mine" / "images", ["a/b/c/abc1.jpg", "a/b/c/abc2.jpg", "d/dd.jpg", "e/ee.jpg"])
    (tmp_path / "mine" / table).write_text("user_id,image_id,class\n10,abc1,5\n10,abc2,7\n9,dd,5\n")
    (tmp_path / "mine" / "test.csv").write_text("image_id,class\nee,7\n")
    store.add(name, tmp_path / "mine", link=True)
    task = fk.tasks.get(f"{name}:model=resnet8,size=16")
    assert task.data.x.shape == (3, 3, 16, 16) and task.data.x.dtype == torch.uint8
    assert sorted(task.data.y.tolist()) == [5, 5, 7] and str(task.budget) == "5e"
    assert len(fk.tasks.get(f"{name}:model=resnet8,size=16,people=1").data) == 1
    assert short(task, rounds=1).status == "done"
    own = fk.tasks.TASKS[name](model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 2028)), size=16)
    assert short(own, rounds=1).status == "done" and own.model()(own.data.x).shape == (3, 2028)
    (tmp_path / "mine" / "images" / "d" / "dd.jpg").unlink()
    with pytest.raises(InputError, match="has no picture 'dd'"):
        fk.tasks.get(f"{name}:model=resnet8,size=17")


def test_celeba_clients_are_people_with_enough_photographs(tmp_path):
    files = [f"{i:06}.jpg" for i in range(1, 13)]
    people = [3] * 6 + [8] * 5 + [9]
    photographs(tmp_path / "mine" / "img_align_celeba", files)
    pairs = zip(files, people, strict=True)
    (tmp_path / "mine" / "identity_CelebA.txt").write_text("".join(f"{f} {p}\n" for f, p in pairs))
    rows = "".join(f"{f} 1 {1 if i % 2 else -1}\n" for i, f in enumerate(files))
    (tmp_path / "mine" / "list_attr_celeba.txt").write_text(f"12\nYoung Smiling\n{rows}")
    store.add("celeba", tmp_path / "mine")
    task = fk.tasks.celeba(size=32)
    assert task.data.client_ids.tolist() == [3, 8] and task.data.sizes([0, 1]).tolist() == [5, 4]
    assert len(task.data.test[1]) == 2 and (task.batch_size, task.target) == (5, 0.885)
    assert short(task, rounds=1).status == "done"


def test_fashion_mnist_trains_from_its_official_files(real):
    real("fmnist")
    task = fk.tasks.fmnist(alpha=1, clients=20, model="softmax_regression")
    assert len(task.data.x) == 20 * 500 and len(task.data.test[1]) == 10_000
    assert fk.train(task, "fedavg:lr=0.1", fk.World(cohort=10), rounds=5).history[-1]["accuracy"] > 0.65


def test_pixels_of_mnist_are_centred_and_scaled_as_in_the_code_of_delta_sgd(real):
    real("mnist")
    standard, unit = (fk.tasks.mnist(clients=20, scale=scale).data for scale in ("standard", "unit"))
    x, plain = standard.x.double(), unit.x.double()
    assert (float(plain.min()), float(plain.max())) == (0, 1)
    assert torch.allclose(x, (plain - 0.1307) / 0.3081, atol=1e-6)
    raw = (255 * unit.test[0][:5]).round().to(torch.uint8)
    for data in (standard, unit):  # what an exported model does with raw pixels
        assert torch.allclose(data.scaling.inputs(raw), data.test[0][:5], atol=1e-6)


def test_mnist_belongs_to_its_539_writers(real):
    real("mnist", "qmnist")
    task = fk.tasks.mnist_writers()
    sizes = task.data.sizes(np.arange(len(task.data)))
    assert (len(task.data), int(sizes.min()), int(np.median(sizes)), int(sizes.max())) == (539, 19, 116, 131)


def test_labels_of_other_digits_are_refused(real, tmp_path):
    real("mnist", "qmnist")
    labels = catalogue.QMNIST
    for name, other in zip(labels, reversed(labels), strict=True):
        (tmp_path / name).write_bytes((store.folder("qmnist") / other).read_bytes())
    store.add("qmnist", tmp_path / ".")
    with pytest.raises(InputError, match="do not belong"):
        fk.tasks.mnist_writers()


def test_hearts_of_four_hospitals_are_the_740_complete_records(real):
    real("heart")
    task = fk.tasks.heart()
    train = task.data.sizes([0, 1, 2, 3])
    assert task.data.client_ids.tolist() == ["cleveland", "hungarian", "switzerland", "va"]
    assert train.tolist() == [202, 174, 30, 86] and len(task.data.test[1]) == 740 - train.sum()
    assert fk.train(task, "fedavg", fk.World(cohort="all"), rounds=20).history[-1]["accuracy"] > 0.72


def test_activities_of_36_users_are_learned(real):
    real("wisdm")
    task = fk.tasks.wisdm()
    assert (len(task.data), task.data.x.shape[1], len(task.data.x) + len(task.data.test[1])) == (36, 43, 5418)
    assert fk.train(task, "fedavg", fk.World(cohort=10), rounds=20).history[-1]["accuracy"] > 0.65


def test_windows_of_a_role_predict_what_it_says_next(real):
    real("shakespeare")
    task = fk.tasks.shakespeare(roles=5, limit=50, length=40, hidden=16, layers=1, test=100)
    assert len(task.data) == 5 and task.data.x.shape == (250, 40) and len(task.data.test[1]) == 100
    for client in range(5):
        begin, end = task.data.offsets[client : client + 2]
        assert torch.equal(task.data.x[begin + 1 : end, -1], task.data.y[begin : end - 1])
    assert short(task, rounds=1).status == "done"
    mixed = fk.tasks.shakespeare(roles=5, limit=50, length=40, hidden=16, layers=1, test=100, partition="iid")
    assert (mixed.data.offsets == task.data.offsets).all() and not torch.equal(mixed.data.x, task.data.x)
    rows, mixed_rows = (sorted(map(tuple, one.data.x.tolist())) for one in (task, mixed))
    assert rows == mixed_rows and torch.equal(mixed.data.test[0], task.data.test[0])
    assert mixed.spec == "shakespeare:roles=5,limit=50,length=40,hidden=16,layers=1,test=100,partition=iid"
    with pytest.raises(InputError, match="roles were asked for"):
        fk.tasks.shakespeare(roles=5000)


def test_news_are_dealt_out_and_learned(real):
    real("agnews")
    task = fk.tasks.agnews(alpha=10, clients=20)
    assert len(task.data.x) == 9772 and len(task.data.test[1]) == 7600
    assert (task.batch_size, str(task.budget), task.target) == (8, "10:25", 0.85)
    assert fk.train(task, "fedavg", fk.World(cohort=10), rounds=15, eval_every=15).history[-1]["accuracy"] > 0.6


def test_posts_belong_to_authors_with_enough_of_them(real):
    real("newsgroups")
    task = fk.tasks.newsgroups()
    assert len(task.data.test[1]) == 7532 and 200 < len(task.data) <= 266


class OwnCNN(nn.Module):
    """A user's model for pictures of 3 colours."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 10)

    def forward(self, x):
        return self.last(x.mean((2, 3)))


def test_a_named_task_takes_ones_own_model(cifar):
    usual = fk.tasks.cifar10(alpha=0.5, clients=5)
    for model, name in ((OwnCNN, "OwnCNN"), (lambda: OwnCNN(), "lambda"), (partial(OwnCNN), "partial")):
        task = fk.tasks.cifar10(alpha=0.5, clients=5, model=model)
        assert type(task.model()) is OwnCNN and task.data is usual.data and task.augment is not None
        assert (task.batch_size, task.lr, task.budget) == (usual.batch_size, usual.lr, usual.budget)
        assert (task.spec, task.name) == (None, f"cifar10:alpha=0.5,clients=5,model={name}")
    config = short(fk.tasks.cifar10(0.5, 5, model=OwnCNN)).config
    assert not config["rerunnable"] and config["task"] == "cifar10:alpha=0.5,clients=5,model=OwnCNN"
    parts = config["task_parts"]
    assert (parts["model"], parts["parameters"], parts["partition"], parts["alpha"]) == ("OwnCNN", 40, "dirichlet", 0.5)
    assert fk.tasks.cifar10(alpha=0.5, clients=5).spec == "cifar10:alpha=0.5,clients=5"


def test_every_task_with_a_choice_of_models_takes_ones_own():
    for make in fk.tasks.TASKS.values():
        if "model" in inspect.signature(make).parameters:
            assert hasattr(make, "__wrapped__"), make.__name__


@pytest.mark.parametrize("model", ["mynet", 3])
def test_a_model_that_is_neither_a_name_nor_a_function_is_refused(model):
    with pytest.raises(InputError, match=r"lenet, .*, or a function that makes an nn\.Module"):
        fk.tasks.cifar10(model=model)
