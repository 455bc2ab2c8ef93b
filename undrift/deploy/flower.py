"""The only file that knows how Flower packs and carries messages: written for flwr 1.41."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from undrift.deploy.checks import BadAnswer, RawArray, parse_envelope, printable
from undrift.deploy.messages import Envelope, to_bytes

UNSENT = "unsent "
RAW = "undrift.raw"  # arrays travel as their bytes: there is nothing to parse, and bfloat16 is a dtype as any other
FAILED = (1, 2, 7)  # the app could not be loaded, raised an error, or is not trusted by the node


def to_records(envelope: Envelope) -> RecordDict:
    """An envelope as Flower's records: words as JSON, tensors as arrays."""
    words: Any = {"kind": envelope.kind, "header": json.dumps(envelope.header)}
    arrays = {
        name: Array(str(t.dtype).removeprefix("torch."), tuple(t.shape), RAW, to_bytes(t))
        for name, t in envelope.arrays.items()
    }
    return RecordDict({"header": ConfigRecord(words), "arrays": ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Envelope:
    """The envelope in Flower's records; of what is no envelope, one of kind "failed" that says so."""
    try:
        about, arrays = records.get("header"), records.get("arrays")
        if not isinstance(about, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            raise BadAnswer("not a message of undrift's: it has no header or no arrays")
        raw = {name: RawArray(array.dtype, array.shape, array.data) for name, array in arrays.items()}
        return parse_envelope(about.get("kind"), about.get("header"), raw)
    except BadAnswer as bad:
        return Envelope("failed", {"reason": str(bad)})


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
        return ticket or f"{UNSENT}{node}"  # a node that is gone is asked again as one that does not answer

    def receive(self, tickets: Sequence[str]) -> Iterable[tuple[str, Envelope]]:
        # one by one, since Flower unpacks what strangers packed: one answer must not spoil others
        for ticket in (each for each in tickets if not each.startswith(UNSENT)):
            try:
                for reply in self.grid.pull_messages([ticket]):
                    yield ticket, self._read(reply)
            except (httpx.HTTPError, ConnectionError):
                raise  # the SuperLink's trouble, and no node's
            except Exception as error:
                reason = f"not a message that Flower can unpack ({type(error).__name__})"
                yield ticket, Envelope("failed", {"reason": reason})

    def _read(self, reply: Message) -> Envelope:
        if reply.has_error():
            kind = "failed" if reply.error.code in FAILED else "absent"
            return Envelope(kind, {"reason": printable(reply.error.reason)})
        self.received += count_bytes(reply.content)
        return from_records(reply.content)

    def now(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


def count_bytes(records: RecordDict) -> int:
    """The bytes of a message by Flower's own count."""
    return sum(record.count_bytes() for record in records.values())
