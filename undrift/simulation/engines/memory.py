"""Memory that was freed is kept for the next step, instead of being given back and asked for again."""

import ctypes
import sys
from functools import cache

# in bytes: what is larger, such as a data set that was converted, is given back
LARGEST_KEPT = 2**28
# in bytes: more than the 64 MiB in which glibc serves a thread, so that it keeps those, too
ROOM = 2**27

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of <malloc.h>


@cache
def keep_freed_memory() -> None:
    """Tell the C library to keep what is freed; where it is not glibc, do nothing.

    By default glibc gives a large tensor back to the system when it is freed.  Every step then pays for fresh pages, one
    fault for every 4 KiB, and threads wait for each other in the kernel: on the character LSTM a third of all time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    mallopt(M_TRIM_THRESHOLD, -1)  # never
    mallopt(M_TOP_PAD, ROOM)
