#!/usr/bin/env python3
"""Writes tests/fixtures/templates/*.json with jinja2, run as transformers runs chat templates.

usage: make_template_goldens.py [CORPUS_FOLDER]    (needs: pip install jinja2==3.1.6)

snippets.json  each feature alone: [template, output] or [template, null, error code]
builtin.json   our own templates over every conversation: family -> conversation -> output
corpus.json    only lengths and FNV-1a hashes of what the folder's templates print
"""
import datetime
import json
import pathlib
import re
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

from template_conversations import CONVERSATIONS
from template_snippets import CONTEXT, cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/templates"
NOW = 1700000000  # seconds since the epoch, the tests' time


class GenerationTag(jinja2.ext.Extension):
    """{% generation %}, which transformers uses to mark what the assistant says."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def strftime_now(pattern):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(pattern)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[GenerationTag, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def run(env, source, context):
    """(output, None) or (None, name of the error code)."""
    try:
        template = env.from_string(source)
    except (jinja2.TemplateSyntaxError, SyntaxError):
        return None, "template_syntax"
    try:
        return template.render(**context), None
    except Exception:  # whatever Python raises is a failure of the template
        return None, "template_runtime"


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def digest(output, error):
    return [error] if error else [len(output.encode()), fnv1a(output.encode())]


def builtin_templates():
    source = (ROOT / "src/text/builtin_template.cc").read_text()
    return {name.lower(): text for name, text in
            re.findall(r'string_view k(\w+) =\s*R"\((.*?)\)";', source, re.S)}


def write(name, value):
    """A line for each member; members of "cases" on lines of their own."""
    def dump(entry):
        return json.dumps(entry, ensure_ascii=False)

    lines = []
    for key, entry in value.items():
        if key == "cases":
            entry = "[\n" + ",\n".join(map(dump, entry)) + "]"
        else:
            entry = dump(entry)
        lines.append(f"{dump(key)}: {entry}")
    (FIXTURES / name).write_text("{" + ",\n".join(lines) + "}\n")


def main():
    env = environment()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    write("conversations.json", CONVERSATIONS)
    snippets = []
    for source, context in cases():
        output, error = run(env, source, context)
        snippets.append([source, output, error] if error else [source, output])
    write("snippets.json", {"context": CONTEXT, "cases": snippets})
    builtin = {family: {name: run(env, text, context)[0] for name, context in CONVERSATIONS.items()}
               for family, text in builtin_templates().items()}
    write("builtin.json", builtin)
    if len(sys.argv) > 1:
        corpus = {}
        for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
            source = path.read_bytes().decode()
            corpus[path.name] = {"source": fnv1a(source.encode()), **{
                name: digest(*run(env, source, context))
                for name, context in CONVERSATIONS.items()}}
        write("corpus.json", corpus)
    print(f"{len(snippets)} snippets")


main()
