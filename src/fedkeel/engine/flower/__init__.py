"""Real devices: the two halves of an algorithm behind Flower's Grid and its ClientApp. Flower is imported on use.

orders.py     what the server asks of one device, and our messages as Flower records
device.py     the device's side: `train_clients` on its own data; disk.py: what it remembers
replies.py    whether a reply may touch the model
nodes.py      which node is which client, and the messages under way
server.py     the engine: `train` on a Grid
"""

from .server import Flower

__all__ = ["Flower"]
