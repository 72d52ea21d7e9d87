"""The reference of the site, made from the code: command line, HTTP API, Python API, and the tables of settings.

mkdocs loads this file as a hook (see mkdocs.yml) and calls `on_files` at every build, so that these pages are not checked
in. docs/CONFIGURATION.md is checked in, because only its tables come from the code: `python -m tools.reference` writes
them. tests/docs/test_reference.py compares the tables, and checks that everything is described.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import click
import msgspec

from tenax.cli import tenax as command_line
from tenax.config.schema import VARIABLES, Setting, list_settings
from tenax.web.api import openapi
from tenax.web.app import endpoints

__all__ = [
    "CONFIGURATION",
    "MODULES",
    "commands",
    "configuration_page",
    "on_files",
    "pages",
    "public_members",
    "public_names",
]

CONFIGURATION: Final = (
    Path(__file__).resolve().parent.parent / "docs" / "CONFIGURATION.md"
)
_SETTINGS_BLOCK: Final = re.compile(
    r"(<!-- settings ?(\S*) -->\n).*?(<!-- end -->)", re.DOTALL
)
_VARIABLES_BLOCK: Final = re.compile(
    r"(<!-- variables -->\n).*?(<!-- end -->)", re.DOTALL
)

MODULES: Final = (
    "tenax",
    "tenax.config",
    "tenax.models",
    "tenax.tools.base",
    "tenax.memory",
    "tenax.sessions",
    "tenax.agent",
    "tenax.lifecycle",
    "tenax.recovery",
    "tenax.errors",
    "tenax.testing",
)
"""The modules whose public names the Python page describes."""


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401  (types of mkdocs, which is an extra)
    """Add the generated pages to the site. mkdocs calls this function."""
    from mkdocs.structure.files import File  # noqa: PLC0415  (mkdocs is an extra)

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> dict[str, str]:
    """Return the text of each generated page by its path in the site."""
    makers: dict[str, Callable[[], Iterator[str]]] = {
        "reference/command-line.md": _command_line_page,
        "reference/http.md": _http_page,
        "reference/python.md": _python_page,
    }
    return {path: "\n".join(make()) + "\n" for path, make in makers.items()}


# -- the command line --------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[click.Context, click.Command]]:
    """Yield every command with its context, subcommands after their group."""
    root = click.Context(command_line, info_name="tenax")
    yield from _walk_commands(root, command_line)


def _walk_commands(
    context: click.Context, command: click.Command
) -> Iterator[tuple[click.Context, click.Command]]:
    yield context, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            child = click.Context(found, parent=context, info_name=name)
            yield from _walk_commands(child, found)


def _command_line_page() -> Iterator[str]:
    yield "# Command line\n"
    yield "Generated from the commands. `tenax COMMAND --help` prints the same text."
    yield "Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong use, 3 not set up, 130 stopped.\n"
    for context, command in commands():
        yield f"## {context.command_path}\n"
        yield f"{inspect.cleandoc(command.help or '')}\n"
        usage = command.get_usage(context).removeprefix("Usage: ")
        yield f"```text\n{usage}\n```\n"
        parameters = [param for param in command.params if isinstance(param, click.Option)]  # fmt: skip
        rows = [_option_row(context, option) for option in parameters]
        if rows:
            yield _table(("option", "meaning"), rows)


def _option_row(context: click.Context, option: click.Option) -> tuple[str, str]:
    name, meaning = option.get_help_record(context) or (option.opts[0], "")
    return f"`{name}`", meaning


# -- the settings ------------------------------------------------------------------------------------------------


def configuration_page() -> str:
    """Return docs/CONFIGURATION.md with the tables of the present code."""
    text = CONFIGURATION.read_text("utf-8")
    text = _SETTINGS_BLOCK.sub(_settings_block, text)
    return _VARIABLES_BLOCK.sub(_variables_block, text)


def _settings_block(match: re.Match[str]) -> str:
    """Fill the block of one section, which is named by the beginning of its settings, such as `serve.`."""
    rows = [
        (f"`{name}`", _meaning(setting), _default(setting))
        for name, setting in list_settings()
        if name.rpartition(".")[0] == match[2].removesuffix(".")
    ]
    return match[1] + _table(("setting", "meaning", "default"), rows) + match[3]


def _meaning(setting: Setting) -> str:
    kind = get_args(setting.kind)[0]
    meaning = setting.description
    if get_origin(kind) is Literal:
        choices = ", ".join(f'`"{choice}"`' for choice in get_args(kind))
        meaning += f" One of {choices}."
    if setting.variable:
        meaning += f" Variable: `{setting.variable}`."
    return meaning


def _default(setting: Setting) -> str:
    if setting.required:
        return "required"
    if setting.default in {None, ""}:
        return ""
    return f"`{msgspec.json.encode(setting.default).decode()}`"


def _variables_block(match: re.Match[str]) -> str:
    rows = [(f"`{name}`", meaning) for name, meaning in VARIABLES.items()]
    rows += [
        (f"`{setting.variable}`", f"Overrides `{name}`.")
        for name, setting in list_settings()
        if setting.variable
    ]
    return match[1] + _table(("variable", "meaning"), rows) + match[2]


# -- the HTTP API ------------------------------------------------------------------------------------------------


def _http_page() -> Iterator[str]:
    described = openapi(endpoints())
    yield "# HTTP API\n"
    yield "Generated from the server's own description, which a running server gives at `/api/openapi.json` (OpenAPI 3.1)."
    yield "The API may change until 1.0. A request needs the cookie and the key of a signed-in browser, unless it is marked public."
    yield "Errors are `application/problem+json`.\n"
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield from _operation(method, path, operation)
    yield "## Values\n"
    for name, schema in described["components"]["schemas"].items():
        yield from _value(name, schema)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## {method.upper()} `{path}`\n"
    public = "" if operation["security"] else " Public."
    yield f"{operation['summary']}{public}\n"
    rows = [
        (f"`{parameter['name']}`", parameter["in"], _kind(parameter["schema"]), "yes" if parameter["required"] else "")
        for parameter in operation["parameters"]
    ]  # fmt: skip
    if rows:
        yield _table(("parameter", "in", "type", "required"), rows)
    if "requestBody" in operation:
        yield f"Body: {_content(operation['requestBody'])}\n"
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            yield f"Answer: {status}. {_content(response)}\n"


def _content(holder: dict[str, Any]) -> str:
    for media, content in holder.get("content", {}).items():
        schema = content.get("schema")
        return f"{_kind(schema)} (`{media}`)" if schema else f"`{media}`"
    return "Nothing."


def _value(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if "description" in schema:
        yield f"{schema['description']}\n"
    required = schema.get("required", ())
    rows = [
        (f"`{field}`", _kind(kind), "yes" if field in required else "")
        for field, kind in schema.get("properties", {}).items()
    ]
    yield _table(("field", "type", "required"), rows) if rows else f"{_kind(schema)}\n"


def _kind(schema: dict[str, Any]) -> str:
    """Name the type of a JSON schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    if "anyOf" in schema:
        return " or ".join(_kind(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value!r}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']!r}`"
    kind = schema.get("type", "any JSON")
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_kind(schema['items'])}"
    return str(kind)


