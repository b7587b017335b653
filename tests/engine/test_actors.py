"""All engines pass this part of the suite."""

from outplay.testing.engine.actors import ActorConformance


class TestActors(ActorConformance):
    pass
