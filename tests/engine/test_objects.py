"""All engines pass this part of the suite."""

from outplay.testing.engine.objects import ObjectConformance


class TestObjects(ObjectConformance):
    pass
