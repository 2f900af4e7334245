"""`python -m aot` is the command `aot`."""

from aot.cli import main

main()
