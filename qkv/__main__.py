"""`python -m qkv` is the `qkv` command."""

from qkv.cli import main

main()
