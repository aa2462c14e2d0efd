"""The store: files one has, and downloads from a server on this machine that can be told to misbehave."""

import errno
import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedkeel import InputError, tasks
from fedkeel.data import catalogue, download, store
from fedkeel.data.catalogue import DataSet
from fedkeel.data.unpack import unpack

CONTENT = bytes(range(256)) * 5000


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "store"))
    return tmp_path / "store"


class Server:
    """Serves `files`; can cut the next answer after some bytes, change its version, or refuse ranges."""

    def __init__(self):
        self.files, self.cut, self.version, self.ranges, self.asked = {}, None, "v1", True, []
        self.length = None

    def handler(server):  # the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                content = server.files.get(self.path.strip("/"))
                server.asked.append(self.headers.get("Range"))
                if content is None:
                    return self.send_error(404)
                begin = 0
                same = self.headers.get("If-Range") == f'"{server.version}"'
                if server.ranges and self.headers.get("Range") and same:
                    begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                    if begin >= len(content):
                        return self.send_error(416)
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
                else:
                    self.send_response(200)
                self.send_header("ETag", f'"{server.version}"')
                self.send_header("Content-Length", server.length or str(len(content) - begin))
                self.end_headers()
                end, server.cut = (len(content) if server.cut is None else server.cut), None
                self.wfile.write(content[begin:end])
                return None

            def log_message(self, *words):
                pass

        return Handler


@pytest.fixture
def server():
    mine = Server()
    web = ThreadingHTTPServer(("127.0.0.1", 0), mine.handler())
    thread = threading.Thread(target=web.serve_forever, args=(0.01,))
    thread.start()
    mine.address = f"http://127.0.0.1:{web.server_port}/"
    yield mine
    web.shutdown()
    thread.join()
    web.server_close()


@pytest.fixture
def toy(server, monkeypatch):
    """A set of one file, with its right checksum."""
    server.files["toy.bin"] = CONTENT
    return know(monkeypatch, server, "toy.bin", hashlib.sha256(CONTENT).hexdigest())


def know(monkeypatch, server, file, sha256, check=lambda file: None):
    files = ({"toy.bin": check},)
    one = DataSet("toy", "a toy", "nowhere", "ours", files, {server.address + file: sha256})
    monkeypatch.setitem(catalogue.KNOWN, "toy", one)
    return one


def everything(home):
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file())


def test_a_download_lands_whole_and_leaves_nothing_else(home, toy):
    seen = []
    folder = store.get("toy", lambda file, done, total: seen.append((file, done, total)))
    assert (folder / "toy.bin").read_bytes() == CONTENT and everything(home) == ["toy/toy.bin"]
    assert seen[-1] == ("toy.bin", len(CONTENT), len(CONTENT)) and [s[1] for s in seen] == sorted(s[1] for s in seen)


def test_a_set_that_is_here_is_not_asked_for_again(toy, server):
    store.get("toy")
    store.get("toy")
    assert server.asked == [None]


def test_a_cut_connection_is_continued_where_it_stopped(home, toy, server):
    server.cut = 300_000
    with pytest.raises(InputError, match="cut after 300,000 of 1,280,000 bytes"):
        store.get("toy")
    assert not store.present("toy")
    store.get("toy")
    assert server.asked == [None, "bytes=300000-"]
    assert (home / "toy" / "toy.bin").read_bytes() == CONTENT and everything(home) == ["toy/toy.bin"]


def test_a_part_that_was_whole_already_is_fetched_anew(home, toy, server):
    part = home / ".partial" / "toy" / "toy.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    part.with_suffix(".tag").write_text('"v1"')
    store.get("toy")
    assert server.asked == [f"bytes={len(CONTENT)}-", None] and everything(home) == ["toy/toy.bin"]


def test_a_length_that_is_not_a_number_is_ignored(home, toy, server):
    server.length = "many"
    assert (store.get("toy") / "toy.bin").read_bytes() == CONTENT


def test_a_damaged_note_of_the_version_starts_the_download_again(home, toy, server):
    part = home / ".partial" / "toy" / "toy.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:1000])
    part.with_suffix(".tag").write_bytes(b"\xff\x00\n")
    assert (store.get("toy") / "toy.bin").read_bytes() == CONTENT and server.asked == [None]


