"""Virtual time: clients take time, are unavailable or drop out, and the server steps when its policy says so.

The other engines visit clients; this one decides when.  A visit's whole course (when it begins, ends, arrives or is lost)
follows from its key when it is dispatched, and its Down is fixed then too, so the work itself can be done at any moment
before it is needed.

    population.py          devices, links and dropouts: system heterogeneity
    availability.py        when clients are available
    policies.py            when the server steps: Synchronous, Deadline, Buffer
    events.py              the run: which transport, from which state
    async_state.py         visits in flight: the live state, and its snapshot as tensors
    clock.py               who is asked next, dispatching clients, and keeping account of their visits
    virtual_transport.py   rounds of one cohort: Synchronous, Deadline
    buffered_rounds.py     a server step whenever the buffer is full, in virtual time or on real nodes
    virtual_buffer.py      clients of a buffered server in virtual time
    lookahead.py           answers computed ahead, many at once
"""
