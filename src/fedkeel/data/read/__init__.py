"""Readers of the official file formats: a file in, numpy arrays out, never pickle.

A damaged file is an `InputError` that names the file and what is wrong with it. Readers that need an optional
package import it on use.
"""

from .cifar import cifar10, cifar100
from .idx import idx

__all__ = ["cifar10", "cifar100", "idx"]