@pytest.mark.parametrize("change", ["version", "ranges"])
def test_what_was_fetched_of_another_version_is_never_glued_on(toy, server, change):
    server.cut = 300_000
    with pytest.raises(InputError, match="cut"):
        store.get("toy")
    setattr(server, change, "v2" if change == "version" else False)
    assert (store.get("toy") / "toy.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_throws_the_file_away_and_the_next_try_succeeds(home, toy, server):
    server.files["toy.bin"] = CONTENT[:-1] + b"!"
    with pytest.raises(InputError, match=r"SHA-256 .* expected"):
        store.get("toy")
    assert everything(home) == []
    server.files["toy.bin"] = CONTENT
    store.get("toy")
    assert everything(home) == ["toy/toy.bin"]


def test_a_missing_file_is_reported_with_its_address(home, toy, server):
    del server.files["toy.bin"]
    with pytest.raises(InputError, match=r"toy.bin answers 404"):
        store.get("toy")
    assert everything(home) == []


def test_a_server_that_is_not_there_is_reported(toy, monkeypatch):
    monkeypatch.setitem(catalogue.KNOWN, "toy", replace(toy, sources={"http://127.0.0.1:9/toy.bin": None}))
    with pytest.raises(InputError, match="Cannot fetch"):
        store.get("toy")


def test_a_full_disk_leaves_nothing_and_the_next_try_succeeds(home, toy, monkeypatch):
    """Simulated: the write raises what a full disk makes it raise."""

    class Full(io.FileIO):
        def write(self, block):
            super().write(block[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download, "open", Full, raising=False)
        with pytest.raises(InputError, match="No space left"):
            store.get("toy")
    assert everything(home) == []
    store.get("toy")
    assert everything(home) == ["toy/toy.bin"]


def test_a_full_disk_while_unpacking_leaves_no_set(home, server, monkeypatch):
    """Simulated in the same way, where the archive's content is written."""
    server.files["toy.tar.gz"] = tar({"deep/toy.bin": CONTENT})
    know(monkeypatch, server, "toy.tar.gz", None)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "unpack", full)
        with pytest.raises(InputError, match="No space left"):
            store.get("toy")
    assert not store.present("toy") and not any((home / ".work").iterdir())
    store.get("toy")
    assert everything(home) == ["toy/toy.bin"]


def test_a_file_without_checksum_must_pass_the_sets_own_check(home, server, monkeypatch):
    def check(file):
        if file.read_bytes() != CONTENT:
            raise InputError("toy.bin is damaged.")

    know(monkeypatch, server, "toy.bin", None, check=check)
    server.files["toy.bin"] = b"an error page"
    with pytest.raises(InputError, match="damaged"):
        store.get("toy")
    assert everything(home) == []
    server.files["toy.bin"] = CONTENT
    store.get("toy")
    assert everything(home) == ["toy/toy.bin"]


def test_a_set_without_download_says_how_to_get_it(monkeypatch):
    one = DataSet("toy", "a toy", "nowhere", "ours", ({"a": print},), how="ask its authors for toy.bin")
    monkeypatch.setitem(catalogue.KNOWN, "toy", one)
    for look in (store.get, store.folder):
        with pytest.raises(InputError, match=r"ask its authors for toy\.bin, then fedkeel data add toy PATH"):
            look("toy")


def test_an_unknown_set_gets_a_suggestion():
    with pytest.raises(InputError, match="Did you mean 'cifar10'"):
        store.get("cifar1O")


@pytest.mark.parametrize("link", [False, True])
def test_files_one_has_are_found_below_a_folder_checked_and_kept(home, tmp_path, toy, link):
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    file = tmp_path / "mine" / "deep" / "toy.bin"
    file.write_bytes(CONTENT)
    folder = store.add("toy", tmp_path / "mine", link=link)
    assert (folder / "toy.bin").read_bytes() == CONTENT and (folder / "toy.bin").is_symlink() == link
    assert file.exists() and everything(home) == ["toy/toy.bin"]


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_an_archive_one_has_is_unpacked_and_stays_where_it_is(home, tmp_path, toy, suffix):
    archive = tmp_path / f"download{suffix}"
    archive.write_bytes((tar if suffix == ".tar.gz" else zipped)({"deep/toy.bin": CONTENT}))
    assert (store.add("toy", archive) / "toy.bin").read_bytes() == CONTENT
    assert archive.exists() and everything(home) == ["toy/toy.bin"]


def test_adding_again_replaces_what_was_there(tmp_path, toy):
    for content in (b"one", b"two"):
        (tmp_path / "toy.bin").write_bytes(content)
        folder = store.add("toy", tmp_path / "toy.bin")
    assert (folder / "toy.bin").read_bytes() == b"two"


def test_a_folder_that_lacks_a_file_is_refused_by_the_files_name(home, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match=r"data_batch_1.bin is missing"):
        store.add("cifar10", tmp_path / "mine")
    assert not store.present("cifar10")


def test_a_damaged_file_is_not_added(home, tmp_path):
    for file in catalogue.CIFAR10:
        (tmp_path / file).write_bytes(bytes(3073))
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(3000))
    with pytest.raises(InputError, match=f"{tmp_path / 'data_batch_3.bin'} is damaged"):
        store.add("cifar10", tmp_path)
    assert everything(home) == []


