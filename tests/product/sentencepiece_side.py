"""SentencePiece-style BPE tokenizers of Hugging Face's tokenizers, and their results for awkward texts.
usage: sentencepiece_side.py DIR: writes DIR/NAME.json for each variation, and prints {"texts": …, "cases": {NAME: …}}"""
import json, os, random, sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

MARK = "\u2581"
TEXT = ("In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon the "
        "face of the deep. caf\u00e9 na\u00efve 12 123 1234\nfor (int i = 0; i < n; i++) {\n    total += values[i];\n}\n") * 4
TEXTS = ["", " ", "a", "Hello, world!", "  two  spaces ", " the earth", "caf\u00e9 na\u00efve \u00fcber \u65e5\u672c \U0001f389 e\u0301", "line\n\n  line\tx\r\n",
         "the</s> and<s>the [X] z", "<0x41> <s>", MARK + "the" + MARK + MARK + "x", "\x00\x7f\u200b", "x" * 50, " " * 30, "[X]a [X] b"]


def trained():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    t.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False))
    j = json.loads(t.to_str())
    j["added_tokens"] = [x for x in j["added_tokens"] if x["id"] < 3]
    return j


def spaces(prepend):
    steps = [normalizers.Prepend(MARK)] if prepend else []
    return normalizers.Sequence([*steps, normalizers.Replace(" ", MARK)])


def decoder(strip):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def variants(j):
    def make(normalizer, pre, dec, **model):
        root = json.loads(json.dumps(j))
        root["model"].update(model)
        root["normalizer"] = root["pre_tokenizer"] = root["decoder"] = None
        t = Tokenizer.from_str(json.dumps(root))
        for key, value in (("normalizer", normalizer), ("pre_tokenizer", pre), ("decoder", dec)):
            if value is not None:
                setattr(t, key, value)
        return t

    meta = pre_tokenizers.Metaspace
    yield "llama2", make(spaces(True), None, decoder(True))
    yield "gemma", make(spaces(False), pre_tokenizers.Split(" ", "merged_with_previous"), decoder(False))
    yield "no_fallback", make(spaces(True), None, decoder(True), byte_fallback=False)
    yield "no_fallback_no_fuse", make(spaces(True), None, decoder(True), byte_fallback=False, fuse_unk=False)
    yield "nfkc", make(normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", MARK)]), None, decoder(False))
    for scheme in ("first", "always", "never"):
        for split in (False, True):
            yield f"metaspace_{scheme}_{split}", make(None, meta(MARK, scheme, split), decoders.Metaspace(MARK, scheme))
    added = make(spaces(True), None, decoder(True))
    added.add_tokens([AddedToken("[X]", normalized=False)])
    yield "added", added
    added = make(None, meta(MARK, "first", False), decoder(True))
    added.add_tokens([AddedToken("[X]", normalized=True)])
    yield "added_metaspace", added


def main(folder):
    j = trained()
    random.seed(3)
    pool = [c for x in TEXTS for c in x] + [" "] * 30
    texts = TEXTS + ["".join(random.choice(pool) for _ in range(25)) for _ in range(30)]
    cases = {}
    for name, t in variants(j):
        t.save(os.path.join(folder, name + ".json"))
        cases[name] = {"ids": [t.encode(x, add_special_tokens=False).ids for x in texts]}
        cases[name]["back"] = [t.decode(ids, skip_special_tokens=False) for ids in cases[name]["ids"]]
    print(json.dumps({"texts": texts, "cases": cases}))


main(sys.argv[1])
