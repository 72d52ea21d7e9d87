"""The `tenax` command, and `python -m tenax`."""

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line. Until a command is loaded, Ctrl-C ends the process silently."""
    # Nothing has begun yet, so there is nothing to clean up or to report. `frame.restore_interrupts` undoes this.
    # If the parent process made us ignore Ctrl-C (nohup, a background job), we keep ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tenax.cli import main as run_command  # noqa: PLC0415  (importing takes time)

    run_command()


if __name__ == "__main__":
    main()
