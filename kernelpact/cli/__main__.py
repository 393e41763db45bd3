"""`python -m kernelpact.cli`, the same as `kernelpact`."""

from kernelpact.cli import main

main(prog_name="kernelpact")
