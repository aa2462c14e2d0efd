"""A Hugging Face data set and a transformers classifier: columns go to the arguments of the model's forward.

Made on the spot, so that nothing is downloaded; `from_huggingface("ag_news", ...)` takes a name on the hub, too.
"""

import random
from functools import partial

import fedkeel as fk

try:
    from datasets import Dataset
    from transformers import DistilBertConfig, DistilBertForSequenceClassification
except ImportError:
    print('Data sets and models of Hugging Face: pip install ".[hf]"')
    raise SystemExit from None

random.seed(0)
users = [random.choice(["ada", "wan", "eve", "lin"]) for _ in range(240)]
tokens = [[random.randint(1, 29) for _ in range(8)] for _ in users]
kinds = ["spam" if 7 in words or 8 in words else "mail" for words in tokens]
mask = [[1] * 8 for _ in users]
rows = Dataset.from_dict({"tokens": tokens, "mask": mask, "kind": kinds, "user": users})
columns = {"input_ids": "tokens", "attention_mask": "mask"}
data = fk.FederatedData.from_huggingface(rows, columns, y="kind", client_column="user", test=rows.select(range(60)))

tiny = DistilBertConfig(vocab_size=30, dim=16, hidden_dim=32, n_layers=1, n_heads=2, max_position_embeddings=8)
task = fk.Task(partial(DistilBertForSequenceClassification, tiny), fk.cross_entropy, data, name="mail", lr=0.2)
run = fk.train(task, "fedavg", fk.World(cohort="all"), rounds=10)
print(f"accuracy {run.history[-1]['accuracy']:.3f}, model {type(run.model()).__name__}")
