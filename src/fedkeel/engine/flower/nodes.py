"""Which Flower node is which client, and the messages under way.

For a named task the node's `partition-id` is its client's number. Otherwise nodes are numbered when they first report
how many samples they hold, in the order of their `partition-id`, and are known by their public key from then on. In
Flower's simulation keys are new at each start, and `partition-id` is the number of every node.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, one_line
from ...world import Ints
from .orders import flower

POLL = 0.1  # seconds between two looks for replies at first; Flower's own loop waits 3
SHARE = 0.05  # of the time waited, until the next look: a look costs the server time, too
LOOK = 2.0  # seconds between two looks for nodes
RESTARTED = 60.0  # seconds that a node has to answer a message from before it started again, which may be lost with it
ENROLL = 600.0  # seconds that a node has to say who it is
AGAIN = 30.0  # seconds after which a node that gave no usable answer is asked again
log = logging.getLogger("fedkeel")


@dataclass
class Node:
    """A node that has reported: by its key, the samples it holds and its client's number, None if it has none yet."""

    key: str
    samples: int
    client: int | None = None
    id: int | None = None  # while it is online
    since: str = ""  # when Flower saw it start
    place: int = -1  # its partition-id, if it has one


@dataclass(frozen=True)
class Sent:
    """A message that a node has not answered."""

    node: int
    client: int | None  # None: it was asked who it is
    until: float
    since: str = ""  # when the node had started


