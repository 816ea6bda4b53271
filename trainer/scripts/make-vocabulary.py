#!/usr/bin/env python3
"""Writes a file of ranks for --bpe: `make-vocabulary.py TEXT MERGES > FILE`.

Each round merges the pair of tokens that stands side by side most often, as Sennrich and others (2016) did; of pairs that
are equally frequent the first by its bytes. A pair stands within a word and what separates it from the word before. The file
that tests read, tests/fixtures/small.tiktoken, is of text/training.txt with 64 merges.
"""

import base64
import collections
import re
import sys


def main(path, merges):
    text = open(path, "rb").read()
    words = collections.Counter(re.findall(rb"\s*\S+|\s+", text))
    parts = {word: [bytes([byte]) for byte in word] for word in words}
    tokens = [bytes([byte]) for byte in range(256)]
    while len(tokens) < 256 + merges:
        pairs = collections.Counter()
        for word, tokens_of in parts.items():
            for pair in zip(tokens_of, tokens_of[1:]):
                pairs[pair] += words[word]
        known = set(tokens)
        found = [(-count, pair) for pair, count in pairs.items() if pair[0] + pair[1] not in known]
        if not found:
            break
        first, second = min(found)[1]
        tokens.append(first + second)
        for tokens_of in parts.values():
            at = 0
            while at + 1 < len(tokens_of):
                if (tokens_of[at], tokens_of[at + 1]) == (first, second):
                    tokens_of[at : at + 2] = [first + second]
                at += 1
    for rank, token in enumerate(tokens):
        print(base64.b64encode(token).decode(), rank)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
