"""The only file that knows how Flower packs and carries messages: written for flwr 1.41."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from undrift.deploy.messages import Envelope

UNSENT = "unsent "
FAILED = (1, 2, 7)  # the app could not be loaded, raised an error, or is not trusted by the node


def to_records(envelope: Envelope) -> RecordDict:
    """An envelope as Flower's records: words as JSON, tensors as arrays."""
    words: Any = {"kind": envelope.kind, "header": json.dumps(envelope.header)}
    arrays = {name: Array(t.detach().cpu().numpy()) for name, t in envelope.arrays.items()}
    return RecordDict({"header": ConfigRecord(words), "arrays": ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Envelope:
    """The envelope in Flower's records; of what is no envelope, one of kind "failed" that says so."""
    try:
        about: Any = records["header"]
        arrays: Any = records["arrays"]
        words = json.loads(about["header"])
        if not isinstance(words, dict):
            raise TypeError("its words are no words")
        found = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        return Envelope(str(about["kind"]), words, found)
    except (KeyError, TypeError, ValueError) as error:
        return Envelope("failed", {"reason": f"not a message of undrift's ({error})"})


class FlowerLink:
    """Flower's grid as the server's loop wants it."""

    def __init__(self, grid: Any):
        self.grid = grid
        self.sent = self.received = 0

    def nodes(self) -> Mapping[int, str]:
        return {info.node_id: info.name for info in self.grid.get_nodes()}

    def send(self, node: int, envelope: Envelope) -> str:
        records = to_records(envelope)
        self.sent += count_bytes(records)
        kind = "train" if envelope.kind in ("work", "state") else "query"
        round = envelope.header.get("visit", {}).get("round", "")
        (ticket,) = self.grid.push_messages([Message(records, node, kind, group_id=str(round))])
        return (
            ticket or f"{UNSENT}{node}"
        )  # a node that is gone is asked again as one that does not answer

    def receive(self, tickets: Sequence[str]) -> Iterable[tuple[str, Envelope]]:
        sent = [ticket for ticket in tickets if not ticket.startswith(UNSENT)]
        for reply in self.grid.pull_messages(sent) if sent else ():
            ticket = reply.metadata.reply_to_message_id
            if reply.has_error():
                kind = "failed" if reply.error.code in FAILED else "absent"
                yield ticket, Envelope(kind, {"reason": reply.error.reason})
                continue
            self.received += count_bytes(reply.content)
            yield ticket, from_records(reply.content)

    def now(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


def count_bytes(records: RecordDict) -> int:
    """The bytes of a message by Flower's own count."""
    return sum(record.count_bytes() for record in records.values())
