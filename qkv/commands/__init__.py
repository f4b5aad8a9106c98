"""Subcommands of the command line: each file parses its arguments, calls one package and prints the result."""