def _anchor(heading: str) -> str:
    """Return the id that Python-Markdown gives to a heading."""
    kept = re.sub(r"[^\w\s-]", "", heading).strip().lower()
    return re.sub(r"[-\s]+", "-", kept)


# -- the Python API ----------------------------------------------------------------------------------------------


def public_names() -> Iterator[tuple[str, str, object]]:
    """Yield module, name and object for every public name of `MODULES`."""
    for module_name in MODULES:
        module = import_module(module_name)
        own = [name for name, value in vars(module).items()
               if not name.startswith("_") and getattr(value, "__module__", "") == module_name]  # fmt: skip
        for name in sorted(getattr(module, "__all__", own)):
            yield module_name, name, getattr(module, name)


def public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, those of its bases in Tenax included."""
    for name, _ in inspect.getmembers(kind):
        member = inspect.getattr_static(kind, name)
        owner = next(base for base in kind.__mro__ if name in vars(base))
        if name.startswith("_") or not owner.__module__.startswith("tenax"):
            continue
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        if inspect.isfunction(member) or isinstance(member, property):
            yield name, member


def _python_page() -> Iterator[str]:
    yield "# Python API\n"
    yield "Generated from the signatures and docstrings. Other names are internal and may change in any version.\n"
    current = ""
    for module, name, value in public_names():
        if module != current:
            current = module
            yield f"## {module}\n"
            yield (
                f"{inspect.getdoc(import_module(module)) or ''}\n".partition("\n\n")[0]
                + "\n"
            )
        yield f"### {module}.{name}\n"
        if inspect.isclass(value):
            yield from _class(name, value)
        elif callable(value) and inspect.isfunction(inspect.unwrap(value)):
            yield f"```python\n{_signature(name, value)}\n```\n\n{_doc(value)}\n"
        else:
            yield f"`{value!r}`\n" if len(repr(value)) < 300 else "A type alias.\n"  # noqa: PLR2004  (what fits a line or two)


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"```python\n{_signature(f'class {name}', kind)}\n```\n"
    # A class without a docstring would show that of its base class.
    yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
    for member_name, member in public_members(kind):
        if isinstance(member, property):
            yield f"#### `{member_name}`\n\n{_doc(member)}\n"
        else:
            yield f"#### `{_signature(member_name, member)}`\n\n{_doc(member)}\n"


class _Text(str):
    """An annotation that prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(name: str, value: Any) -> str:  # noqa: ANN401  (whatever has a signature)
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [
        parameter.replace(annotation=_plain(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    # The constructor of a class returns the class.
    result = signature.empty if inspect.isclass(value) else signature.return_annotation
    shown = signature.replace(parameters=parameters, return_annotation=_plain(result))
    return f"{prefix}{name}{shown}"


def _plain(annotation: Any) -> Any:  # noqa: ANN401  (whatever an annotation is)
    return _Text(annotation) if isinstance(annotation, str) else annotation


def _doc(value: object) -> str:
    return inspect.getdoc(value) or ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    """Put text on one line, and escape the separator. Code needs no escape, and would show one."""
    line = " ".join(text.split())
    return line if line.startswith("`") else line.replace("|", "\\|")


if __name__ == "__main__":
    CONFIGURATION.write_text(configuration_page(), "utf-8")
