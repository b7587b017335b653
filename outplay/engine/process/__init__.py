"""The process engine: tasks and actors in processes of this machine.

There are three kinds of processes:

- The driver is the user's program.
- A worker is a new interpreter that runs tasks, or hosts one actor.
- The hub is a new interpreter too. It starts workers, schedules work, counts references to objects, and cleans up
  after crashes. Large objects do not pass through it.

Modules of all processes:

    wire.py          frames, channels, authentication
    payload.py       objects and calls as they are sent
    post.py          the sockets of a process: messages, waiting, requests to the hub
    entries.py       the objects and actors that a process knows
    store.py         the shared memory of a process; copying.py fills it
    exports.py       functions and classes that workers fetch from the hub
    engine.py        the engine's API, in the driver and in every worker
    calls.py         records of calls; waiting.py: blocking inside a call; cancelling.py: cancelling them

Modules of one kind of process:

    driver.py        the driver: starts the hub
    worker.py        a worker: runs tasks, hosts an actor; threads.py, interrupts.py
    hub.py           the hub: its event loop
    counting.py      the hub: reference counts and shared memory segments
    staffing.py      the hub: the scheduler; backlog.py: its queues
    actors.py        the hub: where actors live; names.py: their names
    reservations.py  the hub: reservations
    crew.py          the hub: records of work, actors and workers; how a worker is started
    dismissals.py    the hub: workers that were asked to exit
    reaping.py       killing a process with all its descendants
"""
