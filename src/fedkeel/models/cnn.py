"""The small convolutional networks of the papers on digits, letters and clothes (images of 28 x 28, one colour)."""

from torch import nn

from .lenet import lenet


def gel_cnn(classes: int = 62, padding: int = 0) -> nn.Sequential:
    """The CNN of the GEL papers on FEMNIST, of the shape of McMahan et al. 2017: 608,702 parameters.

    `padding=2` keeps the image size, as in the original: 1,690,046 parameters.

    >>> sum(p.numel() for p in gel_cnn().parameters())
    608702
    """
    return lenet(classes, size=28, colors=1, channels=(32, 64), hidden=(512,), padding=padding)


def fathom_cnn(classes: int = 62, dropout: bool = True) -> nn.Sequential:
    """The CNN of the FATHOM paper on federated EMNIST: 1,206,590 parameters.

    >>> sum(p.numel() for p in fathom_cnn().parameters())
    1206590
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), _dropout(0.25, dropout),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), _dropout(0.5, dropout), nn.Linear(128, classes),
    )  # fmt: skip


def deltasgd_cnn(classes: int = 10, dropout: bool = True) -> nn.Sequential:
    """The CNN of the Delta-SGD paper on MNIST and Fashion-MNIST: 21,840 parameters.

    `dropout=False` lets it run along the client axis.

    >>> sum(p.numel() for p in deltasgd_cnn().parameters())
    21840
    """
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, 5), nn.Dropout2d(0.5) if dropout else nn.Identity(), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), _dropout(0.5, dropout), nn.Linear(50, classes),
    )  # fmt: skip


def _dropout(p: float, wanted: bool) -> nn.Module:
    return nn.Dropout(p) if wanted else nn.Identity()
