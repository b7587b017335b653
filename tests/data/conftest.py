"""The command line in this process, as in the tests of the command line."""

from tests.cli.conftest import cli

__all__ = ["cli"]
