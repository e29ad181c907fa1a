"""TextTokenizer: the ``tokenizer.json`` of a checkpoint folder; knows nothing of models or requests."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from specdec.errors import CheckpointError

FILE = "tokenizer.json"


class TextTokenizer:
    """Text to token ids and back, for one checkpoint.

    ``encode`` never adds special tokens; ``decode`` leaves special tokens out and shows an incomplete
    multi-byte character as U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, folder: Path) -> "TextTokenizer | None":
        """The folder's tokenizer, or None when it has none; raises CheckpointError when the file is damaged."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); copy it again") from None
        try:
            return cls(Tokenizer.from_str(text))
        # The library raises nothing narrower.
        except Exception as error:
            raise CheckpointError(f"{path} is not a tokenizer ({error}); copy it again") from None

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    @property
    def ids(self) -> dict[str, int]:
        """Id of every token by its spelling in the vocabulary."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def begins_with(self, token_id: int) -> bool:
        """Whether the tokenizer itself puts this token before every text, if it is let."""
        return self._tokenizer.encode("a", add_special_tokens=True).ids[:1] == [token_id]

    def id_of(self, token: str) -> int | None:
        """Id of one token by its exact spelling, or None."""
        return self._tokenizer.token_to_id(token)
