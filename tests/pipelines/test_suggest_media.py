"""Folders of media as people have them: splits of tars, points, lists, and what steps change."""

import io
import tarfile
import wave
from pathlib import Path

import pytest
from PIL import Image

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest
from snapshard.pipelines.recognize.readings import UnclearError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def picture(path: str, size: tuple[int, int] = (20, 24), colour: int = 0) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, colour).save(path)


def tar(path: str, first: int, num: int = 4) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for number in range(first, first + num):
            for name, content in (("cls", b"1"), ("txt", b"a text")):
                member = tarfile.TarInfo(f"{number:06}.{name}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


def sound(path: str, rate: int, channels: int = 1) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with wave.open(path, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"\0\1" * 100 * channels)


@pytest.mark.parametrize(
    "paths",
    [
        ["train-000000.tar", "train-000001.tar", "val-000000.tar"],
        ["train/000000.tar", "train/000001.tar", "val/000000.tar"],
        ["imagenet-train-000000.tar", "imagenet-train-000001.tar", "imagenet-val-000000.tar"],
    ],
)
def test_tars_are_divided_as_their_names_say(paths: list[str], tmp_path: Path) -> None:
    for number, path in enumerate(paths):
        tar(f"d/{path}", 4 * number)
    recipe, _ = suggest("d")
    snapshot = ss.build(recipe, tmp_path / "out")
    assert {name: len(snapshot.to_pandas(name)) for name in ("train", "validation")} == {
        "train": 8,
        "validation": 4,
    }


@pytest.mark.parametrize("header", ["x1,y1,x2,y2,x3,y3", "x0,y0,x1,y1,x2,y2"])
def test_points_are_no_boxes(header: str) -> None:
    for number in range(6):
        picture(f"d/images/{number}.jpg")
    rows = "".join(f"{number}.jpg,1,2,9,8,5,5\n" for number in range(6))
    Path("d/landmarks.csv").write_text(f"filename,{header}\n{rows}")
    source = suggest("d")[0].source
    assert isinstance(source, ss.ImageFolder)
    assert source.boxes is None


def test_a_list_of_all_files_leaves_none_to_train_on() -> None:
    for number in range(30):
        picture(f"d/val/{number:03}.png")
    Path("d/val.txt").write_text("".join(f"{n:03}.png {n % 2}\n" for n in range(30)))
    recipe, _ = suggest("d")
    assert dict(recipe.splits.fractions).keys() >= {"train"}


def test_folders_of_nn_u_net() -> None:
    for number in range(6):
        picture(f"d/imagesTr/case_{number}7_0000.png")
        picture(f"d/labelsTr/case_{number}7.png")
    source = suggest("d")[0].source
    assert isinstance(source, ss.ImageFolder)
    assert (source.images, source.masks) == ("imagesTr/{id}_0000", "labelsTr/{id}")
    picture("d/imagesTs/case_90_0000.png")
    with pytest.raises(UnclearError, match="labelsTr"):
        suggest("d")


@pytest.mark.parametrize(("images", "masks"), [("img_dir", "ann_dir"), ("original", "segmented")])
def test_more_names_of_images_and_masks(images: str, masks: str) -> None:
    for number in range(6):
        picture(f"d/{images}/train/{number}.png")
        picture(f"d/{masks}/train/{number}.png")
        picture(f"d/{images}/val/{number}7.png")
        picture(f"d/{masks}/val/{number}7.png")
    source = suggest("d")[0].source
    assert isinstance(source, ss.ImageFolder)
    assert (source.images, source.masks) == (images, masks)


def test_what_steps_change_is_said() -> None:
    for number in range(9):
        picture(f"d/{'ab'[number % 2]}/{number}.png", (20, 24) if number else (24, 20))
    assert (
        "Images have several sizes: those of others than (24, 20) are stretched." in suggest("d")[1]
    )
    for number in range(9):
        sound(f"s/{'ab'[number % 2]}/{number}.wav", 8000 if number else 16_000)
    assert "Sounds have several rates: they are resampled to 8,000 Hz." in suggest("s")[1]
    for number in range(9):
        sound(f"c/{'ab'[number % 2]}/{number}.wav", 8000, 1 if number else 2)
    said = "Sounds have different numbers of channels: they are mixed to one."
    assert said in suggest("c")[1]
