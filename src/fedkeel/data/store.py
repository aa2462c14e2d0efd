"""The store of data sets on disk: `FEDKEEL_DATA/NAME/`, by default below ~/.cache/fedkeel.

Folders with the names that official archives unpack to (`cifar-10-batches-bin`) are used where they are.
A set's folder is complete or absent: files are gathered in a temporary folder, checked, and moved in one step.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from ..errors import InputError, unknown
from .catalogue import FOLDERS, KNOWN, DataSet, Reader
from .download import Progress, download
from .unpack import is_archive, unpack


def root() -> Path:
    """The folder of all data sets: `FEDKEEL_DATA`, else ~/.cache/fedkeel."""
    try:
        return Path(os.environ.get("FEDKEEL_DATA") or "~/.cache/fedkeel").expanduser()
    except RuntimeError as error:
        raise InputError("There is no home directory: set FEDKEEL_DATA to the folder of the data sets.") from error


def known(name: str) -> DataSet:
    """The catalogue entry of this name.

    >>> known("cifar10").home
    'https://www.cs.toronto.edu/~kriz/cifar.html'
    """
    if name not in KNOWN:
        raise unknown("data set", name, KNOWN)
    return KNOWN[name]


def present(name: str) -> bool:
    """Whether the set is in the store."""
    return _place(name) is not None


def _place(name: str) -> Path | None:
    """The set's own folder, else a complete one under the name that its archive unpacks to."""
    one = known(name)
    if (own := root() / one.name).is_dir():
        return own
    for place in (root() / folder for folder in FOLDERS.get(name, ())):
        for group in one.files:
            if all(any(place.glob(pattern)) for pattern in group):
                return place
    return None


def folder(name: str) -> Path:
    """The folder of a set; if it is missing, the error says how to get it.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, FEDKEEL_DATA="/nowhere"):
    ...     folder("cifar10")
    Traceback (most recent call last):
    fedkeel.errors.InputError: The data set 'cifar10' is not here: fedkeel data get cifar10 downloads it, ...
    """
    if (place := _place(name)) is not None:
        return place
    raise InputError(f"The data set '{name}' is not here: {advice(known(name))}.")


def advice(one: DataSet) -> str:
    """How to get a set, as part of a sentence."""
    if one.sources:
        return f"fedkeel data get {one.name} downloads it, fedkeel data add {one.name} PATH takes files you have"
    return f"{one.how}, then fedkeel data add {one.name} PATH"


def get(name: str, progress: Progress | None = None) -> Path:
    """Download a set unless it is in the store; an interrupted download is continued."""
    one = known(name)
    if (place := _place(name)) is not None:
        return place
    if not one.sources:
        raise InputError(f"The data set '{name}' has no direct download: {advice(one)}.")
    fetched = root() / ".partial" / name  # kept after an interruption, so that the next call continues
    with _workshop(name) as shop:
        files = [
            download(url, fetched / url.rsplit("/", 1)[-1], sha256, progress) for url, sha256 in one.sources.items()
        ]
        try:
            home = _install(one, _unpacked(one, files, shop), shop, move=True)
        except InputError:  # complete but wrong: the next call must download it again
            shutil.rmtree(fetched)
            raise
        shutil.rmtree(fetched)
        return home


def _unpacked(one: DataSet, files: list[Path], shop: Path) -> Path:
    """A temporary folder with these files, archives unpacked."""
    gathered = shop / "gathered"
    gathered.mkdir()
    for file in files:
        if is_archive(file):
            unpack(file, gathered, one.largest)
        else:
            os.replace(file, gathered / file.name)
    return gathered


def add(name: str, path: str | os.PathLike[str], link: bool = False) -> Path:
    """Add local files: find them at or below `path`, check them, and copy (or link) them into the store."""
    one = known(name)
    try:
        source = Path(path).expanduser().resolve(strict=True)
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there.") from error
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an unknown user, a zero byte
        raise InputError(f"{str(path)!r} is not a path: {error}.") from error
    with _workshop(name) as shop:
        patterns = chain.from_iterable(one.files)
        if source.is_file() and is_archive(source) and not any(_matches(pattern, source) for pattern in patterns):
            return _install(one, _unpacked(one, [source], shop), shop, move=True)
        return _install(one, source, shop, link)


def _install(one: DataSet, source: Path, shop: Path, link: bool = False, move: bool = False) -> Path:
    """Gather the set's files in a temporary folder, check them, then move them in one step."""
    ready = shop / "ready"
    ready.mkdir()
    for target, (file, read) in _gather(one, source).items():
        (ready / target).parent.mkdir(parents=True, exist_ok=True)
        if move:
            os.replace(file, ready / target)
        elif link:
            (ready / target).symlink_to(file, target_is_directory=file.is_dir())
        elif file.is_dir():
            shutil.copytree(file, ready / target)
        else:
            shutil.copyfile(file, ready / target)
        try:
            read(ready / target)
        except InputError as error:  # name the user's file, not the copy
            shown = target if move else str(file)
            raise InputError(str(error).replace(str(ready / target), shown)) from error
    home = root() / one.name
    if home.exists():
        os.replace(home, shop / "old")
    os.replace(ready, home)
    return home


def _gather(one: DataSet, source: Path) -> dict[str, tuple[Path, Reader]]:
    """Path in the set's folder -> file and its reader, for the first complete group of files."""
    for group in one.files:
        found: dict[str, tuple[Path, Reader]] = {}
        missing: list[str] = []
        for pattern, read in group.items():
            files = _matches(pattern, source)
            found |= {target: (file, read) for target, file in files.items()}
            missing += [] if files else [pattern]
        if not missing:
            return found
    groups = "; or ".join(", ".join(group) for group in one.files)
    raise InputError(f"{source} does not hold {one.name}: {missing[0]} is missing. Needed: {groups}.")


def _matches(pattern: str, source: Path) -> dict[str, Path]:
    """Files below `source` that match a pattern, by their path in the set; only the least deep ones."""
    parts = len(Path(pattern).parts)
    if source.is_file():
        return {source.name: source} if parts == 1 and source.match(pattern) else {}
    found = sorted(source.rglob(pattern), key=lambda file: (len(file.parts), file))
    found = [file for file in found if len(file.parts) == len(found[0].parts)]
    if len({file.parents[parts - 1] for file in found}) > 1:
        raise InputError(f"{pattern} is found more than once: {found[0]} and {found[-1]}. Name the folder of one.")
    return {str(Path(*file.parts[-parts:])): file for file in found}


@contextmanager
def _workshop(name: str) -> Iterator[Path]:
    """A temporary folder beside the sets (on the same disk, so that a move is one step); always removed."""
    path = root() / ".work" / f"{name}.{os.getpid()}"
    try:
        path.mkdir(parents=True)
        yield path
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())[:300]
        raise InputError(f"Cannot put {name} into {root()}: {why}. Make room, or set FEDKEEL_DATA.") from error
    finally:
        shutil.rmtree(path, ignore_errors=True)
