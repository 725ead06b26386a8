"""What folders of images and sounds mean, by their paths: read, or refused with lines to copy."""

from collections.abc import Iterable
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.recognize.file_names import name_pattern
from snapshard.pipelines.recognize.media_folders import Reading, UnclearError, recognize_folders
from snapshard.transforms.sources.folders.labels import compile_pattern

IMAGES = ss.ImageFolder
BY = ss.Splits.by_folder


def files(*folders: str, num: int = 4, name: str = "{}.jpg", first: int = 0) -> list[str]:
    return [f"{folder}/{name.format(n)}" for folder in folders for n in range(first, first + num)]


def recognize(
    paths: Iterable[str], *others: str, make: Any = IMAGES, joins: bool = True
) -> Reading:
    return recognize_folders(make, "d", list(paths), others, joins=joins)


def each(*parts: Iterable[str]) -> list[str]:
    """All combinations of the parts of a path."""
    found = [""]
    for part in parts:
        found = [f"{path}/{name}".lstrip("/") for path in found for name in part]
    return found


CLASSES = ("daisy", "rose")
PLAIN = files(*CLASSES)
WNIDS = ("n01440764", "n01443537", "n01484850")
DEFECTS = [
    *files("train/good", "test/good", "test/hole", name="{}.png"),
    *files("ground_truth/hole", name="{}_mask.png"),
]
"""Masks of some images, as in data sets of anomalies."""


def of_two(first: str, second: str, pair: tuple[str, str] | None = None) -> list[str]:
    """Two folders of images: as pairs, and as images and masks."""
    one, other = pair or (first, second)
    return [
        f'source=ss.ImageFolder("d", pair={{"{one}": "{first}", "{other}": "{second}"}})',
        f'source=ss.ImageFolder("d", label="mask", masks="{second}", images="{first}")',
        f'source=ss.ImageFolder("d", label="mask", masks="{first}", images="{second}")',
    ]


def of_defects(url: str) -> list[str]:
    masks = 'masks="ground_truth/{folder1}/{id}_mask", images="test/{folder1}/{id}"'
    return [
        f'source=ss.Sources(train=ss.ImageFolder("{url}/train"), test=ss.ImageFolder("{url}/test")'
        "), splits=ss.Splits.by_folder()",
        f'source=ss.ImageFolder("{url}", label="mask", {masks}), max_rejects=4',
    ]


