"""`python -m mooring_cli` is `mooring`."""

from mooring_cli.main import main

if __name__ == "__main__":
    main()