def test_the_same_file_in_two_folders_is_a_question_to_the_user(tmp_path, toy):
    for folder in ("a", "b"):
        (tmp_path / "mine" / folder).mkdir(parents=True)
        (tmp_path / "mine" / folder / "toy.bin").write_bytes(CONTENT)
    with pytest.raises(InputError, match="more than once"):
        store.add("toy", tmp_path / "mine")


def test_a_task_whose_data_are_missing_says_how_to_get_them_in_one_line():
    with pytest.raises(InputError, match="fedkeel data get cifar10 downloads it, fedkeel data add cifar10 PATH") as e:
        tasks.get("cifar10")
    assert "\n" not in str(e.value)


def tar(files, kind=None, target=""):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if kind is not None:
                member.type, member.linkname, member.size = kind, target, 0
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize(("suffix", "pack"), [(".tar.gz", tar), (".zip", zipped)])
def test_archives_are_unpacked_with_their_folders(tmp_path, suffix, pack):
    archive = tmp_path / f"a{suffix}"
    archive.write_bytes(pack({"x/y.txt": b"hello", "z.txt": b""}))
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/x/y.txt").read_bytes() == b"hello" and (tmp_path / "out/z.txt").exists()


@pytest.mark.parametrize(("suffix", "pack"), [(".tar.gz", tar), (".zip", zipped)])
@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a\\..\\evil", "C:evil"])
def test_nothing_lands_outside_the_target(tmp_path, suffix, pack, name):
    archive = tmp_path / f"a{suffix}"
    archive.write_bytes(pack({name: b"x"}))
    with pytest.raises(InputError, match="outside"):
        unpack(archive, tmp_path / "in" / "out")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar({"a": b""}, kind, "../secret"))
    with pytest.raises(InputError, match="not a plain file"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize(("suffix", "pack"), [(".tar.gz", tar), (".zip", zipped)])
def test_an_archive_that_grows_too_large_is_stopped(tmp_path, suffix, pack):
    archive = tmp_path / f"bomb{suffix}"
    archive.write_bytes(pack({"zeros": bytes(10_000_000)}))
    assert archive.stat().st_size < 20_000
    with pytest.raises(InputError, match="more than 1,000,000 bytes"):
        unpack(archive, tmp_path / "out", largest=1_000_000)


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip", ".xz", ".bz2", ".tar.bz2"])
def test_a_damaged_archive_is_named(tmp_path, suffix):
    archive = tmp_path / f"a{suffix}"
    archive.write_bytes(b"this is no archive")
    with pytest.raises(InputError, match=f"a{suffix} is damaged"):
        unpack(archive, tmp_path / "out")


def test_a_truncated_archive_is_named(tmp_path):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar({"a": CONTENT})[:2000])
    with pytest.raises(InputError, match="damaged"):
        unpack(archive, tmp_path / "out")


def test_the_folder_that_an_official_archive_unpacks_to_is_found_in_place_once_it_is_complete(home):
    folder = home / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        assert not store.present("cifar10")
        (folder / name).write_bytes(b"")
    assert store.folder("cifar10") == folder and store.get("cifar10") == folder
    (home / "cifar10").mkdir()  # the set's own folder goes first
    assert store.folder("cifar10") == home / "cifar10"


def test_every_official_folder_belongs_to_a_known_set():
    assert set(catalogue.FOLDERS) <= set(catalogue.KNOWN)
