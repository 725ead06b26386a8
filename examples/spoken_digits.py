"""Spoken digits: class and speaker from the file names, log-mel spectrograms of one second.

Build it: `snapshard build examples/spoken_digits.py --out out`
"""

import snapshard as ss

recipe = ss.Recipe(
    name="spoken_digits",
    source=ss.AudioFolder("data/spoken_digits_sample", pattern="{label}_{speaker}_{n}.wav"),
    prepare=[
        ss.audio.decode("audio", rate=8000, mono=True),
        ss.audio.trim_or_pad("audio", 8000),
        ss.audio.log_mel("audio", num_mels=40),
    ],
    # By record, so all voices in the test split are known from training.
    # Splits(group_by="speaker") would put all recordings of a person into one split.
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1),
)
