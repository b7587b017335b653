"""All engines pass this part of the suite."""

from outplay.testing.engine.failures import FailureConformance


class TestFailures(FailureConformance):
    pass
