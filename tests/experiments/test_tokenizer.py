"""TextTokenizer: a damaged file is the user's mistake, a missing one is none."""

from pathlib import Path

import pytest

from experiments.tokenizer import TextTokenizer
from specdec.errors import CheckpointError


@pytest.mark.parametrize("content", [b"{}", b"", b"{", b'{"model": 3}', b"[]", b"\xff\xfe"])
def test_damaged_tokenizer_is_refused_by_file_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json .*copy it again"):
        TextTokenizer.load(tmp_path)


def test_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert TextTokenizer.load(tmp_path) is None
