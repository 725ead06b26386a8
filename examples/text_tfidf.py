"""Paragraphs as bags of words: a vocabulary, and how telling each word is (TF-IDF).

Build it: `snapshard build examples/text_tfidf.py --out out`
"""

from typing import Any

import snapshard as ss

NUM_WORDS = 100


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    """Learns words, and how many paragraphs have each, from the train split."""
    # Imported here: reading the recipe stays quick, and `snapshard plan` needs no TensorFlow.
    import tensorflow as tf
    import tensorflow_transform as tft

    letters = tf.strings.regex_replace(inputs["text"], "[^a-z]+", " ")
    words = tft.compute_and_apply_vocabulary(
        tf.strings.split(letters).to_sparse(),
        top_k=NUM_WORDS,
        num_oov_buckets=1,
        vocab_filename="words",
    )
    found, weights = tft.tfidf(words, NUM_WORDS + 1)
    # Two lists of one length: a paragraph's distinct words, and the weight of each.
    return {"words": found, "weights": weights}


recipe = ss.Recipe(
    name="text_tfidf",
    source=ss.TextFiles("data/alice.txt", per="paragraph"),
    prepare=[ss.text.normalize("text", "NFKC", lower=True)],
    preprocessing_fn=preprocessing_fn,
    splits=ss.Splits(train=0.8, test=0.2),
)
