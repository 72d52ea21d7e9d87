"""The `tenax` command, and `python -m tenax`."""

import signal

__all__ = ["main"]


def main() -> None:
    """Ctrl-C ends it without a word until everything is loaded: nothing is begun yet, so there is nothing to say."""
    usual = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # whoever starts it may have it ignored
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tenax.cli import main as command  # noqa: PLC0415  (this is what takes time)

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