@pytest.mark.parametrize(
    ("paths", "source", "splits"),
    [
        (PLAIN, IMAGES("d"), None),
        ([f"flowers/photos/{path}" for path in PLAIN], IMAGES("d/flowers/photos"), None),
        (files(*each(("train",), CLASSES)), IMAGES("d/train"), None),
        (files("train/a/b/c"), IMAGES("d/train/a/b/c", label=None), None),
        (
            files(*each(("Training", "Validation"), WNIDS)),
            IMAGES("d", split_folders=True),
            BY(train="Training", validation="Validation"),
        ),
        (
            files(*each(("train", "val", "test"), CLASSES)),
            IMAGES("d", split_folders=True),
            BY(),
        ),
        (
            files(
                *each(("seg_train",), ("seg_train",), CLASSES),
                *each(("seg_test",), ("x",), CLASSES),
            ),
            IMAGES("d", pattern="*/*/{label}/*"),
            BY(train="seg_train", test="seg_test"),
        ),
        (
            files(*each(CLASSES, ("train", "test"))),
            IMAGES("d", pattern="{label}/{split}/*"),
            ss.Splits.by_column("split", train="train", test="test"),
        ),
        (files(*each(CLASSES, ("images",))), IMAGES("d"), None),
        (
            [*files("cat", name="{}_cat.png"), *files("dog", name="{}_dog_b.png", first=3)],
            IMAGES("d"),
            None,
        ),
        (files(*CLASSES, "daisy/more"), IMAGES("d"), None),
        (
            files("train", "test"),
            IMAGES("d", label=None, split_folders=True),
            BY(train="train", test="test"),
        ),
        (
            files("train", "dev", num=9, name="IMG_{}.jpg"),
            IMAGES("d", label=None, split_folders=True),
            BY(train="train", validation="dev"),
        ),
        (
            [f"train/{c}.{n}.jpg" for c in ("cat", "dog") for n in range(5)],
            IMAGES("d/train", pattern="{label}.{n}.jpg"),
            None,
        ),
        (
            [
                f"{s}/{c}-{n}.jpg"
                for s in ("train", "test")
                for c in ("cat", "dog")
                for n in range(5)
            ],
            IMAGES("d", pattern="{label}-{n}.jpg", split_folders=True),
            BY(train="train", test="test"),
        ),
        ([f"IMG{n}.jpg" for n in range(4)], IMAGES("d", label=None), None),
        ([f"image_{n}.jpg" for n in range(4)], IMAGES("d", label=None), None),
        # Masks.
        (
            files("JPEGImages", "SegmentationClass"),
            IMAGES("d", images="JPEGImages", masks="SegmentationClass"),
            None,
        ),
        (
            files(*each(("images", "masks"), ("train", "val"))),
            IMAGES("d", images="images", masks="masks", pattern="*/{split}/*"),
            ss.Splits.by_column("split", train="train", validation="val"),
        ),
        (
            files(*each(("x",), ("annotations", "images"), ("training", "validation"), ("a",))),
            IMAGES("d/x", images="images", masks="annotations", pattern="*/{split}/*/*"),
            ss.Splits.by_column("split", train="training", validation="validation"),
        ),
        (
            files(*each(("before", "after"), ("train", "val"))),
            ss.ImageFolder("d", pair={"before": "before", "after": "after"}, pattern="*/{split}/*"),
            ss.Splits.by_column("split", train="train", validation="val"),
        ),
        (
            files(*each(("train", "val"), ("imgs", "masks"))),
            IMAGES("d", images="imgs", masks="masks", split_folders=True),
            BY(train="train", validation="val"),
        ),
        (
            [*files("images"), *files("labels", name="{}_seg.png")],
            IMAGES("d", images="images/{id}", masks="labels/{id}_seg"),
            None,
        ),
        (
            files(*(f"case{n}" for n in range(5)), num=1, name="image.png")
            + files(*(f"case{n}" for n in range(5)), num=1, name="mask.png"),
            IMAGES("d", images="{id}/image", masks="{id}/mask"),
            None,
        ),
        (
            [f"p{n}.jpg" for n in range(5)] + [f"p{n}_mask.png" for n in range(5)],
            IMAGES("d", images="{id}", masks="{id}_mask"),
            None,
        ),
        (
            [
                *files("TR/D-TR-Image", "TE/D-TE-Image"),
                *files("TR/D-TR-Mask", "TE/D-TE-Mask", name="{}.png"),
            ],
            IMAGES(
                "d",
                split_folders=True,
                label="mask",
                images="{outer}/{folder}-Image/{id}",
                masks="{outer}/{folder}-Mask/{id}",
            ),
            BY(train="tr", test="te"),
        ),
        (files("low", "high"), IMAGES("d"), None),
        (files("low", "medium", "high"), IMAGES("d"), None),
        (
            files(*(f"seq{n}_img" for n in range(30)), *(f"seq{n}_mask" for n in range(30)), num=2),
            IMAGES("d", images="{folder}_img/{id}", masks="{folder}_mask/{id}"),
            None,
        ),
        # As many names of roles as files: they are names of samples.
        (
            [
                *files("images", num=999, name="img_{}.jpg"),
                *files("masks", num=999, name="img_{}_mask.png"),
            ],
            IMAGES("d", images="images/{id}", masks="masks/{id}_mask"),
            None,
        ),
        (
            [f"{s}_{n}.jpg" for s in ("train", "test") for n in range(5)],
            IMAGES("d", label=None, pattern="{split}_{n}.jpg"),
            ss.Splits.by_column("split", train="train", test="test"),
        ),
        (
            [*files("train", name="{}_01.jpg"), *files("train_masks", name="{}_01_mask.gif")],
            IMAGES("d", images="{folder}/{id}", masks="{folder}_masks/{id}_mask"),
            None,
        ),
        (
            [
                *files("train", "val", name="S{}.png"),
                *files("train_labels", "val_labels", name="S{}_L.png"),
            ],
            IMAGES("d", images="{folder}/{id}", masks="{folder}_labels/{id}_L", split_folders=True),
            BY(train="train", validation="val"),
        ),
        (
            [*files("PNGImages", name="Ped{}.png"), *files("PedMasks", name="Ped{}_mask.png")],
            IMAGES("d", label="mask", images="PNGImages/{id}", masks="PedMasks/{id}_mask"),
            None,
        ),
        (
            files("PNG/Original", "PNG/Ground Truth"),
            IMAGES("d/PNG", label="mask", images="Original", masks="Ground Truth"),
            None,
        ),
        (
            [*files("train", name="{}_sat.jpg"), *files("train", name="{}_mask.png")],
            IMAGES("d/train", label="mask", images="{id}_sat", masks="{id}_mask"),
            None,
        ),
        (
            files("train", "trainannot", "val", "valannot"),
            IMAGES(
                "d",
                split_folders=True,
                label="mask",
                images="{folder}/{id}",
                masks="{folder}annot/{id}",
            ),
            BY(train="train", validation="val"),
        ),
        (
            [
                *files("Task1-2_Training_Input", name="X_{:07}.jpg"),
                *files("Task1_Training_GroundTruth", name="X_{:07}_segmentation.png"),
            ],
            IMAGES(
                "d",
                images="Task1-2_Training_Input/{id}",
                masks="Task1_Training_GroundTruth/{id}_segmentation",
            ),
            None,
        ),
        (
            files(*each(("signs_train", "signs_test"), "ABC")),
            IMAGES("d", split_folders=True),
            BY(train="signs_train", test="signs_test"),
        ),
        (files("before", "after"), IMAGES("d", pair={"before": "before", "after": "after"}), None),
        (
            files(*each(("train", "test"), ("Noisy", "clean"))),
            IMAGES("d", pair={"noisy": "Noisy", "clean": "clean"}, split_folders=True),
            BY(train="train", test="test"),
        ),
        ([f"{c}/{c}_{n}.jpg" for c in CLASSES for n in range(3)], IMAGES("d"), None),
        (
            [f"images/{c}_{n}.jpg" for c in ("Sphynx", "american_bulldog") for n in range(9, 12)],
            IMAGES("d/images", pattern="{label}_{n:d}.jpg"),
            None,
        ),
        (
            [f"{s}/{c}-{n}.jpg" for s in ("train", "val") for c in ("a", "b-c") for n in "12"],
            IMAGES("d", pattern="{label}-{n:d}.jpg", split_folders=True),
            BY(train="train", validation="val"),
        ),
        (files(*"abcdef", num=1), IMAGES("d"), None),
    ],
)
def test_what_is_clear(paths: list[str], source: Any, splits: Any) -> None:
    reading = recognize(paths, "README.md", "daisy/notes.txt")
    assert (reading.source, reading.splits) == (source, splits)


