"""Virtual time: clients take as long as they take, are away or vanish, and the server steps when its policy says so.

The other engines visit clients; this one decides when.  A visit's whole course (when it begins, ends, arrives or is lost)
follows from its key when it is dispatched, and its Down is fixed then too, so the work itself can be done at any moment
before it is needed.

    flight.py     visits in flight: the live state and its record       clock.py      sending out, keeping account
    line.py       who is asked next                                     ahead.py      answers, many at once
    cohorts.py    rounds of one cohort: Synchronous, Deadline           buffered.py   steps of a Buffer
    engine.py     the run
"""
