"""A text as a language model reads it: words as numbers, packed into rows of one length.

Build it: `snapshard build examples/text_packed.py --out out`
"""

import snapshard as ss

recipe = ss.Recipe(
    name="text_packed",
    source=ss.TextFiles("data/alice.txt", per="paragraph"),
    prepare=[
        ss.text.normalize("text", "NFKC", lower=True),
        # A word's number is its line in the file; line 0 is `<pad>`, which fills the end of a row.
        ss.text.tokenize("text", "data/alice_words.txt", split="[^a-z]+", unknown="<unknown>"),
        ss.text.truncate("text", 128),
        # Also adds `text_segments` (which paragraph of the row each word is from) and
        # `text_positions` (its position in that paragraph).
        ss.text.pack("text", 256),
    ],
    splits=ss.Splits(train=0.8, test=0.2),
)