def test_other_parts_of_names_that_may_be_the_label_are_said() -> None:
    names = [f"{k}_{w}_{e}.wav" for k in (1, 2, 3) for w in ("dog", "cat") for e in ("sad", "joy")]
    (note,) = recognize(names, make=ss.AudioFolder).notes
    expected = "{field2} ('cat', 'dog'); {field3} ('joy', 'sad')."
    assert note == f"The label may be another part of the names: {expected}"
    codes = [f"03-01-0{k}-02-01-01-0{n}.wav" for k in range(4) for n in range(9)]
    (note,) = recognize(codes, make=ss.AudioFolder).notes
    assert note.endswith("names: one of those in '03-01-00-02-01-01'.")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("{group}_{n}.jpg", "{label}/{group}_{n:d}.jpg"),
        ("v_{group}_g01-000{n}.jpg", "{label}/{group}-{n:d}.jpg"),
        ("{group}_{side}.png", "{label}/{group}_{side}.png"),
        ("{group}_x_{side}.png", None),
        ("{n}_{group}.jpg", None),
        ("img_{group}.jpg", None),
    ],
)
def test_names_of_frames_and_sides_are_said(name: str, pattern: str | None) -> None:
    paths = [
        f"{label}/{name.format(group=f'{label[0]}{group}', n=n, side=side)}"
        for label in CLASSES
        for group in range(9)
        for n, side in enumerate(("left", "right"))
    ]
    notes = recognize(sorted(set(paths))).notes
    assert [f"pattern={pattern!r}" in note for note in notes] == [True] * (pattern is not None)
    if pattern is not None:
        assert notes[0].startswith(f"Names such as {min(paths)!r} may say which records belong")
        expression = compile_pattern(pattern)
        found = [expression.fullmatch(path) for path in paths]
        groups = {match["group"] for match in found if match}
        assert None not in found
        assert len(groups) == 9 * len(CLASSES)


