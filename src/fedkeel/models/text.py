"""The recurrent models of the papers: next character in Shakespeare, next word on Stack Overflow, mood of a tweet."""

from torch import Tensor, nn

from .lstm import LSTM


class NextSymbol(nn.Module):
    """Embedding, LSTM, dense layers; scores `[batch, symbols]` after the last step, or `[batch, symbols, time]`.

    >>> from torch import tensor
    >>> NextSymbol(9, 4, LSTM(4, 5), nn.Linear(5, 9), every=True)(tensor([[1, 2, 3]])).shape
    torch.Size([1, 9, 3])
    """

    def __init__(self, symbols: int, embedding: int, lstm: LSTM, dense: nn.Module, every: bool) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(symbols, embedding), lstm
        self.dense, self.every = dense, every

    def represent(self, tokens: Tensor) -> Tensor:
        """The LSTM's output after the last step, or after every one, `[batch, time, hidden]`."""
        outputs: Tensor = self.lstm(self.embedding(tokens))
        return outputs if self.every else outputs[:, -1]

    def classify(self, z: Tensor) -> Tensor:
        """The scores of representations."""
        scores: Tensor = self.dense(z)
        return scores.movedim(-1, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classify(self.represent(tokens))


def shakespeare_lstm(symbols: int = 80, hidden: int = 256, layers: int = 2, biases: int = 2) -> NextSymbol:
    """Next character after 80: embedding of 8, two LSTM layers, dense.

    819,920 parameters with the GEL papers' 256 hidden units (817,872 with TensorFlow's one bias), 133,520 with the
    100 of the GHBM paper.

    >>> [sum(p.numel() for p in shakespeare_lstm(hidden=h).parameters()) for h in (256, 100)]
    [819920, 133520]
    """
    return NextSymbol(symbols, 8, LSTM(8, hidden, layers, biases), nn.Linear(hidden, symbols), every=False)


def stackoverflow_lstm(symbols: int = 10_004, every: bool = True) -> NextSymbol:
    """Next word: embedding of 96, LSTM of 670, dense 96, dense over the words; 4,050,748 parameters.

    every: scores at every position of the sentence, `[batch, symbols, time]` (Reddi et al. 2021); False: only after the
    last, `[batch, symbols]`.

    >>> sum(p.numel() for p in stackoverflow_lstm().parameters())
    4050748
    """
    dense = nn.Sequential(nn.Linear(670, 96), nn.Linear(96, symbols))
    return NextSymbol(symbols, 96, LSTM(96, 670, biases=1), dense, every)


def sent140_lstm(symbols: int = 10_000, classes: int = 2) -> NextSymbol:
    """The stacked LSTM of LEAF for tweets: embedding of 100, two LSTM layers of 100, dense 128, dense over the classes.

    1,173,986 parameters with 10,000 words; the scores are those after the last place, padding included.

    >>> sum(p.numel() for p in sent140_lstm().parameters())
    1173986
    """
    dense = nn.Sequential(nn.Linear(100, 128), nn.Linear(128, classes))
    return NextSymbol(symbols, 100, LSTM(100, 100, layers=2, biases=1), dense, every=False)
