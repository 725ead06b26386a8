"""Paragraphs as bags of words, each word with its TF-IDF weight.

Build it: `snapshard build examples/text_tfidf.py --out out`
"""

from typing import Any

import snapshard as ss

NUM_WORDS = 100


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    """Learns the words, and how many paragraphs contain each, from the train split."""
    # Imported here, so loading the recipe is quick and `snapshard plan` needs no TensorFlow.
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
    # Two lists of equal length: a paragraph's distinct words, and their weights.
    return {"words": found, "weights": weights}


recipe = ss.Recipe(
    name="text_tfidf",
    source=ss.TextFiles("data/alice.txt", per="paragraph"),
    prepare=[ss.text.normalize("text", "NFKC", lower=True)],
    preprocessing_fn=preprocessing_fn,
    splits=ss.Splits(train=0.8, test=0.2),
)
