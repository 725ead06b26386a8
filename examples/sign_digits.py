"""Photographs of hands signing the digits 0 to 9: decoded, resized, stratified by class.

Build it: `snapshard build examples/sign_digits.py --out out`
"""

import snapshard as ss

recipe = ss.Recipe(
    name="sign_digits",
    source=ss.ImageFolder("data/sign_digits"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (64, 64))],
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, stratify_by="label"),
)
