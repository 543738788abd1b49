#!/usr/bin/env python3
"""Writes tokenizer_cases.json: the results of Hugging Face's tokenizers (pip install tokenizers) for awkward texts, with the
settings that byte-level vocabularies use. `base` is a tokenizer.json trained on `text`; a case replaces parts of it."""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = """In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was
upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be light: and
there was light. And God saw the light, that it was good: and God divided the light from the darkness. And God called the
light Day, and the darkness he called Night. And the evening and the morning were the first day. And God said, Let there be a
firmament in the midst of the waters, and let it divide the waters from the waters. It's what they're said to've done; I'm
sure he'll see we'd not. 1 12 123 1234 12345 x1 y23 café naïve über 日本語の文 日本語 한국어 한국 привет, мир! привет
for (int i = 0; i < n; i++) {\n    total += values[i];\n\treturn total;\n}\n\n\n    x = y;\r\n\r\n"""

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+")


def split(regex, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(regex), behavior, invert)


def level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def then_bytes(*steps):
    return pre_tokenizers.Sequence([*steps, level(regex=False)])


PRE = {
    "gpt2": level(),
    "prefix": level(prefix=True),
    "llama3": then_bytes(split(LLAMA3)),
    "qwen2": then_bytes(split(QWEN2)),
    "o200k": then_bytes(split(O200K)),
    "removed": then_bytes(split(LLAMA3, "removed", True)),
    "deepseek": then_bytes(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK)),
    "starcoder": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level()]),
    "falcon": pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), level(), pre_tokenizers.Digits(False), split("[0-9][0-9][0-9]")]),
    "previous": then_bytes(split(r"\s", "merged_with_previous")),
    "next": then_bytes(split(r"\s", "merged_with_next")),
    "contiguous": then_bytes(split(r"\s", "contiguous")),
    "next inverted": then_bytes(split(r"\w", "merged_with_next", True)),
    "previous inverted": then_bytes(split(r"\w+", "merged_with_previous", True)),
    "string": then_bytes(pre_tokenizers.Split(".", "isolated")),
    "white space": pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), level()]),
    "script": pre_tokenizers.Sequence([split(r"\p{Han}+"), level()]),
    "empty matches": then_bytes(split("x*")),
}
ADDED = [AddedToken("  "), AddedToken("    "), AddedToken("caf\u00e9", single_word=True), AddedToken("the", single_word=True, normalized=False),
         AddedToken("God", lstrip=True), AddedToken("Day", rstrip=True), AddedToken("[X]", lstrip=True, rstrip=True), "foo", "foobar"]
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEXTS = [
    "", " ", "Hello, world! How are you?", "I'm sure they'Ll'VE said it's 'tis 're", "the  God   Day  [X] \n foobar foo thefoo the, the",
    "caf\u00e9 cafe\u0301 caf\u00e9s \u00c5 \u212b q\u0307\u0323 \uac01 \u1100\u1161\u11a8", "日本語の文章、漢字かな。中文 한국어 привет мир مرحبا हिन्दी ภาษาไทย",
    "👩‍👩‍👧‍👦🇩🇪😀🏽 e\u0301\u0323 \u200b\ufeff", "1 12 123 1234567 ½ ² ٣٤٥ Ⅳ 3.14", "a\u00a0b\u3000c\u2028d\u180ee\u0085f\x1cg",
    "\n\n\n  x\r\n\r\n\t\ty  \n ", "for (int i = 0; i < n; i++) { total += values[i]; }", "'ſ 's 'S ’s \u212a", "a" * 60, "ab" * 40, " " * 70,
    "<|endoftext|>x<|endoftext|> <|im_start|>user\nhi<|im_end|>\n", "xxyxxxy", "\U0010ffff\x01\x7f\ufffd", "In the beginning.And",
]


def base_make():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = level()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=400, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False))
    return t


def drop_bytes(t, **more):
    """A vocabulary that lacks some bytes."""
    j = json.loads(t.to_str())
    m = j["model"]
    m["vocab"] = {k: v for k, v in m["vocab"].items() if not any(0xc0 <= ord(c) <= 0xff for c in k)}
    m["merges"] = [p for p in m["merges"] if all(x in m["vocab"] for x in (*p, p[0] + p[1]))]
    m.update(more)
    return Tokenizer.from_str(json.dumps(j))


def variants(base):
    def copy():
        return Tokenizer.from_str(base.to_str())
    for name, pre in PRE.items():
        t = copy()
        t.pre_tokenizer = pre
        yield name, t
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        t = copy()
        t.normalizer = normalizers.Sequence([getattr(normalizers, form)()])
        yield form, t
    for name, pre in (("added", level()), ("added, prefix", level(prefix=True))):
        t = copy()
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre
        t.add_tokens(ADDED)
        t.add_special_tokens(SPECIAL)
        yield name, t
    j = json.loads(base.to_str())
    j["model"]["ignore_merges"] = True
    for word in ("Hello", "Ġworld", "begin"):
        j["model"]["vocab"][word] = len(j["model"]["vocab"])
    yield "ignore merges", Tokenizer.from_str(json.dumps(j))
    yield "bytes without ids", drop_bytes(base)
    yield "unknown bytes", drop_bytes(base, unk_token="<|endoftext|>")
    yield "fused unknown bytes", drop_bytes(base, unk_token="<|endoftext|>", fuse_unk=True)
    t = copy()
    t.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>:1", special_tokens=[("<|endoftext|>", 0)])])
    yield "template", t


def main():
    base = base_make()
    random.seed(7)
    pool = [c for x in TEXTS for c in x] + [" "] * 40
    texts = TEXTS + ["".join(random.choice(pool) for _ in range(30)) for _ in range(12)]
    root = json.loads(base.to_str())
    cases = []
    for name, t in variants(base):
        j = json.loads(t.to_str())
        patch = {k: v for k, v in j.items() if v != root[k]}
        if "model" in patch and patch["model"]["vocab"] == root["model"]["vocab"]:
            del patch["model"]
        cases.append({"name": name, "patch": patch, "framed": [t.encode(x).ids for x in texts]
                      if name == "template" else None, "ids": [t.encode(x, add_special_tokens=False).ids for x in texts]})
    out = {"text": TEXT, "base": root, "texts": texts, "cases": cases}
    path = pathlib.Path(__file__).with_name("tokenizer_cases.json")
    body = ",\n".join(json.dumps(k) + ": " + (json.dumps(v, ensure_ascii=True) if k != "cases" else
                      "[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in v) + "\n]") for k, v in out.items())
    path.write_text("{\n" + body + "\n}\n")


main()
