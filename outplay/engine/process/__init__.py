"""The process engine: tasks and actors in processes of this machine.

Three kinds of processes take part. The driver is the user's program. Workers, fresh interpreters, run tasks or
host one actor each. The hub, also a fresh interpreter, starts the workers, hands out slots, counts who holds which
object and cleans up when anybody dies; no value larger than a message passes through it.

    wire.py      frames, channels, authentication
    payload.py   how an object looks on the wire and in shared memory
    post.py      a process's sockets: sending, waiting, requests to the hub
    entries.py   what a process knows of objects and actors
    store.py     a process's view of the shared memory
    engine.py    the engine's calls, in the driver and in every worker
    worker.py    runs tasks and hosts an actor
    driver.py    starts the hub
    hub.py       the hub's loop
    counting.py  the hub's objects: who holds them, where they lie
    staffing.py  the hub's workers: who runs what, what is queued, what died
    crew.py      the hub's records of them, and how a worker is started
    reaping.py   ending processes with everything they started
"""
