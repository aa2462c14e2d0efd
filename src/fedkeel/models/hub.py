"""Large models out of `transformers`, loaded on use: the extra `hf`.

Without `pretrained` they start from random weights and nothing is downloaded; `pretrained="NAME"` (a name on the hub or
a folder) asks transformers for the weights, with a fresh last layer.
"""

from torch import Tensor, nn

from ..data.read.files import optional


class Scores(nn.Module):
    """A transformers classifier as a module from inputs to scores, `[batch, classes]`.

    >>> from types import SimpleNamespace
    >>> Scores(lambda x: SimpleNamespace(logits=x + 1))(Tensor([[1.0]]))
    tensor([[2.]])
    """

    def __init__(self, classifier: nn.Module, padding: int | None = None) -> None:
        super().__init__()
        self.classifier, self.padding = classifier, padding

    def forward(self, x: Tensor) -> Tensor:
        # padding is read from the tokens (0), so that a sample stays one tensor
        answer = self.classifier(x) if self.padding is None else self.classifier(x, attention_mask=x != self.padding)
        scores: Tensor = answer.logits
        return scores


def mobilenet_v2(classes: int = 2028, pretrained: str | None = None) -> Scores:
    """MobileNetV2 for images of 224 x 224 (GLDv2 with 2,028 classes: 4,821,740 parameters); has BatchNorm buffers.

    >>> sum(p.numel() for p in mobilenet_v2().parameters())  # doctest: +SKIP
    4821740
    """
    return Scores(_classifier("MobileNetV2", "ForImageClassification", classes, pretrained))


def vit_b16(classes: int = 2028, pretrained: str | None = None) -> Scores:
    """ViT-B/16 for images of 224 x 224: 86,567,656 parameters with 1,000 classes.

    >>> sum(p.numel() for p in vit_b16(classes=1000).parameters())  # doctest: +SKIP
    86567656
    """
    return Scores(_classifier("ViT", "ForImageClassification", classes, pretrained))


def distilbert(classes: int = 4, pretrained: str | None = None) -> Scores:
    """DistilBERT for texts as token numbers, 0 for padding: 66,956,548 parameters with 4 classes.

    >>> sum(p.numel() for p in distilbert(classes=4).parameters())  # doctest: +SKIP
    66956548
    """
    return Scores(_classifier("DistilBert", "ForSequenceClassification", classes, pretrained), padding=0)


def _classifier(family: str, kind: str, classes: int, pretrained: str | None) -> nn.Module:
    transformers = optional("transformers", "transformers", "hf", f"{family} as a model")
    maker = getattr(transformers, f"{family}{kind}")
    if pretrained is None:
        model: nn.Module = maker(getattr(transformers, f"{family}Config")(num_labels=classes))
    else:
        model = maker.from_pretrained(pretrained, num_labels=classes, ignore_mismatched_sizes=True)
    return model