@pytest.mark.parametrize("splits", [(), ("train", "test")])
def test_counted_files_that_may_be_pairs_are_said(splits: tuple[str, ...]) -> None:
    folders = [f"{s}/{c}" for s in splits for c in "AB"] or ["A", "B"]
    (note,) = recognize(files(*folders, num=9)).notes
    assert note.startswith("Files have the same names in 'A', 'B'. As pairs: source=ss.ImageFolder")
    assert 'pair={"a": "A", "b": "B"}' in note
    assert recognize([*files(*folders, num=9), f"{folders[0]}/9.jpg"]).notes == ()
    assert recognize(files(*folders, num=3)).notes == recognize(files(*"ABC", num=9)).notes == ()


def test_folders_of_masks_that_are_no_feature_are_said() -> None:
    reading = recognize(files(*each(("ill", "well"), ("images", "masks"))))
    assert reading.source == IMAGES("d", images="images", masks="masks")
    (note,) = reading.notes
    assert note == (
        "The names of the folders 'ill', 'well' are in no feature; "
        'pattern="{group}/*/*" makes them one.'
    )


@pytest.mark.parametrize(
    ("paths", "others", "seen", "lines"),
    [
        (
            files("cat/persian", "cat/siam", "dog/husky", "dog/poodle", name="{}x.jpg"),
            [],
            r"2 levels of folders \('cat', 'dog'; 'husky', 'persian', .*\), and one can be",
            ['source=ss.ImageFolder("d", pattern="*/{label}/*")', 'source=ss.ImageFolder("d")'],
        ),
        (
            [*files(*each(("train",), CLASSES)), *files("test")],
            [],
            "images at several depths: those of 'test' are in no class folder",
            ['source=ss.ImageFolder("d/train")'],
        ),
        (
            files("train/neg", "train/pos", "train/unsup", "test/neg", "test/pos"),
            [],
            "a folder named 'unsup': records without a label, or a class",
            [
                f'source=ss.ImageFolder("{url}", split_folders=True), '
                'splits=ss.Splits.by_folder(train="train", test="test")'
                for url in ("d/*/[np]*/*", "d")
            ],
        ),
        (
            [*files("train/a", "train/b", "train/Unlabeled", "test/a", "test/b"), "loose.jpg"],
            [],
            r"1 images beside the folders \(first: 'loose.jpg'\)",
            [
                'source=ss.ImageFolder("d/*/[ab]*/*", split_folders=True), '
                'splits=ss.Splits.by_folder(train="train", test="test")',
                'source=ss.ImageFolder("d/test")',
                'source=ss.ImageFolder("d", label=None)',
            ],
        ),
        (
            files("up", "unlabelled", "down"),
            [],
            "a folder named 'unlabelled'",
            ['source=ss.ImageFolder("d")'],  # no glob tells it from "up"
        ),
        (
            files("yes", "no", "_background_noise_"),
            [],
            "a folder named '_background_noise_'",
            ['source=ss.ImageFolder("d/[ny]*/*")', 'source=ss.ImageFolder("d")'],
        ),
        (
            [*PLAIN, "loose.jpg"],
            [],
            r"1 images beside the folders \(first: 'loose.jpg'\)",
            ['source=ss.ImageFolder("d/*/*")', 'source=ss.ImageFolder("d", label=None)'],
        ),
        (
            files("train/Cat", "train/dog", "test/cat", "test/dog"),
            [],
            "differ in case only: 'Cat', 'cat'",
            [
                'source=ss.ImageFolder("d", split_folders=True), '
                'splits=ss.Splits.by_folder(train="train", test="test")'
            ],
        ),
        (
            [*files("photo", name="{}_photo.png"), *files("fine", name="{}_fine_ids.png")],
            [],
            "images in 'photo', .* in 'fine'",
            [
                'source=ss.ImageFolder("d", label="mask", masks="fine/{id}_fine_ids", '
                'images="photo/{id}_photo")'
            ],
        ),
        (files("left", "right"), [], "folders named 'left', 'right'", []),
        (
            files("left", "right", "straight"),
            [],
            "folders named 'left', 'right', which",
            ['source=ss.ImageFolder("d")'],
        ),
        (
            files("train/good", "test/good", "test/bad", "ground_truth/bad"),
            [],
            "folders named 'ground_truth', which",
            [line.replace("_mask", "") for line in of_defects("d")],
        ),
        (
            files("fold1", "fold2"),
            [],
            "folds or parts",
            ['source=ss.ImageFolder("d")', 'source=ss.ImageFolder("d", label=None)'],
        ),
        (
            files("Actor_01", "Actor_02"),
            [],
            "folders named 'Actor_01', 'Actor_02': people or parts of a recording, or classes",
            ['source=ss.ImageFolder("d", label=None)', 'source=ss.ImageFolder("d")'],
        ),
        (
            files("2021-01", "2021-02-03"),
            [],
            "folders named '2021-01', '2021-02-03': dates, or classes",
            ['source=ss.ImageFolder("d", label=None)', 'source=ss.ImageFolder("d")'],
        ),
        (
            files("2021/1", "2021/12"),
            [],
            "folders named '2021/1', '2021/12': dates, or classes",
            ['source=ss.ImageFolder("d/2021", label=None)', 'source=ss.ImageFolder("d/2021")'],
        ),
        (
            files("train/p1", "train/p2", "test/p3"),
            [],
            "folders of which none is in both 'test' and 'train'",
            [
                'source=ss.ImageFolder("d", split_folders=True, label=None), '
                'splits=ss.Splits.by_folder(train="train", test="test")',
                'source=ss.ImageFolder("d", split_folders=True), '
                'splits=ss.Splits.by_folder(train="train", test="test")',
            ],
        ),
        (
            files("a", "b", name="IMG_2{}7.jpg"),
            [],
            "files of the same names in all of the folders 'a', 'b'",
            [*of_two("a", "b"), 'source=ss.ImageFolder("d")'],
        ),
        (  # KITTI
            files("training/image_2", "training/semantic", "testing/image_2", name="00{}_10.png"),
            [],
            "files of the same names in all of the folders 'image_2', 'semantic'",
            [
                *(
                    f"{line}, max_rejects=4"
                    for line in of_two("image_2", "semantic", pair=("image2", "semantic"))
                ),
                'source=ss.ImageFolder("d", split_folders=True), '
                'splits=ss.Splits.by_folder(train="training", test="testing")',
            ],
        ),
        (  # Libri2Mix
            files(*each(("train", "dev"), ("mix", "s1", "s2")), name="10{}-11.wav"),
            [],
            "files of the same names in all of the folders 'mix', 's1', 's2'",
            [
                'source=ss.ImageFolder("d", split_folders=True), '
                'splits=ss.Splits.by_folder(train="train", validation="dev")'
            ],
        ),
        (  # FFHQ
            files("00000", "01000", "02000"),
            [],
            "folders named '00000', '01000', '02000', which may only divide many files",
            ['source=ss.ImageFolder("d", label=None)', 'source=ss.ImageFolder("d")'],
        ),
        (
            files("0a", "1f", "c3"),
            [],
            "folders named '0a', '1f', 'c3', which may only divide many files",
            ['source=ss.ImageFolder("d", label=None)', 'source=ss.ImageFolder("d")'],
        ),
        (
            files("sub-01", "sub-02"),
            [],
            "folders named 'sub-01', 'sub-02': people or parts of a recording, or classes",
            ['source=ss.ImageFolder("d", label=None)', 'source=ss.ImageFolder("d")'],
        ),
        (
            [*files("cat"), *files("dog", num=5), *files("augmented", num=6)],
            [],
            "a folder named 'augmented': copies of others, or a class",
            ['source=ss.ImageFolder("d")'],
        ),
        (  # SIDD
            [f"S{n}_{n}/{kind}_SRGB_01{n}.PNG" for n in range(4) for kind in ("GT", "NOISY")],
            [],
            "4 folders with files of the same kinds, 'GT_SRGB_010', 'NOISY_SRGB_010' for example",
            ['source=ss.ImageFolder("d")'],
        ),
        (
            files("x", "y", "z", num=1, name="front.jpg")
            + files("x", "y", "z", num=1, name="side.jpg"),
            [],
            "3 folders with the same files, 'front', 'side'",
            [],
        ),
        (
            files("images"),
            ["labels.csv"],
            "'labels.csv', which may describe",
            ['source=ss.ImageFolder("d/images", label=None)'],
        ),
        (
            files("images"),
            [f"txt/{n}.txt" for n in range(3)],
            r"texts of their names \(<name>.txt\), but 1 have none",
            [
                'source=ss.ImageFolder("d", label=None, texts=".txt"), max_rejects=1',
                'source=ss.ImageFolder("d/images", label=None)',
            ],
        ),
        (
            [*files("images", num=9), *files("masks", num=5)],
            [],
            r"images \(images\) and masks \(masks\), but 4 of 14 files have no partner",
            ['source=ss.ImageFolder("d", label="mask", masks="masks")'],
        ),
        (
            [*(f"train/{c}.{n}.jpg" for c in ("cat", "dog") for n in range(5)), *files("test1")],
            [],
            "labels in the names of the files in 'train', and not in 'test1'",
            ['source=ss.ImageFolder("d/train", pattern="{label}.{n}.jpg")'],
        ),
        (
            files(*each(("Train",), "01"), "Test", "Meta"),
            ["Train.csv"],
            "images at several depths: those of 'Test' are in no class folder",
            ['source=ss.ImageFolder("d/Train")'],
        ),
        (
            files("a_img", "b_img", name="{}.jpg") + files("a_mask", "b_mask", name="of {}0.png"),
            [],
            "folders named 'a_img', 'a_mask', 'b_img', 'b_mask', which",
            [],
        ),
        (
            [f"{s}_{c}_{n}.jpg" for s in ("train", "test") for c in CLASSES for n in range(4)],
            [],
            "names begin with a split \\('test', 'train'\\), and the part that follows",
            [
                'source=ss.ImageFolder("d", pattern="{split}_{label}_{n}.jpg"), '
                'splits=ss.Splits.by_column("split", train="train", test="test")',
                'source=ss.ImageFolder("d", pattern="{split}_{field2}_{n}.jpg", label=None), '
                'splits=ss.Splits.by_column("split", train="train", test="test")',
            ],
        ),
        (
            files("X_train_HR", "X_valid_HR"),
            [],
            "splits, parts of records, or classes",
            ['source=ss.ImageFolder("d")', 'source=ss.ImageFolder("d", label=None)'],
        ),
        (
            [f"{age}_{kind}_2017{n}.jpg" for age in (20, 21) for kind in "01" for n in range(3)],
            [],
            "names begin with one of 2 numbers",
            [
                'source=ss.ImageFolder("d", pattern="{label}_{field2}_{n}.jpg")',
                'source=ss.ImageFolder("d", label=None)',
            ],
        ),
        (
            [f"pets/{n}_{c}.jpg" for c in ("beagle", "american_bulldog") for n in range(4)],
            [],
            "one of 2 words \\('american_bulldog', 'beagle'\\), which may be classes, but no",
            ['source=ss.ImageFolder("d/pets", label=None)'],
        ),
        (
            [f"pets/{c}{n}.jpg" for c in ("DSC", "IMG_A") for n in range(4)],
            [],
            "one of 2 words \\('DSC', 'IMG_A'\\), which may be classes",
            [
                'source=ss.ImageFolder("d/pets", pattern="{label}{n:d}.jpg")',
                'source=ss.ImageFolder("d/pets", label=None)',
            ],
        ),
        (
            [f"{c}/front.jpg" for c in "abcd"],
            [],
            "4 folders with one file each, 'front'",
            ['source=ss.ImageFolder("d", label=None)', 'source=ss.ImageFolder("d")'],
        ),
        (
            [f"{s}/{c}{n}.jpg" for s in ("train", "test") for c in CLASSES for n in range(4)],
            [],
            "one of 2 words \\('daisy', 'rose'\\), which may be classes",
            [
                'source=ss.ImageFolder("d", pattern="{label}{n:d}.jpg", split_folders=True), '
                'splits=ss.Splits.by_folder(train="train", test="test")',
                'source=ss.ImageFolder("d", split_folders=True, label=None), '
                'splits=ss.Splits.by_folder(train="train", test="test")',
            ],
        ),
        (
            [*files(*each(("train", "test"), CLASSES), num=9), *files("train"), "notes.jpg"],
            [],
            "1 images beside the folders",
            [
                'source=ss.ImageFolder("d/*/*/*", split_folders=True), '
                'splits=ss.Splits.by_folder(train="train", test="test")',
                'source=ss.ImageFolder("d/test")',
                'source=ss.ImageFolder("d", label=None)',
            ],
        ),
        (
            files(*CLASSES, "daisy/thumbs", "rose/thumbs"),
            [],
            "images at several depths",
            ['source=ss.ImageFolder("d/*/*")'],
        ),
        (
            [f"{i}/images/{i}.png" for i in range(5)]
            + [f"{i}/masks/{i}{j}.png" for i in range(5) for j in range(3)],
            [],
            "folders named 'images', 'masks'",
            [],
        ),
        (
            files(*each(("run", "walk"), ("1", "2")), num=8, name="{:04}.jpg"),
            [],
            "2 levels of folders",
            [
                'source=ss.ImageFolder("d", pattern="*/{label}/*")',
                'source=ss.ImageFolder("d")',
                'source=ss.ClipFolder("d")',
            ],
        ),
        (DEFECTS, [], "folders named 'ground_truth'", of_defects("d")),
        (
            [f"{name}/{path}" for name in ("bottle", "cable") for path in DEFECTS],
            [],
            "folders named 'ground_truth'.*\\n  Only 'bottle'",
            of_defects("d/bottle"),
        ),
        (
            [path.replace("test/good", "test/bad") for path in DEFECTS],
            [],
            "folders named 'ground_truth'",
            of_defects("d"),
        ),
        (
            [*DEFECTS, "ground_truth/hole/9_mask.png"],
            [],
            "folders named 'ground_truth'",
            of_defects("d")[:1],
        ),
        (
            [
                path
                for city in ("train/ulm/ulm", "val/bonn/bonn")
                for n in range(4)
                for path in (
                    f"rgb8/{city}_{n}_rgb8.png",
                    f"fine/{city}_{n}_fine_color.png",
                    f"fine/{city}_{n}_fine_labelIds.png",
                )
            ],
            [],
            r"images in 'rgb8', .* in 'fine' that may be its mask \('{id}_fine_color', '{id}_fine",
            [
                'source=ss.ImageFolder("d", pattern="*/{split}/*/*", label="mask", masks="fine/'
                f'{{folder1}}/{{folder2}}/{{id}}_fine_{kind}", images="rgb8/{{folder1}}/{{folder2}}'
                '/{id}_rgb8"), splits=ss.Splits.by_column("split", train="train", validation="val")'
                for kind in ("labelIds", "color")
            ],
        ),
    ],
)
def test_what_is_not_clear(
    paths: list[str], others: list[str], seen: str, lines: list[str]
) -> None:
    with pytest.raises(UnclearError, match=seen) as caught:
        recognize(paths, *others)
    said = [line.strip() for line in str(caught.value).splitlines() if "  source=" in line]
    assert said == [reading.line() for reading in caught.value.readings] == lines


