"""A small valid file, or folder, of every format that fedkeel reads, and files that promise what they do not hold."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel import FederatedData, tasks
from fedkeel.data import read, store
from fedkeel.data.unpack import unpack

NUMBERS = [0, 1, -1, 2, 7, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 10**30]
PLAY = (
    '<?xml version="1.0"?><PLAY><TITLE>A Play</TITLE><ACT><SCENE><SPEECH><SPEAKER>HAMLET</SPEAKER><LINE><STAGEDIR>Aside'
    "</STAGEDIR> A little more than kin,</LINE><LINE>and less than kind.</LINE></SPEECH><SPEECH><SPEAKER>First Lord"
    "</SPEAKER><SPEAKER>Hamlet</SPEAKER><LINE>Our duty to your honour.</LINE></SPEECH></SCENE></ACT></PLAY>"
)


@dataclass(frozen=True)
class Format:
    """How to write a valid folder, and how users read it.

    promise: writes a file of this format that promises, links to or holds something strange. needs: a package.
    """

    write: Callable[[Path], None]
    read: Callable[[Path], object]
    promise: Callable[[Path, random.Random], None] | None = None
    needs: str | None = None


# IDX, CIFAR


def idx(array: np.ndarray) -> bytes:
    codes = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
    head = bytes([0, 0, codes[array.dtype.str[1:]], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def idx_promise(file: Path, draw: random.Random) -> None:
    axes = draw.choice([1, 2, 3, 32, 70, 255])
    lengths = [draw.choice([0, 1, 1, 2, 2**16, 2**31, 2**32 - 1]) for _ in range(axes)]
    head = bytes([0, 0, draw.choice([8, 9, 11, 12, 13, 14]), axes]) + struct.pack(f">{axes}I", *lengths)
    content = head + bytes(draw.choice([0, 1, 8, 10_000_000]))
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_mnist(folder: Path) -> None:
    for part in ("train", "t10k"):
        x, y = np.arange(8 * 784).reshape(8, 28, 28).astype(np.uint8), np.arange(8).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    about = np.stack([np.arange(8), np.arange(8), np.arange(8) % 3], 1).astype(np.int32)
    for part in ("train", "test"):
        (folder / f"qmnist-{part}-labels-idx2-int.gz").write_bytes(gzip.compress(idx(about)))


def write_cifar(folder: Path) -> None:
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes((bytes([3]) + bytes(range(256)) * 12) * 2)


# JSON and tables


def leaf(x: list[Any], y: list[Any]) -> bytes:
    users = {name: {"x": x, "y": y} for name in ("ann", "bob")}
    return json.dumps({"users": list(users), "num_samples": [len(y)] * 2, "user_data": users}).encode()


def write_leaf(folder: Path, content: bytes) -> None:
    for part in ("train", "test"):
        (folder / part).mkdir()
        (folder / part / "all_data.json").write_bytes(content)


def write_roles(folder: Path) -> None:
    speeches = ["To be or not to be,", "that is the question"] * 3
    rows = [{"play": "P", "role": name, "speeches": speeches} for name in "AB"]
    (folder / "roles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_news(folder: Path) -> None:
    for part in ("train", "test"):
        rows = "".join(f'"{i % 4 + 1}","Oil, again","Prices ""rose"" by {i} percent"\n' for i in range(8))
        (folder / f"{part}.csv").write_text(rows)


def write_posts(folder: Path) -> None:
    rows = [
        {"split": "test" if i % 3 else "train", "group": f"g{i % 2}", "author": "ann", "text": f"Re: {i} hello"}
        for i in range(9)
    ]
    (folder / "20news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_heart(folder: Path) -> None:
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        rows = [f"{60 + i}.0,1,{i % 4},145,233,{i % 2},{i % 3},150,0,2.3,3,?,6.0,{i % 2}\n" for i in range(6)]
        (folder / f"processed.{name}.data").write_text("".join(rows))


def write_wisdm(folder: Path) -> None:
    rows = "".join(f"{i},{i % 2 + 1},0.{i},{'?' if i == 3 else 5 * i},Walking\n" for i in range(8))
    (folder / "WISDM_ar_v1.1_transformed.arff").write_text(
        '@relation r\n@attribute "UNIQUE_ID" numeric\n@attribute "user" {"1","2"}\n@attribute X0 numeric\n'
        f'@attribute X1 numeric\n@attribute class {{ "Walking" , "Jogging" }}\n@data\n{rows}'
    )


def write_csv(folder: Path) -> None:
    (folder / "train.csv").write_text("site,age,dose,ill\nA,63,.5,no\nB,41,1e1,yes\nA,57,-2,no\n")
    (folder / "test.csv").write_text("age,dose,ill\n50,1,yes\n20,2,no\n")


def write_prepared(folder: Path) -> None:
    columns = [{"name": "age", "mean": 50.5, "deviation": 9.25}, {"name": "ward", "values": ["a", "b"]}]
    about = {"scale": True, "columns": columns, "target": {"name": "ill", "classes": ["no", "yes"]}}
    (folder / "preparation.json").write_text(json.dumps({"preparation": about}))
    (folder / "own.csv").write_text("age,ward,ill\n50,a,yes\n,c,no\n")


def libsvm_promise(file: Path, draw: random.Random) -> None:
    rows = []
    for _ in range(draw.randint(1, 5)):
        pairs = [f"{draw.choice(NUMBERS)}:{draw.choice(['1', '0.5', 'nan', '1e39', '', '-inf'])}" for _ in range(3)]
        rows.append(" ".join(["1", *pairs[: draw.randint(0, 3)]]))
    file.write_text("\n".join(rows) + "\n")


# Parquet


def write_parquet(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": ["a", "b", "a"] * 20, "label": list(range(60)), "x": [[1.5, 2.0]] * 60})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=30)


def parquet_promise(file: Path, draw: random.Random) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    columns: list[Any] = [
        pa.array([None] * 5), pa.array([{"a": 1}] * 5), pa.array([1, None, 3, 4, 5]), pa.array([True] * 5),
        pa.array(["x"] * 5).dictionary_encode(), pa.array([b"\xff"] * 5), pa.array([0] * 5, pa.timestamp("ns")),
        pa.array([10**30] * 5, pa.decimal128(38)), pa.array([[[1]]] * 5), pa.array([2**64 - 1] * 5, pa.uint64()),
    ]  # fmt: skip
    table = pa.table({"label": draw.choice(columns), "text": draw.choice(columns)})
    if draw.random() < 0.1:
        long = pa.DictionaryArray.from_arrays(pa.array([0] * draw.choice([10, 20_000])), ["x" * 100_000])
        table = pa.table({"label": long, "text": long})
    if draw.random() < 0.05:
        zeros = pa.nulls(draw.choice([1000, 40_000_000]), pa.int8())
        table = pa.table({"label": zeros, "text": zeros})
    pyarrow.parquet.write_table(table, file, store_schema=draw.random() < 0.5)


# HDF5 and SQLite


def write_hdf5(folder: Path, part: str = "train") -> None:
    import h5py

    with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as out:
        for writer in ("w1", "w2"):
            zipped = {"compression": "gzip"} if writer == "w2" else {}
            out.create_dataset(f"examples/{writer}/pixels", data=np.full((2, 28, 28), 0.5, np.float32), **zipped)
            out[f"examples/{writer}/label"] = [61, 3]


def write_tokens(folder: Path, part: str = "train") -> None:
    import h5py

    with h5py.File(folder / f"stackoverflow_{part}.h5", "w") as out:
        for user in ("7", "8"):
            out[f"examples/{user}/tokens"] = [b"how to the moon", b"to", b"the the the"]


def hdf5_promise(file: Path, draw: random.Random) -> None:
    import h5py

    with h5py.File(file, "w") as out:
        group = out.create_group("examples/w1")
        for name in ("pixels", "label"):
            HDF5[draw.choice(list(HDF5))](h5py, group, name, draw)
        if draw.random() < 0.2:
            del out["examples/w1"]
        if draw.random() < 0.1:
            del out["examples"]
            out["examples"] = h5py.SoftLink("/examples") if draw.random() < 0.5 else np.zeros(3)


def _virtual(h5py: Any, group: Any, name: str, draw: random.Random) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    group.create_virtual_dataset(name, layout)


def _text(h5py: Any, group: Any, name: str, draw: random.Random) -> None:
    group.create_dataset(name, data=["x" * 100_000] * 3, dtype=h5py.string_dtype())


HDF5: dict[str, Callable[[Any, Any, str, random.Random], Any]] = {
    "numbers": lambda h5py, group, name, draw: group.create_dataset(name, data=np.ones((2, 28, 28))),
    "labels": lambda h5py, group, name, draw: group.create_dataset(name, data=[61, 3]),
    "huge": lambda h5py, group, name, draw: group.create_dataset(name, (draw.choice([2**20, 2**40]), 784), "f4"),
    "chunk": lambda h5py, group, name, draw: group.create_dataset(name, (2,), "f8", chunks=(2,), maxshape=(None,)),
    "scalar": lambda h5py, group, name, draw: group.create_dataset(name, data=3),
    "empty": lambda h5py, group, name, draw: group.create_dataset(name, data=h5py.Empty("f4")),
    "none": lambda h5py, group, name, draw: group.create_dataset(name, (0, 28, 28), "f4"),
    "pairs": lambda h5py, group, name, draw: group.create_dataset(name, (2,), np.dtype([("a", "i4"), ("b", "f8")])),
    "lists": lambda h5py, group, name, draw: group.create_dataset(name, (2,), h5py.vlen_dtype(np.int32)),
    "big-endian": lambda h5py, group, name, draw: group.create_dataset(name, data=np.ones((2, 28, 28), ">f4")),
    "long": lambda h5py, group, name, draw: group.create_dataset(name, data=np.ones((2, 784), np.longdouble)),
    "nan": lambda h5py, group, name, draw: group.create_dataset(name, data=np.full((2, 784), np.nan)),
    "group": lambda h5py, group, name, draw: group.create_group(name),
    "soft": lambda h5py, group, name, draw: group.__setitem__(name, h5py.SoftLink("/examples/w1")),
    "outside": lambda h5py, group, name, draw: group.__setitem__(name, h5py.ExternalLink("/etc/passwd", "/x")),
    "raw": lambda h5py, group, name, draw: group.create_dataset(name, (9,), "i1", external=[("/etc/passwd", 0, 9)]),
    "virtual": _virtual,
    "text": _text,
}


def message(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2, len(content)]) + content


def example(words: bytes) -> bytes:
    """A tf.Example with one field, in wire format."""
    feature = message(1, message(1, words))
    return message(1, message(1, message(1, b"tokens") + message(2, feature)))


def write_sqlite(folder: Path) -> None:
    with sqlite3.connect(folder / "stackoverflow.sqlite") as base:
        base.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        base.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for user in ("u1", "u2"):
            for part in ("train", "test"):
                base.execute("INSERT INTO client_metadata VALUES (?, ?, 2)", (user, part))
                for words in (b"how to the moon", b"to the"):
                    base.execute("INSERT INTO examples VALUES (?, ?, ?)", (part, user, example(words)))
    base.close()
    (folder / "stackoverflow.word_count").write_text("the 9\nto 5\nhow 3\n")


def sqlite_promise(file: Path, draw: random.Random) -> None:
    file.unlink()
    samples = [None, 3, 2.5, "text", b"", b"\xff" * 10_000, example(b"to the")[:-1], example(b"\xff"), b"\x0a\x00"]
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'train' AS split_name, i AS"
    tables = {
        "examples": [
            "CREATE TABLE examples (split_name, client_id, serialized_example_proto)",
            "CREATE TABLE examples (split_name, client_id)",
            "CREATE TABLE examples (split_name, client_id, serialized_example_proto AS (zeroblob(900000000)))",
            f"CREATE VIEW examples AS {endless} client_id, 1 AS serialized_example_proto FROM n",
        ],
        "client_metadata": [
            "CREATE TABLE client_metadata (client_id, split_name)",
            "CREATE TABLE client_metadata (client_id)",
            f"CREATE VIEW client_metadata AS {endless} client_id FROM n",
        ],
    }
    with sqlite3.connect(file) as base:
        for table, ways in tables.items():
            if draw.random() < 0.9:
                base.execute(ways[0] if draw.random() < 0.6 else draw.choice(ways))
            client = draw.choice(["u", 3, None, b"\xff", 2.5])
            rows = {"examples": ("train", client, draw.choice(samples)), "client_metadata": (client, "train")}[table]
            try:
                base.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows))})", rows)
            except sqlite3.Error:
                continue
    base.close()


# Pictures


def png(width: int, height: int, content: bytes, depth: int = 8, colour: int = 2) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width & 0xFFFFFFFF, height & 0xFFFFFFFF, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


def picture_promise(file: Path, draw: random.Random) -> None:
    sides = [0, 1, 3, 1000, 8000, 8192, 12_000, 60_000, 2**31 - 1, 2**32 - 1]
    width, height = draw.choice(sides), draw.choice(sides)
    file.write_bytes(
        png(width, height, bytes(draw.choice([0, 10, 100_000])), draw.choice([1, 8, 16]), draw.choice([0, 2, 3]))
    )


def write_photos(folder: Path) -> None:
    from PIL import Image

    for number, name in enumerate(("one.jpg", "two.png", "three.gif.jpg", "four.bmp.png")):
        (folder / "images").mkdir(exist_ok=True)
        kind = {"three.gif.jpg": "GIF", "four.bmp.png": "BMP"}.get(name)
        Image.new("RGB", (20, 30), (number * 10, 0, 0)).save(folder / "images" / name, kind)
    (folder / "federated_train.csv").write_text("user_id,image_id,class\n10,one,5\n10,two,7\n9,three.gif,5\n")
    (folder / "test.csv").write_text("image_id,class\nfour.bmp,7\n")


def write_faces(folder: Path) -> None:
    from PIL import Image

    (folder / "img_align_celeba").mkdir()
    names = [f"{i:06}.jpg" for i in range(1, 8)]
    for name in names:
        Image.new("RGB", (20, 30), (9, 9, 200)).save(folder / "img_align_celeba" / name)
    (folder / "identity_CelebA.txt").write_text("".join(f"{name} {3 + i % 2}\n" for i, name in enumerate(names)))
    rows = "".join(f"{name} 1 {1 if i % 2 else -1}\n" for i, name in enumerate(names))
    (folder / "list_attr_celeba.txt").write_text(f"7\nYoung Smiling\n{rows}")


# Archives


def write_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("x/y.txt", b"hello " * 30)
        packed.writestr("z.bin", bytes(range(256)))


def zip_promise(file: Path, draw: random.Random) -> None:
    names = ["a", "a/b", "a/", "../x", "/x", "x\n", "a" * 300, "con:x", "\u00e9", "a\\b", ".", ""]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", draw.choice([0, 8, 12, 14])) as packed:
        for name in draw.sample(names, draw.randint(0, 3)):
            packed.writestr(zipfile.ZipInfo(name), bytes(draw.choice([0, 10, 1_000_000])))
    content = bytearray(out.getvalue())
    if draw.random() < 0.5:  # encrypted, or with another size
        for mark, flags, size in ((b"PK\x03\x04", 6, 22), (b"PK\x01\x02", 8, 24)):
            at = content.find(mark)
            if at >= 0 and draw.random() < 0.5:
                content[at + flags] |= 1
            elif at >= 0:
                struct.pack_into("<I", content, at + size, draw.choice([0, 5, 2**31, 2**32 - 1]))
    file.write_bytes(content)


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes, ".gz": gzip.compress, ".tgz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
}  # fmt: skip


def write_tar(folder: Path, ending: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name, content in {"x/y.txt": b"hello " * 30, "z.bin": bytes(300)}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    file = folder / f"a{ending}"
    file.write_bytes(PACK[file.suffix](out.getvalue()))


def tar_promise(file: Path, draw: random.Random) -> None:
    names = ["a", "a/b", "../x", "/x", "x\n", "a" * 300, "b" * 90 + "/c", "\u00e9", "a\\b", ".", "caf\udce9"]
    out = io.BytesIO()
    shapes = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
    kinds = [b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"S", b"L", b"x", b"g", b"K", b"Z"]
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as packed:
        for _ in range(draw.randint(0, 3)):
            member = tarfile.TarInfo(draw.choice(names))
            member.size = draw.choice([0, 10, 1000, 2**31, 2**33 - 1, 2**40, 2**62])
            member.type = draw.choice(kinds) if draw.random() < 0.5 else b"0"
            try:
                head = member.tobuf(draw.choice(shapes), errors="surrogateescape")
            except ValueError:
                continue
            packed.fileobj.write(head + bytes(min(member.size, draw.choice([512, 1024, 10_000_000]))))
    file.write_bytes(PACK[file.suffix](out.getvalue()))


# How users read them


def unpacked(folder: Path) -> object:
    archive = next(folder.iterdir(), folder / "a.zip")
    unpack(archive, folder.with_name(folder.name + "-unpacked"))
    return None


def added(name: str, task: str | None, *more: str) -> Callable[[Path], object]:
    """Add a folder to the store, then make a task of it: the way of `fedkeel data add` and `fedkeel run`."""

    def do(folder: Path) -> object:
        os.environ["FEDKEEL_DATA"] = str(folder.with_name(folder.name + "-store"))
        for one in (name, *more):
            store.add(one, folder)
        return None if task is None else tasks.get(task).data

    return do


def each(reader: Callable[[Path], object]) -> Callable[[Path], object]:
    """Read every file of a folder."""
    return lambda folder: [reader(file) for file in sorted(folder.iterdir())]


def one(name: str, content: bytes) -> Callable[[Path], None]:
    """Write one file."""

    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def both(write: Callable[[Path, str], None], more: Callable[[Path], None] | None = None) -> Callable[[Path], None]:
    """Write a training and a test file."""

    def do(folder: Path) -> None:
        for part in ("train", "test"):
            write(folder, part)
        if more is not None:
            more(folder)

    return do


def words(folder: Path) -> None:
    (folder / "stackoverflow.word_count").write_text("the 9\nto 5\nhow 3\n")


PICTURES = np.linspace(0, 1, 3 * 784).reshape(3, 784).tolist()
TWEETS = [["1", "Mon", "NO_QUERY", "ann", text, "x"] for text in ("so happy today", "oh no, rain")]
VALUES = np.arange(24).reshape(2, 3, 4)
FORMATS: dict[str, Format] = {
    "idx": Format(one("a.idx", idx(VALUES.astype("f4"))), each(read.idx), idx_promise),
    "idx.gz": Format(one("a.gz", gzip.compress(idx(VALUES.astype("i4")))), each(read.idx), idx_promise),
    "cifar10": Format(one("a.bin", (bytes([3]) + bytes(3072)) * 2), each(read.cifar10)),
    "cifar100": Format(one("a.bin", (bytes([3, 99]) + bytes(3072)) * 2), each(read.cifar100)),
    "leaf": Format(one("a.json", leaf([[1.5], [2]], [0, 1])), read.leaf),
    "leaf.gz": Format(one("a.json", gzip.compress(leaf([[1.5], [2]], [0, 1]))), read.leaf),
    "csv": Format(write_csv, lambda f: FederatedData.from_csv(f / "train.csv", "site", "ill", f / "test.csv")),
    "csv prepared": Format(
        write_prepared, lambda f: FederatedData.from_csv(f / "own.csv", preparation=f / "preparation.json")
    ),
    "csv rows": Format(write_news, each(read.rows)),
    "csv columns": Format(one("a.csv", b"user_id,class\nu,3\nv,4\n"), each(lambda f: read.named(f, ["class"]))),
    "json lines": Format(one("a.jsonl", b'{"a": 1}\n{"a": [2, 3]}\n'), each(lambda f: read.lines(f, ["a"]))),
    "arff": Format(write_wisdm, each(read.arff)),
    "uci": Format(one("a.data", b"63.0,1,?\n44,-9,2\n"), each(lambda f: read.uci(f, 3))),
    "libsvm": Format(one("w8a", b"-1 1:0.5 3:2\n+1 2:1e-3\n-1\n"), each(read.libsvm), libsvm_promise),
    "word list": Format(words, each(lambda f: read.vocabulary(f, 2))),
    "play": Format(one("a.xml", PLAY.encode()), read.roles),
    "roles": Format(write_roles, lambda f: read.roles(f / "roles.jsonl")),
    "parquet": Format(write_parquet, lambda f: read.parquet(f, ["text", "label"]), parquet_promise, "pyarrow"),
    "hdf5": Format(write_hdf5, each(lambda f: list(read.hdf5(f, ("pixels", "label")))), hdf5_promise, "h5py"),
    "hdf5 texts": Format(write_tokens, each(lambda f: list(read.hdf5(f, ("tokens",)))), None, "h5py"),
    "sqlite": Format(
        write_sqlite, lambda f: list(read.sqlite(f / "stackoverflow.sqlite", "train", ("tokens",))), sqlite_promise
    ),
    "pictures": Format(
        write_photos, lambda f: read.pictures(read.by_stem(f / "images").values(), 8), picture_promise, "PIL"
    ),
    "zip": Format(write_zip, unpacked, zip_promise),
    "tar": Format(lambda f: write_tar(f, ".tar"), unpacked, tar_promise),
    "tar.gz": Format(lambda f: write_tar(f, ".tar.gz"), unpacked, tar_promise),
    "tar.bz2": Format(lambda f: write_tar(f, ".tar.bz2"), unpacked, tar_promise),
    "tar.xz": Format(lambda f: write_tar(f, ".tar.xz"), unpacked, tar_promise),
    "xz": Format(one("a.txt.xz", lzma.compress(b"hello " * 30)), unpacked),
    "task mnist": Format(write_mnist, added("mnist", "mnist:clients=2,partition=iid")),
    "task mnist-writers": Format(write_mnist, added("mnist", "mnist-writers", "qmnist")),
    "task cifar10": Format(write_cifar, added("cifar10", "cifar10:clients=2,partition=iid")),
    "task femnist, leaf": Format(lambda f: write_leaf(f, leaf(PICTURES, [0, 61, 5])), added("femnist", "femnist")),
    "task femnist, hdf5": Format(both(write_hdf5), added("femnist", "femnist"), hdf5_promise, "h5py"),
    "task shakespeare": Format(write_roles, added("shakespeare", "shakespeare:length=5")),
    "task agnews": Format(write_news, added("agnews", "agnews:clients=2,partition=iid")),
    "task newsgroups": Format(write_posts, added("newsgroups", "newsgroups:least=2")),
    "task sent140": Format(lambda f: write_leaf(f, leaf(TWEETS, [4, 0])), added("sent140", "sent140")),
    "task stackoverflow, hdf5": Format(both(write_tokens, words), added(*["stackoverflow"] * 2), None, "h5py"),
    "task stackoverflow, sqlite": Format(write_sqlite, added(*["stackoverflow"] * 2)),
    "task gldv2": Format(write_photos, added("gldv2", "gldv2:size=16"), None, "PIL"),
    "task celeba": Format(write_faces, added("celeba", "celeba:size=16,least=3"), None, "PIL"),
    "task heart": Format(write_heart, added("heart", "heart")),
    "task wisdm": Format(write_wisdm, added("wisdm", "wisdm")),
    "data add w8a": Format(one("w8a", b"-1 1:0.5 3:2\n+1 2:1e-3\n-1\n"), added("w8a", None)),
}  # fmt: skip
