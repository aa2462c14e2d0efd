"""Readers of the official file formats: a file in, numpy arrays (or lists of texts) out, never pickle.

A damaged file is an `InputError` that names the file and what is wrong with it. Readers that need an optional
package import it on use.
"""

from .cifar import cifar10, cifar100
from .idx import idx
from .leaf import leaf
from .parquet import parquet
from .pictures import attribute, by_stem, identities, picture, pictures
from .plays import Role, play, roles
from .tables import arff, libsvm, lines, named, rows, uci, vocabulary, whole_number
from .tff import hdf5, sqlite

__all__ = [
    "Role", "arff", "attribute", "by_stem", "cifar10", "cifar100", "hdf5", "identities", "idx", "leaf", "libsvm",
    "lines", "named", "parquet", "picture", "pictures", "play", "roles", "rows", "sqlite", "uci", "vocabulary",
    "whole_number",
]  # fmt: skip
