"""`python -m tenax` is `tenax`."""

from tenax.cli import main

if __name__ == "__main__":
    main()
