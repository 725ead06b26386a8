"""Formats without a source: recipes of docs/sources.md read them, and recognition names them."""

import gzip
import importlib
import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.recognize.unread_formats import FORMATS, READ
from snapshard.schemas.errors import DataError

DOCS = Path(__file__).parents[3] / "docs" / "sources.md"


def recipe(name: str) -> str:
    _, _, below = DOCS.read_text().partition("\n## Formats without a source\n")
    (code,) = re.findall(
        rf"^### {name}\n.*?^```python\n(.*?)^```$", below, re.DOTALL | re.MULTILINE
    )
    return code


def matlab() -> bytes:
    scipy, stored = pytest.importorskip("scipy.io"), io.BytesIO()
    scipy.savemat(stored, {"x": np.eye(3), "y": [0, 1, 1]})
    return stored.getvalue()


def dicom() -> bytes:
    pydicom, stored = pytest.importorskip("pydicom"), io.BytesIO()
    scan = pydicom.Dataset()
    scan.file_meta = pydicom.dataset.FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    scan.file_meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    scan.SOPClassUID, scan.SOPInstanceUID = pydicom.uid.CTImageStorage, "1.2.3"
    scan.PatientID, scan.Rows, scan.Columns = "p7", 2, 3
    scan.BitsAllocated = scan.BitsStored = 16
    scan.HighBit, scan.PixelRepresentation, scan.SamplesPerPixel = 15, 0, 1
    scan.PhotometricInterpretation = "MONOCHROME2"
    scan.PixelData = np.arange(6, dtype="<u2").tobytes()
    pydicom.dcmwrite(stored, scan, enforce_file_format=True)
    return stored.getvalue()


def nifti() -> bytes:
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.ones((2, 3, 4), np.float32), np.eye(4))
    return gzip.compress(image.to_bytes())


def heic() -> bytes:
    heif, stored = pytest.importorskip("pillow_heif"), io.BytesIO()
    heif.from_bytes("RGB", (4, 2), bytes(24)).save(stored, quality=-1)
    return stored.getvalue()


def m4a() -> bytes:
    av, stored = pytest.importorskip("av"), io.BytesIO()
    with av.open(stored, "w", format="ipod") as media:
        stream = media.add_stream("aac", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.rate = 8000
        for frame in (sound, None):
            media.mux(stream.encode(frame))
    return stored.getvalue()


def arff() -> bytes:
    pytest.importorskip("scipy")
    return b"@relation r\n@attribute n numeric\n@attribute s {a,b}\n@data\n1,a\n2.5,b\n"


def video() -> bytes:
    av, stored = pytest.importorskip("av"), io.BytesIO()
    with av.open(stored, "w", format="mp4") as media:
        stream = media.add_stream("mpeg4", rate=10, width=32, height=16, pix_fmt="yuv420p")
        picture = av.VideoFrame.from_ndarray(np.zeros((16, 32, 3), np.uint8), "rgb24")
        for frame in (*[picture] * 12, None):
            media.mux(stream.encode(frame))
    return stored.getvalue()


def idx() -> bytes:
    return gzip.compress(b"\0\0\x08\x03" + np.array([2, 28, 28], ">i4").tobytes() + bytes(2 * 784))


def pickled() -> bytes:
    return pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [3, 7]}, 2)


DIGITS: dict[str, Any] = {"label": ss.Scalar("int64"), "part": ss.Scalar("string")}
IMAGES: dict[str, Any] = {"image": ss.Tensor("uint8", (2, 4, 3)), "label": ss.ClassLabel(("a",))}
CASES: list[tuple[str, str, Callable[[], bytes], int, dict[str, Any]]] = [
    ("MATLAB", "t.mat", matlab, 3, {"x": ss.Tensor("float64", (3,)), "y": ss.Scalar("int64")}),
    (
        "DICOM",
        "t.dcm",
        dicom,
        1,
        {"image": ss.Tensor("uint16", (2, 3)), "patient": ss.Scalar("string")},
    ),
    ("NIfTI", "t.nii.gz", nifti, 1, {"volume": ss.Tensor("float32", (2, 3, 4))}),
    ("HEIC", "a/t.heic", heic, 1, IMAGES),
    ("M4A", "a/t.m4a", m4a, 1, {"sound": ss.Tensor("float32", (2048,)), "label": IMAGES["label"]}),
    ("ARFF", "t.arff", arff, 2, {"n": ss.Scalar("float64"), "s": ss.Scalar("string")}),
    (
        "video",
        "a/t.mp4",
        video,
        1,
        {"frames": ss.Tensor("uint8", (2, 16, 32, 3)), "label": IMAGES["label"]},
    ),
    (
        "IDX",
        "digits/t10k-images-idx3-ubyte.gz",
        idx,
        2,
        {"image": ss.Tensor("uint8", (28, 28, 1)), **DIGITS},
    ),
    (
        "two characters",
        "ml/ratings.dat",
        lambda: b"1::31::2.5::12600\n1::32::4::12610\n",
        2,
        {
            "user": ss.Scalar("string"),
            "movie": ss.Scalar("string"),
            "rating": ss.Scalar("float64"),
            "time": ss.Scalar("int64"),
        },
    ),
    (
        "LibSVM",
        "a9a",
        lambda: b"+1 3:1 11:0.5 \n-1 4:-1e-3\n+1 # none\n-1 1:1 2:2\n",
        4,
        {
            "label": ss.ClassLabel(("+1", "-1")),
            "indices": ss.Sequence(ss.Scalar("int64")),
            "values": ss.Sequence(ss.Scalar("float64")),
        },
    ),
    (
        "fastText",
        "reviews/train.txt",
        lambda: b"__label__pos fine .\n__label__neg bad .\n__label__pos good .\n",
        3,
        {"text": ss.Scalar("string"), "label": ss.ClassLabel(("neg", "pos"))},
    ),
    (
        "CoNLL",
        "ner/eng.train",
        lambda: b"-DOCSTART- -X- O\n\n" + b"EU NNP B-ORG\nrejects VBZ O\n. . O\n\n" * 4,
        4,
        {
            "words": ss.Sequence(ss.Scalar("string")),
            "tags": ss.Sequence(ss.Scalar("string")),
        },
    ),
    ("pickle", "data_batch_1", pickled, 2, {"image": ss.Tensor("uint8", (32, 32, 3)), **DIGITS}),
]
DIGIT = b"\0\0\x08\x03"
BESIDE = {"IDX": ("digits/t10k-labels-idx1-ubyte.gz", b"\0\0\x08\x01\0\0\0\x02\x03\x07")}
"""What a recipe reads beside the file."""


