"""The verbs of the command line: each file reads its arguments, calls one room and prints what comes back."""