def test_sounds_are_read_alike() -> None:
    paths = files(*each(("training", "testing"), ("yes", "no")), name="{}.wav")
    reading = recognize(paths, "cover.jpg", make=ss.AudioFolder)
    assert reading.source == ss.AudioFolder("d", split_folders=True)
    assert reading.splits == BY(train="training", test="testing")
    with pytest.raises(UnclearError, match="2 levels of folders"):
        recognize(files(*each("ab", "xy"), name="{}.wav"), make=ss.AudioFolder)


def test_sounds_whose_names_begin_with_numbers_beside_a_table() -> None:
    paths = [f"clips/{fold}-{n}-A.wav" for fold in (1, 2) for n in range(4)]
    pattern = "{label}-{field2}-{field3}.wav"
    assert recognize(paths, make=ss.AudioFolder).source.pattern == pattern
    with pytest.raises(UnclearError, match="names begin with one of 2 numbers") as caught:
        recognize(paths, "meta/clips.csv", make=ss.AudioFolder)
    assert [reading.source.pattern for reading in caught.value.readings] == [pattern, None]


def test_common_folders_of_a_glob_are_not_descended() -> None:
    reading = recognize([f"photos/{path}" for path in PLAIN], joins=False)
    assert reading.source == IMAGES("d", pattern="*/{label}/*")


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["a_1.wav", "b_2.wav", "a_3.flac", "b_4.wav"], "{label}_{n}.*"),
        (["a-x-y.wav", "b-x-z.wav", "a-q-y.wav", "b-q-y.wav"], "{label}-{field2}-{field3}.wav"),
        (["a.1.jpg", "b.2.jpg", "a.3.jpg", "b.4.jpg"], "{label}.{n}.jpg"),
        (["a_1.wav", "b_2.wav", "c_3.wav"], None),
        (["a_1.wav", "a_2.wav", "a_3.wav"], None),
        (["a_1.wav", "b_2.wav", "a_3_x.wav", "b_4.wav"], None),
        (["1.wav", "2.wav"], None),
        (["_1.wav", "_2.wav", "b_3.wav", "b_4.wav"], None),
    ],
)
def test_name_pattern(names: list[str], pattern: str | None) -> None:
    assert name_pattern(names) == pattern