@pytest.mark.parametrize(("name", "path", "content", "num", "features"), CASES)
def test_the_recipe_reads_the_format(
    reading: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    path: str,
    content: Callable[[], bytes],
    num: int,
    features: dict[str, Any],
) -> None:
    code = recipe(name)
    for module in re.findall(r"^import (\w+)", code, re.MULTILINE):
        pytest.importorskip(module)
    reading.write(path, content())
    if name in BESIDE:
        reading.write(*BESIDE[name])
    monkeypatch.chdir(reading.folder)
    (reading.folder / "recipe.py").write_text(f"import snapshard as ss\n{code}")
    monkeypatch.syspath_prepend(str(reading.folder))
    monkeypatch.delitem(importlib.sys.modules, "recipe", raising=False)
    source = importlib.import_module("recipe").source
    got = reading.read(source)
    assert not got.rejects
    assert len(got.rows) == num
    assert got.features == features
    with pytest.raises(DataError, match=f"'Formats without a source: {name}'"):
        suggest_recipe(str(reading.folder / path.partition("/")[0]))


def test_every_format_has_a_recipe() -> None:
    named = {name for name, *_ in CASES} - {"two characters", "LibSVM", "fastText", "CoNLL"}
    assert {format.name for format in FORMATS} == {*READ, *named}
    assert all(recipe(name) for name, *_ in CASES)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"IM-1": bytes(128) + b"DICM", "IM-2": bytes(128) + b"DICM", "a.csv": b"x\n1\n"}, "DICOM"),
        ({"x/clip": b"\0\0\0\x20ftypisom", "x/notes.txt": b"", "y/clip": b"\0"}, "video"),
        ({"a.xlsx": b"PK", "t.csv": b"x\n1\n"}, None),
        ({"train-images-idx3-ubyte": DIGIT, "train-labels-idx1-ubyte": DIGIT}, "IDX"),
        ({"train-images.idx3-ubyte": DIGIT, "x/t10k-labels-idx1-ubyte.gz": b"1"}, "IDX"),
        ({"a.pkl": b"1", "b.pickle": b"1", "x.md": b""}, "pickle"),
        ({"data_batch_1": pickle.dumps([1]), "test": pickle.dumps(2), "b.meta": b"1"}, "pickle"),
        ({"a.pkl": b"1", "b.pkl": b"1", "t.csv": b"x\n1\n"}, None),
    ],
)
def test_most_files_decide(reading: Any, files: dict[str, bytes], name: str | None) -> None:
    for path, content in files.items():
        reading.write(f"d/{path}", content)
    if name is None:
        assert isinstance(suggest_recipe(str(reading.folder / "d")).source, ss.Csv)
    else:
        with pytest.raises(DataError, match=f"2 {name} files "):
            suggest_recipe(str(reading.folder / "d"))


WORDS = "EU\tB-ORG\nrejects\tO\n\n" * 4
TREES = "# text = A :\n1\tA\tNOUN\t_\n1-2\tb\tX\t_\n2\t:\tPUNCT\t_\n\n" * 4


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        ("t.tsv", WORDS, "CoNLL"),
        ("t.txt", WORDS.replace("\t", " "), "CoNLL"),
        ("t.conllu", TREES, "CoNLL"),
        ("t.tsv", WORDS.replace("\n\n", "\n"), None),  # no sentences
        ("t.csv", "a,b\nx,y\n\nz,v\nw,u\n\np,q\n\nr,s\n", None),
        ("t.dat", "1.5 2.5\n2.5 3.5\n\n" * 4, None),  # numbers in groups
        ("t.dat", "time value\n" + "1.5 2.5\n2.5 3.5\n\n" * 4, None),
        ("t.txt", "Größe N\nÜber P\n\n" * 4, "CoNLL"),
        ("t.txt", "A line.\nOf a verse.\n\n" * 4, None),
        ("t.txt", "1 2:1\n0 3:1\n1 1:2\n", "LibSVM"),
        ("t.txt", "1 5:30 the train\n2 6:10 the bus\n", None),
        ("t.txt", "1\n2\n3\n", None),
        ("t.txt", "__label__a x\nA text about __label__b\n", None),
    ],
)
def test_lines_that_show_their_format(reading: Any, path: str, text: str, name: str | None) -> None:
    reading.write(path, text.encode())
    url = str(reading.folder / path)
    if name is None:
        assert isinstance(suggest_recipe(url).source, ss.Csv | ss.TextFiles)
    else:
        with pytest.raises(
            DataError, match=f"{path} is {name}.*'Formats without a source: {name}'"
        ):
            suggest_recipe(url)
