"""Tokenizers of the kinds unigram, wordpiece and bpe as Hugging Face's tokenizers and SentencePiece make them, and the ids and texts
that those libraries give.

usage: tokenizers_side.py compress TEXT VOCAB OURS.json: prints {"theirs": tokens of a unigram model that SentencePiece trains on the
file TEXT, "ours": tokens of OURS.json}, line by line.
tokenizers_side.py DIR COUNT: writes the files of each tokenizer to DIR, and prints {"texts": …, "cases": {NAME: {"spec": …,
"ids": …, "back": …}}}"""
import base64, io, json, os, random, sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

MARK = "\u2581"
TEXT = """In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon the
face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be light: and there was light.
It's what they're said to've done; I'm sure he'll see we'd not. 1 12 123 1234 12345 x1 y23 caf\u00e9 na\u00efve \u00fcber \u65e5\u672c\u8a9e\u306e\u6587 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4
\u043f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! for (int i = 0; i < n; i++) { total += values[i]; } the unaffable unaffordable unaware""" * 3
AWKWARD = ["", " ", "a", "Hello, world!", "  two  spaces ", " the earth", "the  ", "caf\u00e9 na\u00efve \u00fcber e\u0301\u0323 \u00c5 \u212b \ufb01 \u00bd \u2460", "\u65e5\u672c\u8a9e\u3002\u6f22\u5b57 \ud55c\uad6d\uc5b4 \uff21\uff22\uff23\uff11",
           "I'm sure they're 'tis n't", "the</s> and<s>the [X] z <unk>", "<0x41> [MASK] [UNK]", MARK + "the" + MARK + MARK + "x", "\x01\x7f\u200b\ufeff\u00ad\ufffdx",
           "x" * 120, " " * 30, "[X]a [X] b", "\u0130stanbul \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u00df \u1e9e", "\U0001f389\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\u0cc6\u0cbe \u0e01\u0e33", "tab\there\u00a0nbsp\u3000wide\u2028x",
           "unaffablest xyzzyxyzzy", "``quoted''", "a\u0300\u0301\u0302\u0303b", "\u1100\u1161\u11a8 \uac01 \u0915\u094d\u0937", "\U00020000\u4e00\U0002ceb0"]


def texts_make(count):
    random.seed(11)
    pool = [c for x in AWKWARD + [TEXT] for c in x if c not in "\r\n"] + [" "] * 60
    words = TEXT.split()
    made = []
    while len(AWKWARD) + len(made) < count:
        if random.random() < 0.5:
            made.append("".join(random.choice(pool) for _ in range(random.randint(1, 40))))
        else:
            made.append((random.choice([" ", " ", "  ", ""])).join(random.choice(words) for _ in range(random.randint(1, 12))))
    return AWKWARD + made


# ---- Hugging Face's tokenizers

