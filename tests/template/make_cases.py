"""Writes cases of chat templates, rendered by jinja2 as transformers does.

make_cases.py own > tests/template/cases.jsonl        the templates of own.txt, which show one construct each
make_cases.py public DIR > FILE                       every *.jinja below DIR with 20 generated conversations

Needs jinja2 (PyPI). `build/template_test FILE` compares.
"""

import datetime
import functools
import glob
import json
import os
import random
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1753500000
KEYS = dict(bos="<s>", eos="</s>")


class Generation(jinja2.ext.Extension):
    """{% generation %}, whose body has a separate scope."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _text(self, context, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW).strftime(form)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return env


@functools.lru_cache(maxsize=1)
def compiled(env, template):
    return env.from_string(template)


def case(env, name, template, messages, given, prompt):
    out = dict(name=name, template=template, messages=messages, given=given, prompt=prompt, **KEYS)
    try:
        out["text"] = compiled(env, template).render(
            messages=messages, add_generation_prompt=prompt, bos_token=KEYS["bos"], eos_token=KEYS["eos"], **given
        )
    except Exception as e:
        out["error"] = f"{type(e).__name__}: {e}"
    return out


# ---- conversations

WORDS = ["hello", " world", "<|im_end|>", "\n", "\n\n", "  ", "'quoted'", '"double"', "é", "日本語", "🙂", "</think>", "<think>",
         "{{ x }}", "{% if %}", "a < b & c", "1.5", "\t", "\\n", "[INST]", "<s>", "Ünïcode", "\u00a0", "def f(x):\n    return x"]


def text(rng):
    return "".join(rng.choice(WORDS) + rng.choice(["", " "]) for _ in range(rng.randrange(7)))


def tool(rng, i):
    properties = {
        "city": {"type": "string", "description": text(rng)},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "integer", "description": "how many"},
        "where": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    chosen = {k: properties[k] for k in rng.sample(sorted(properties), rng.randrange(1, 5))}
    return {"type": "function", "function": {
        "name": f"get_{i}", "description": text(rng),
        "parameters": {"type": "object", "properties": chosen, "required": sorted(chosen)[:1]}}}


def call(rng, i, ids):
    arguments = {"city": rng.choice(["Paris", "São Paulo", 'a "b"']), "days": rng.randrange(9), "ok": rng.random() < 0.5,
                 "ratio": rng.choice([0.5, 1.0, 2e-7, 1e22]), "none": None, "list": [1, "two", {"three": 3}]}
    chosen = {k: arguments[k] for k in rng.sample(sorted(arguments), rng.randrange(1, 5))}
    out = {"type": "function", "function": {"name": f"get_{i}", "arguments": chosen}}
    if ids:
        out["id"] = f"call{i:05d}"
    return out


def conversation(rng, i):
    messages, given = [], {}
    if i % 3 == 1:
        messages.append({"role": "system", "content": text(rng)})
    tools = i % 4 == 3
    if tools:
        given["tools"] = [tool(rng, k) for k in range(rng.randrange(1, 4))]
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": text(rng) if i % 7 != 6 else [{"type": "text", "text": text(rng)}]})
        if tools and rng.random() < 0.7:
            ids = rng.random() < 0.7
            calls = [call(rng, k, ids) for k in range(rng.randrange(1, 3))]
            messages.append({"role": "assistant", "content": rng.choice(["", text(rng), None]), "tool_calls": calls})
            for c in calls:
                reply = {"role": "tool", "name": c["function"]["name"], "content": rng.choice([text(rng), '{"t": 21.5}'])}
                if ids:
                    reply["tool_call_id"] = c["id"]
                messages.append(reply)
        answer = {"role": "assistant", "content": text(rng)}
        if i % 5 == 2:
            answer["reasoning_content"] = text(rng)
        elif i % 5 == 4:
            answer["content"] = f"<think>\n{text(rng)}\n</think>\n\n{text(rng)}"
        messages.append(answer)
    prompt = rng.random() < 0.5
    if prompt and rng.random() < 0.8:
        messages.pop()
    if i % 6 == 5:
        given["enable_thinking"] = rng.random() < 0.5
    return messages, given, prompt


def public(folder):
    env = environment()
    for path in sorted(glob.glob(os.path.join(folder, "**", "*.jinja"), recursive=True)):
        source = open(path, encoding="utf-8", newline="").read()
        rng = random.Random(os.path.basename(path))
        for i in range(20):
            yield case(env, f"{os.path.basename(path)} {i}", source, *conversation(rng, i))


# ---- own templates

OWN = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "own.txt"), encoding="utf-8").read().split("\n----\n")


def own():
    env = environment()
    for n, source in enumerate(OWN):
        rng = random.Random(n)
        for i in (1, 3) if "messages" in source else (0,):
            yield case(env, f"own {n} {i}: {source[:60]}", source, *conversation(rng, i))


if __name__ == "__main__":
    for x in own() if sys.argv[1] == "own" else public(sys.argv[2]):
        sys.stdout.write(json.dumps(x) + "\n")
