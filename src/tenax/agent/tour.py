"""The tour: a conversation with scripted answers and a real system around them.

Only the answers are scripted. The journal, the approval, the file and the kill are real. The next answer depends only
on the request, so a server killed in the middle continues from the journal.
"""

from __future__ import annotations

from typing import Final

from tenax.models import Reply, Script, ScriptedCall, ScriptedModel

__all__ = ["FIRST_WORDS", "TOUR", "tour_model"]

TOUR: Final = "tour"
"""The source of a tour conversation, and the model name of the script."""

FIRST_WORDS: Final = "Show me what you hold on to."

_FILE = """\
# Written on the tour

Tenax asked before it wrote this file, and you said yes.
The question, your answer and the outcome stand in the journal, in this order.
"""

_WELCOME = """\
Welcome. **I am a script**, so no model and no key is needed; everything around me is real: the journal, the tools, \
the approval that you are about to see, and the kill at the end.

First I would like to write a small file. Nothing is written before you allow it, and what you allow is exactly what stands there."""

_LONG = """\
Thank you. Your answer is in the journal now, and so is every word of this one, while I write it. Here is how that works, \
slowly enough for you to interrupt me.

## One journal

Each conversation is a list of numbered events: what you said, what was asked of a model, each piece of an answer, each question \
of a tool and what you replied. An event gets its number when it is on the disk, and only then does anybody see it.

## Readers that hold a number

This page is a reader. It knows the number of the last event it has shown, nothing more. A second tab, a terminal, your phone: each \
holds a number of its own, and asks for what comes after it. So none of them can disagree, and none of them can miss a word.

```text
 1  conversation.opened
 2  message.user         "Show me what you hold on to."
 3  run.started
 …  reply.delta          these very words
```

## Pull the plug

While I write, there is a button below: **Pull the plug**. It sends `SIGKILL` to the server, which is the way a power cut ends a \
program: no goodbye, no saving. Try it now, if you like.

A small parent process starts the server again. The server looks into the journal, finds a run without an owner, keeps what was \
written of it, and answers again. The words that you saw before stay where they are.

- What you saw is stored, because it was stored before you saw it.
- What you allowed is not asked again, and the file is not written twice.
- What was not answered yet is still owed to you.

## Anyone can check

Every event carries a digest of the one before it. `tenax doctor` computes all of them again and says whether the store is what it \
was. You can run it from this page when I am done, and see the same conversation in a terminal.

That is all I hold on to: everything."""

_AFTER = """\
I am only a script, and this is the end of it. Connect a model in the settings, and talk to that one: it gets the same journal."""


def tour_model() -> ScriptedModel:
    """Return the scripted model. Requests after the end of the script get the last reply again."""
    write = ScriptedCall("write_file", {"path": "tour/hello.md", "content": _FILE})
    replies = [
        Reply(_WELCOME, calls=[write], pause=0.03),
        Reply(_LONG, pause=0.07),
        Reply(_AFTER, pause=0.03),
    ]
    return ScriptedModel(Script(replies, repeat=True), name=TOUR)
