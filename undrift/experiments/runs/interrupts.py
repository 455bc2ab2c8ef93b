"""Ctrl-C between rounds, not within one."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While this is entered, Ctrl-C (or SIGTERM) is held back until `check` is called; a second one acts at once.

    What is computed and recorded together is therefore whole when a run is stopped politely.  Only the main thread hears
    signals; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.default_int_handler:
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """Here it is all right to stop."""
        if self.asked:
            raise KeyboardInterrupt
