"""`python -m outplay` is the `outplay` command."""

from outplay.cli import main

main()