@dataclass
class Nodes:
    """The nodes of a Grid. sizes: the samples of each client of a named task; None: nodes bring their own data.

    simulated: Flower simulates them in the server's process.
    """

    grid: Any
    sizes: Sequence[int] | None = None
    simulated: bool = False
    known: dict[str, Node] = field(default_factory=dict)  # by key
    sent: dict[str, Sent] = field(default_factory=dict)  # by message
    fixed: bool = False  # who takes part is known, and no other node is asked
    refused: dict[int, float] = field(default_factory=dict)  # since when
    restarted: dict[str, float] = field(default_factory=dict)  # by message: since when its node is a new process
    looked: float = -LOOK

    def number(self, keys: Sequence[str] | None = None) -> list[Node]:
        """Give the nodes that have reported their clients' numbers, in the order of these keys, or of their places and
        then of their reports; from now on no other node takes part.
        """
        keys = sorted(self.known, key=lambda key: self.known[key].place) if keys is None else keys
        for client, key in enumerate(keys):
            self.known[key].client = client
        self.fixed = True
        return [self.known[key] for key in keys]

    def restore(self, keys: Sequence[str], samples: Sequence[int]) -> None:
        """Go on with the nodes of an earlier start, in the order of their clients."""
        self.known = {key: Node(key, held) for key, held in zip(keys, samples, strict=True)}
        self.number(keys)

    def wait_for_all(self) -> None:
        """Wait until every simulated node has reported. When one has, Flower has made all of them."""
        self.wait(1)
        self.wait(len(list(self.grid.get_nodes())))

    def wait(self, least: int) -> None:
        """Wait until so many clients can be asked, or so many nodes have reported."""
        said, since = -1, time.monotonic()
        while True:
            self.look()
            self.replies()
            there = sum(node.id is not None and node.id not in self.busy for node in self.known.values())
            if there >= least:
                return
            if there != said:
                log.info("%d of %d nodes are ready; waiting for the others", there, least)
                said = there
            rest(since)

    @property
    def busy(self) -> set[int]:
        """The nodes that have a message to answer."""
        return {sent.node for sent in self.sent.values()}

    def available(self, clients: Ints) -> NDArray[np.bool_]:
        """Which of these clients are online and have no message to answer."""
        busy = self.busy
        here = {node.client for node in self.known.values() if node.id is not None and node.id not in busy}
        return np.array([client in here for client in clients.tolist()], dtype=bool)

    def of(self, client: int) -> int | None:
        """The node of a client; None if it is not online or has a message to answer."""
        busy = self.busy
        return next((one.id for one in self.known.values() if one.client == client and one.id not in busy), None)

    def look(self) -> None:
        """Ask Flower which nodes are online; those that are not known are asked who they are."""
        if time.monotonic() - self.looked < LOOK:
            return
        self.looked = time.monotonic()
        found = {key_of(one): one for one in self.grid.get_nodes()}
        online = {one.node_id: key for key, one in found.items()}
        for node in self.known.values():
            there = found.get(node.key)
            node.id, node.since = (None, node.since) if there is None else (there.node_id, there.last_activated_at)
        asked = {sent.node for sent in self.sent.values() if sent.client is None}
        asked |= {id for id, since in self.refused.items() if self.looked - since < AGAIN}
        if not self.fixed:
            strangers = [id for id, key in online.items() if key not in self.known and id not in asked]
            self.send({id: (None, flower().RecordDict()) for id in strangers}, "query", ENROLL)

    def send(self, contents: dict[int, tuple[int | None, Any]], kind: str, seconds: float | None) -> dict[str, int]:
        """Send each node its content, for a client or (None) to ask who it is; gives the nodes by message."""
        make, now = flower().Message, time.monotonic()
        messages = [make(content, node, kind, ttl=seconds) for node, (_, content) in contents.items()]
        if not messages:
            return {}
        sent: dict[str, int] = {}
        ids: Iterable[str | None] = self.grid.push_messages(messages)
        until = now + (seconds or flower().DEFAULT_TTL)
        since = {node.id: node.since for node in self.known.values()}
        for id, (node, (client, _)) in zip(ids, contents.items(), strict=False):
            if id is None:
                log.warning("node %d: Flower did not take the message", node)
                continue
            self.sent[id], sent[id] = Sent(node, client, until, since.get(node, "")), node
        return sent

    def replies(self) -> dict[str, Any]:
        """The replies that have arrived, by the message they answer; None where none will come. Who reports himself is
        noted here.

        A node that Flower has given up is found by the message it did not answer: the reply comes from Flower itself.
        """
        found: dict[str, Any] = {}
        for reply in self.grid.pull_messages(list(self.sent)) if self.sent else ():
            id = reply.metadata.reply_to_message_id
            sent = self.sent.pop(id, None)
            if sent is None:
                continue
            if sent.client is None:
                self._enroll(sent.node, reply)
            else:
                found[id] = reply
        for id in self._given_up():
            found[id] = None
            del self.sent[id]
        return found

    def _given_up(self) -> list[str]:
        """Messages whose reply will not come: their time is over, or the node has started again since, with no reply.

        Flower tells of a node that is gone only while it is gone.
        """
        now, since = time.monotonic(), {node.id: node.since for node in self.known.values()}
        over = []
        for id, sent in self.sent.items():
            if sent.client is not None and since.get(sent.node, sent.since) != sent.since:
                self.restarted.setdefault(id, now)
            if min(sent.until, self.restarted.get(id, now) + RESTARTED) < now:
                over.append(id)
                self.restarted.pop(id, None)
        return over

    def _enroll(self, id: int, reply: Any) -> None:
        try:
            node = self._node(id, reply)
        except Exception as error:  # a reply may have any form
            if self.simulated:  # it would say the same when asked again
                raise InputError(f"A simulated node does not take part: {one_line(error)}") from error
            log.warning("node %d does not take part: %s", id, one_line(error))
            self.refused[id] = time.monotonic()
            return
        self.known[node.key] = node
        log.info("node %d takes part with %d samples", id, node.samples)

    def _node(self, id: int, reply: Any) -> Node:
        key = next((key_of(one) for one in self.grid.get_nodes() if one.node_id == id), None)
        if reply.has_error() or key is None:
            raise InputError(reason_of(reply) if key else "it has gone")
        about = dict(reply.content["about"])
        client, samples = about.get("client"), about.get("samples")
        self._check(client, samples)
        assert isinstance(samples, int)
        if self.sizes is None:
            place = client if type(client) is int else -1
            return Node(key, samples, client if self.simulated else None, id, place=place)
        for other in [other for other in self.known.values() if other.client == client]:
            if other.id is not None:
                raise InputError(f"client {client} is node {other.id}")
            del self.known[other.key]  # the device came back with another key
        return Node(key, samples, client, id)

    def _check(self, client: Any, samples: Any) -> None:
        if type(samples) is not int or samples < 1:
            raise InputError(f"it reports {samples!r} samples.")
        if self.sizes is None:
            return
        if type(client) is not int or not 0 <= client < len(self.sizes):
            raise InputError(f"its partition-id is {client!r}; the task has clients 0..{len(self.sizes) - 1}.")
        if samples != self.sizes[client]:
            raise InputError(f"it has {samples} samples of client {client}, who holds {self.sizes[client]} here.")


def rest(since: float) -> None:
    """Wait until the next look for replies, for whom the server has waited since then."""
    time.sleep(min(1.0, max(POLL, SHARE * (time.monotonic() - since))))


def reason_of(reply: Any) -> str:
    """What the error of a reply says, in one line; in Flower's simulation a traceback stands before it."""
    return one_line(reply.error.reason).rpartition("Message: ")[2].removesuffix("'>")


def key_of(info: Any) -> str:
    """What a node is known by: the checksum of its public key, if it has one."""
    return hashlib.sha256(info.public_key).hexdigest() if info.public_key else f"node {info.node_id}"
