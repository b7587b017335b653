"""All engines pass this part of the suite."""

from outplay.testing.engine.tasks import TaskConformance


class TestTasks(TaskConformance):
    pass
