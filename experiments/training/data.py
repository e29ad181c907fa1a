"""Text of the corpus as token ids: reads the archive or folder, tokenises in parallel, caches the result.

It imports no torch, so that its worker processes start fast. A corpus holds ``train/*.txt`` and ``heldout/*.txt``;
documents of a file are separated by a line that holds a form feed.
"""

import hashlib
import multiprocessing
import os
import random
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from experiments.training.config import DataSettings
from specdec.errors import WorkloadError

DOCUMENT_BREAK = "\n\f\n"
JOB_BYTES = 400_000
TRAIN, HELDOUT = "train", "heldout"


@dataclass(frozen=True, kw_only=True)
class TokenisedCorpus:
    """train uint16: all documents in shuffled order, each behind a separator, one more at the end.

    heldout       one array a document, each behind a separator
    heldout_names the file that each document comes from
    token_bytes   bytes of text of each token id, 0 for special tokens
    separator     its id
    """

    train: np.ndarray
    heldout: tuple[np.ndarray, ...]
    heldout_names: tuple[str, ...]
    token_bytes: np.ndarray
    separator: int


def load_corpus(settings: DataSettings, cache: Path, seed: int) -> TokenisedCorpus:
    """Tokenise the corpus, or read ``cache`` (an .npz file) if it was made from the same inputs.

    Raises WorkloadError if the corpus or the separator is missing.
    """
    tokenizer = Tokenizer.from_file(settings.tokenizer)
    separator = tokenizer.token_to_id(settings.separator)
    if separator is None:
        raise WorkloadError(f"{settings.tokenizer} has no token {settings.separator!r} (conf: trainer.data.separator)")
    key = _key(settings, seed)
    parts = _read_cache(cache, key)
    if parts is None:
        parts = _tokenise(settings, separator, seed)
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(cache, key=key, **parts)
    ends = np.cumsum(parts["heldout_lens"])[:-1]
    return TokenisedCorpus(
        train=parts["train"],
        heldout=tuple(np.split(parts["heldout"], ends)),
        heldout_names=tuple(str(name) for name in parts["heldout_names"]),
        token_bytes=token_bytes(tokenizer),
        separator=separator,
    )


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of text that each id of a byte-level tokenizer stands for, int64 [V]; 0 for special tokens."""
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    return np.array([0 if i in special else len(tokenizer.id_to_token(i)) for i in range(size)], dtype=np.int64)


def read_documents(corpus: Path, max_bytes: int) -> Iterator[tuple[str, str, list[str]]]:
    """Part (``train`` or ``heldout``), file name and documents of each file; at most ``max_bytes`` of it, 0 for all."""
    for part, name, content in _read_files(corpus):
        text = (content[:max_bytes] if max_bytes else content).decode("utf-8", errors="ignore")
        yield part, name, [document for document in text.split(DOCUMENT_BREAK) if document.strip()]


def _read_files(corpus: Path) -> Iterator[tuple[str, str, bytes]]:
    if corpus.is_dir():
        for path in sorted(corpus.glob("*/*.txt")):
            yield path.parent.name, path.name, path.read_bytes()
        return
    if not corpus.exists():
        raise WorkloadError(f"corpus {corpus} does not exist (conf: trainer.data.corpus)")
    with tarfile.open(corpus) as archive:
        for member in archive:
            path = Path(member.name)
            if member.isfile() and path.suffix == ".txt":
                file = archive.extractfile(member)
                assert file is not None
                yield path.parent.name, path.name, file.read()


def _tokenise(settings: DataSettings, separator: int, seed: int) -> dict[str, np.ndarray]:
    corpus = Path(settings.corpus)
    files = sorted(read_documents(corpus, settings.max_bytes))
    train = [doc for part, _, docs in files if part == TRAIN for doc in docs]
    heldout = [(name, doc) for part, name, docs in files if part == HELDOUT for doc in docs]
    if not train or not heldout:
        raise WorkloadError(f"corpus {corpus} has no {TRAIN}/*.txt or no {HELDOUT}/*.txt (conf: trainer.data.corpus)")
    random.Random(seed).shuffle(train)
    workers = settings.workers or len(os.sched_getaffinity(0))
    encoded = _encode_all([*train, *(doc for _, doc in heldout)], settings.tokenizer, separator, workers)
    end = np.array([separator], dtype=np.uint16)
    held = encoded[len(train) :]
    return {
        "train": np.concatenate([*encoded[: len(train)], end]),
        "heldout": np.concatenate(held),
        "heldout_lens": np.array([len(ids) for ids in held]),
        "heldout_names": np.array([name for name, _ in heldout]),
    }


def _encode_all(documents: Sequence[str], tokenizer: str, separator: int, workers: int) -> list[np.ndarray]:
    jobs = [(tokenizer, separator, part) for part in _portions(documents)]
    if workers == 1:
        return [ids for job in jobs for ids in _encode(job)]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        return [ids for done in pool.imap(_encode, jobs) for ids in done]


def _portions(documents: Sequence[str]) -> Iterator[list[str]]:
    portion: list[str] = []
    size = 0
    for document in documents:
        portion.append(document)
        size += len(document)
        if size >= JOB_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _encode(job: tuple[str, int, list[str]]) -> list[np.ndarray]:
    path, separator, documents = job
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(path)
    return [
        np.array([separator, *tokenizer.encode(document, add_special_tokens=False).ids], dtype=np.uint16)
        for document in documents
    ]


def _key(settings: DataSettings, seed: int) -> str:
    corpus = Path(settings.corpus)
    size = corpus.stat().st_size if corpus.is_file() else sum(p.stat().st_size for p in corpus.rglob("*.txt"))
    tokenizer = hashlib.sha256(Path(settings.tokenizer).read_bytes()).hexdigest()
    return f"{size}/{tokenizer}/{settings.separator}/{settings.max_bytes}/{seed}"


def _read_cache(cache: Path, key: str) -> dict[str, np.ndarray] | None:
    if not cache.exists():
        return None
    with np.load(cache) as parts:
        return {name: parts[name] for name in parts.files if name != "key"} if str(parts["key"]) == key else None
