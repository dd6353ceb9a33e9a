"""`python -m duly`: the command line, for where its script is not on the path."""

from duly.cli import main

if __name__ == "__main__":
    main()