def charsmap(rule):
    """The compiled character map of a normalization rule of SentencePiece."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.split("\n")), model_writer=model, vocab_size=120,
                                             normalization_rule_name=rule, hard_vocab_limit=False, minloglevel=2)
    return spm_fields(model.getvalue())[3][2]


def spm_fields(data):
    """The bytes of each field of a message, of the messages in fields 2 and 3 by field."""
    def fields(data):
        at = 0
        while at < len(data):
            key, at = varint(data, at)
            if key & 7 == 0:
                value, at = varint(data, at)
            elif key & 7 == 2:
                n, at = varint(data, at)
                value, at = data[at:at + n], at + n
            else:
                n = 8 if key & 7 == 1 else 4
                value, at = data[at:at + n], at + n
            yield key >> 3, value
    return {k: dict(fields(v)) for k, v in fields(data) if k in (2, 3)}


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 128:
            return value, at


def unigram(byte_fallback=False):
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{i:02X}>" for i in range(256)] if byte_fallback else [])
    t.train_from_iterator([TEXT], trainers.UnigramTrainer(vocab_size=300 + len(special), unk_token="<unk>", special_tokens=special, show_progress=False))
    j = json.loads(t.to_str())
    j["model"]["byte_fallback"] = byte_fallback
    j["added_tokens"] = [x for x in j["added_tokens"] if x["id"] < 3]
    return j


def with_parts(j, normalizer=None, pre=None, decoder=None):
    root = json.loads(json.dumps(j))
    root["normalizer"] = root["pre_tokenizer"] = root["decoder"] = None
    t = Tokenizer.from_str(json.dumps(root))
    for key, value in (("normalizer", normalizer), ("pre_tokenizer", pre), ("decoder", decoder)):
        if value is not None:
            setattr(t, key, value)
    return t


def unigrams():
    meta, Sequence = pre_tokenizers.Metaspace, pre_tokenizers.Sequence
    j, fallback = unigram(), unigram(True)
    nmt, folding = (normalizers.Precompiled(charsmap(rule)) for rule in ("nmt_nfkc", "nmt_nfkc_cf"))
    words = Sequence([pre_tokenizers.WhitespaceSplit(), meta()])
    squeeze = normalizers.Replace(Regex(" {2,}"), MARK)
    for scheme in ("first", "always", "never"):
        yield f"unigram_{scheme}", with_parts(j, None, meta(MARK, scheme), decoders.Metaspace(MARK, scheme))
    yield "t5_old", with_parts(j, nmt, words, decoders.Metaspace())
    yield "t5", with_parts(j, normalizers.Sequence([nmt, normalizers.Strip(False, True), squeeze]), meta(), decoders.Metaspace())
    yield "albert", with_parts(j, normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
        folding, squeeze]), words, decoders.Metaspace())
    text = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(MARK, " "), decoders.Strip(" ", 1, 0)])
    yield "bytes", with_parts(fallback, None, meta(), text)
    added = with_parts(j, nmt, meta(), decoders.Metaspace())
    added.add_tokens([AddedToken("[X]", normalized=False), AddedToken("earth", normalized=True)])
    yield "unigram_added", added
    j["model"]["vocab"].append(["<0x41>", -3.0])
    yield "unigram_unsplit", with_parts(j, normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None, decoders.Metaspace())


def wordpieces():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for name, lower, options in (("bert", True, {}), ("bert_cased", False, {}), ("bert_accents", True, {"strip_accents": False}),
                                 ("bert_plain", False, {"clean_text": False, "handle_chinese_chars": False})):
        t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        t.normalizer = normalizers.BertNormalizer(lowercase=lower, **options)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False))
        t.decoder = decoders.WordPiece(cleanup=name != "bert_cased")
        t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        yield name, t
    short = json.loads(t.to_str())
    short["model"]["max_input_chars_per_word"] = 5
    yield "wordpiece_short", Tokenizer.from_str(json.dumps(short))


# ---- SentencePiece

MODELS = {
    "unigram": {},
    "unigram_bytes": {"byte_fallback": True},
    "unigram_identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "unigram_fold": {"normalization_rule_name": "nmt_nfkc_cf", "add_dummy_prefix": False},
    "unigram_user": {"user_defined_symbols": ["[X]", "<s>the", "unaff"], "control_symbols": ["[CLS]"]},
    "unigram_unsplit": {"split_by_whitespace": False},
    "bpe": {"model_type": "bpe"},
    "bpe_bytes": {"model_type": "bpe", "byte_fallback": True, "split_digits": True},
    "bpe_identity": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "bpe_user": {"model_type": "bpe", "user_defined_symbols": ["[X]", "the", MARK + MARK], "byte_fallback": True},
}


def sentencepieces(folder):
    for name, options in MODELS.items():
        path = os.path.join(folder, name + ".model")
        with open(path, "wb") as f:
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.split("\n")), model_writer=f, vocab_size=600,
                                                     hard_vocab_limit=False, minloglevel=2, **options)
        yield name, sentencepiece.SentencePieceProcessor(model_file=path)


def main(folder, count):
    texts = texts_make(int(count))
    cases = {}
    for kind, made in (("unigram", unigrams()), ("wordpiece", wordpieces())):
        for name, t in made:
            path = os.path.join(folder, name + ".json")
            t.save(path)
            ids = [t.encode(x, add_special_tokens=False).ids for x in texts]
            cases[name] = {"spec": f'{kind}("{path}")', "ids": ids, "back": [t.decode(x, skip_special_tokens=False) for x in ids]}
    for name, t in sentencepieces(folder):
        ids = [t.encode(x) for x in texts]
        spec = f'{name.split("_")[0]}("{os.path.join(folder, name)}.model")'
        cases["spm_" + name] = {"spec": spec, "ids": ids, "back": [t.decode(x) for x in ids]}
    print(json.dumps({"texts": texts, "cases": cases}))


def compress(path, vocab, ours):
    lines = open(path).read().split("\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=int(vocab), model_type="unigram",
                                             byte_fallback=True, normalization_rule_name="identity", minloglevel=2)
    theirs, ours = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()), Tokenizer.from_file(ours)
    print(json.dumps({"theirs": sum(len(theirs.encode(x)) for x in lines),
                      "ours": sum(len(ours.encode(x, add_special_tokens=False).ids) for x in lines)}))


if sys.argv[1] == "compress":
    compress(*sys.argv[2:])
else:
    main(*sys.argv[1:])
