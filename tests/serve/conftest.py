"""The command line in this process, as in the tests of the command line."""

from __future__ import annotations

from tests.cli.conftest import cli as cli
